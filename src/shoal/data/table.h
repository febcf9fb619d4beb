#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::data {

/// Rows of numbers with something to predict: a class or one value each.
struct TableDataset {
  std::uint64_t rows = 0, columns = 0;  ///< columns counts the features
  std::vector<float> features;          ///< [rows, columns]
  std::vector<float> targets;           ///< [rows]; the class as a number when there are classes
  std::vector<std::int64_t> classes;    ///< [rows]; empty for regression
  std::int64_t class_count = 0;         ///< largest class + 1; 0 for regression
  std::vector<std::string> names;       ///< names of the features; empty without a header line

  std::span<const float> row(std::uint64_t index) const {
    return {features.data() + index * columns, columns};
  }
};

enum class Header { kDetect, kPresent, kAbsent };

struct CsvOptions {
  char separator = ',';
  Header header = Header::kDetect;  ///< detect: present when a field of the first line is no number
  std::optional<std::string>
      target_name;  ///< the column to predict, by its name in the header; none: by index
  std::int64_t target_index =
      -1;                ///< from the left, or from the right when negative: -1 is the last
  bool classes = false;  ///< the target is a class: an integer of at least 0
};

/// Reads numbers separated by `separator`, one row a line; blank lines are passed over, fields may
/// be quoted and padded. Throws Error(input missing), and Error(data), which names file and line,
/// for a field that is no finite number, a row of another length, a target that is no class, a
/// target column that is not there, a file without rows.
TableDataset read_csv(const std::string& path, const CsvOptions& options);
TableDataset parse_csv(std::string_view text, const std::string& origin, const CsvOptions& options);

/// Reads the UCI handwritten digits as in data/digits.csv: 64 pixels from 0 to 16, ten classes. The
/// features are scaled to 0..1.
TableDataset read_digits(const std::string& path);

/// A regression problem with a known answer: features are standard normal, the target is w . x + b
/// + noise * e, with e standard normal and the weights w (each standard normal over sqrt(columns))
/// and b drawn from `seed`. A pure function of its arguments: row i is the same for any number of
/// rows.
struct RegressionOptions {
  std::uint64_t rows = 1000, columns = 8, seed = 0;
  double noise = 0.1;
};
struct RegressionProblem {
  TableDataset table;
  std::vector<double> weights;  ///< [columns]
  double bias = 0;
};
RegressionProblem make_regression(const RegressionOptions& options);

/// The parts of a table, both in the order of the whole. Row i goes to the test part when a draw
/// from (seed, i) is below `test_fraction`, so the split does not change when rows are added
/// behind. Throws Error(data) when a part would be empty.
struct TableSplit {
  TableDataset train, test;
};
TableSplit split_table(const TableDataset& table, double test_fraction, std::uint64_t seed);

/// The order in which training sees rows: sample number i lies at place i % rows of a permutation
/// that is drawn anew for every epoch. It is a pure function of (seed, rows, i).
class RowCursor {
 public:
  RowCursor(std::uint64_t rows, std::uint64_t seed);
  std::uint64_t at(std::uint64_t sample) const;  ///< the row of a sample

 private:
  std::uint64_t rows_, seed_;
};

}  // namespace shoal::data
