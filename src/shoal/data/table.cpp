#include "shoal/data/table.h"

#include <algorithm>
#include <cmath>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/data/permutation.h"

namespace shoal::data {

RegressionProblem make_regression(const RegressionOptions& options) {
  SHOAL_USER_CHECK(options.rows >= 1 && options.columns >= 1, "data",
                   "a table of {} rows and {} columns", options.rows, options.columns);
  SHOAL_USER_CHECK(std::isfinite(options.noise) && options.noise >= 0, "data",
                   "noise of {}; it must be 0 or more", options.noise);
  const Key key = Key(options.seed).child("regression");
  RegressionProblem problem;
  for (std::uint64_t k = 0; k < options.columns; ++k) {
    // Over sqrt(columns), so that the target's variance does not grow with them.
    problem.weights.push_back(key.child("weights").normal(k) /
                              std::sqrt(static_cast<double>(options.columns)));
  }
  problem.bias = key.child("bias").normal(0);
  TableDataset& table = problem.table;
  table.rows = options.rows;
  table.columns = options.columns;
  for (std::uint64_t i = 0; i < options.rows; ++i) {
    double target = problem.bias + options.noise * key.child("noise").normal(i);
    for (std::uint64_t k = 0; k < options.columns; ++k) {
      // The feature as it is stored enters the target, so that the problem holds for the rounded
      // table.
      const auto feature =
          static_cast<float>(key.child("features").normal(i * options.columns + k));
      table.features.push_back(feature);
      target += problem.weights[k] * feature;
    }
    table.targets.push_back(static_cast<float>(target));
  }
  return problem;
}

TableSplit split_table(const TableDataset& table, double test_fraction, std::uint64_t seed) {
  SHOAL_USER_CHECK(test_fraction > 0 && test_fraction < 1, "data",
                   "a test fraction of {}; allowed is more than 0 and less than 1", test_fraction);
  const Key key = Key(seed).child("table split");
  TableSplit split;
  for (TableDataset* part : {&split.train, &split.test}) {
    part->columns = table.columns;
    part->class_count = table.class_count;
    part->names = table.names;
  }
  for (std::uint64_t i = 0; i < table.rows; ++i) {
    // A draw by row: rows that are added behind change nothing.
    TableDataset& part = key.uniform(i) < test_fraction ? split.test : split.train;
    const auto row = table.row(i);
    part.features.insert(part.features.end(), row.begin(), row.end());
    part.targets.push_back(table.targets[i]);
    if (!table.classes.empty()) part.classes.push_back(table.classes[i]);
    ++part.rows;
  }
  if (split.train.rows == 0 || split.test.rows == 0) {
    throw Error(ErrorKind::kData, "data",
                fmt::format("{} rows with a test fraction of {} leave one part empty", table.rows,
                            test_fraction));
  }
  return split;
}

RowCursor::RowCursor(std::uint64_t rows, std::uint64_t seed) : rows_(rows), seed_(seed) {
  SHOAL_USER_CHECK(rows >= 1, "data", "a table without rows");
}

std::uint64_t RowCursor::at(std::uint64_t sample) const {
  return Permutation(Key(seed_).child("row order").child(sample / rows_), rows_)[sample % rows_];
}

}  // namespace shoal::data
