// Rows of a table as batches.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "shoal/train/data_source.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::table_source_test {
namespace {

/// The fingerprint of a table of 20 rows, in which the class of row `changed` is another one.
std::uint64_t fingerprint(const TemporaryFolder& folder, int changed, double fraction = 0.25) {
  const std::string path = folder.path() + "/table.csv";
  {
    std::ofstream file(path);
    file << "a,kind\n";
    for (int row = 0; row < 20; ++row)
      file << row * row << "," << (row % 2 + (row == changed ? 1 : 0)) % 2 << "\n";
  }
  const Job job =
      parse_job(fmt::format("[model]\nfamily = \"mlp\"\n[data]\nsource = \"csv\"\nfile = \"{}\"\n"
                            "validation_fraction = {}\n"
                            "[training]\nglobal_batch_sequences = 4\nepochs = 1\n",
                            path, fraction),
                "job.toml", {});
  return open_table(job)->fingerprint();
}

// Rows for validation count too: with others, evaluations before and after a resumption would not
// be of the same data.
TEST(TableSource, TheFingerprintNamesEveryRow) {
  const TemporaryFolder folder;
  const std::uint64_t whole = fingerprint(folder, -1);
  EXPECT_EQ(fingerprint(folder, -1), whole);
  std::set<std::uint64_t> different{whole, fingerprint(folder, -1, 0.5)};
  for (int row = 0; row < 20; ++row) different.insert(fingerprint(folder, row));
  EXPECT_EQ(different.size(), 22u);
}

}  // namespace
}  // namespace shoal::train::table_source_test
