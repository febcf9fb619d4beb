#include <algorithm>
#include <cmath>

#include "shoal/data/table.h"
#include "tests/fuzz/fuzz.h"

// Tables. The first byte of the input chooses what is expected of them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  if (size == 0) return 0;
  data::CsvOptions options;
  options.header = static_cast<data::Header>(data[0] % 3);
  options.separator = data[0] & 4 ? ';' : ',';
  options.classes = (data[0] & 8) != 0;
  options.target_index = (data[0] >> 5) - 4;
  if (data[0] & 16) options.target_name = "a";
  data::TableDataset table;
  if (!fuzz::accepted(
          [&] { table = data::parse_csv(fuzz::text_of(data + 1, size - 1), "file", options); }))
    return 0;
  fuzz::must(table.rows > 0 && table.columns > 0 &&
                 table.features.size() == table.rows * table.columns &&
                 table.targets.size() == table.rows,
             "a table is full");
  fuzz::must(table.classes.size() == (options.classes ? table.rows : 0), "every row has its class");
  fuzz::must(std::all_of(table.features.begin(), table.features.end(),
                         [](float x) { return std::isfinite(x); }),
             "features are finite");
  for (const auto label : table.classes)
    fuzz::must(label >= 0 && label < table.class_count, "a class is one of those that are counted");
  return 0;
}
