#include "shoal/data/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "shoal/base/error.h"

namespace shoal::data {
namespace {

void expect_refused(const std::string& text, const CsvOptions& options, const std::string& words) {
  try {
    parse_csv(text, "some.csv", options);
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Csv, ReadsNumbers) {
  const auto table = parse_csv("a, b ,y\r\n1,-2.5,3\r\n\r\n\"4\", +5e-1 ,6", "some.csv", {});
  EXPECT_EQ(table.rows, 2u);
  EXPECT_EQ(table.columns, 2u);
  EXPECT_EQ(table.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(table.features, (std::vector<float>{1, -2.5f, 4, 0.5f}));
  EXPECT_EQ(table.targets, (std::vector<float>{3, 6}));
  EXPECT_TRUE(table.classes.empty());
}

TEST(Csv, ChoosesTheTarget) {
  const std::string text = "y;a;b\n2;10;20\n0;30;40\n";
  CsvOptions options;
  options.separator = ';';
  options.target_name = "y";
  options.classes = true;
  const auto table = parse_csv(text, "some.csv", options);
  EXPECT_EQ(table.classes, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(table.class_count, 3);
  EXPECT_EQ(table.features, (std::vector<float>{10, 20, 30, 40}));
  options.target_name.reset();
  options.target_index = 0;
  EXPECT_EQ(parse_csv(text, "some.csv", options).classes, table.classes);
}

TEST(Csv, NamesFileAndLineOfWhatIsWrong) {
  CsvOptions classes;
  classes.classes = true;
  CsvOptions named;
  named.target_name = "z";
  CsvOptions far;
  far.target_index = 5;
  expect_refused("", {}, "some.csv holds no rows");
  expect_refused("a,b\n", {}, "some.csv holds no rows");
  expect_refused("1,2\n3\n", {}, "some.csv:2: 1 fields where the first line has 2");
  expect_refused("1,2\n\n3,x\n", {}, "some.csv:3: field 2 is no finite number: 'x'");
  expect_refused("1,2\n3,\n", {}, "some.csv:2: field 2");
  expect_refused("1,2\nnan,1\n", {}, "some.csv:2: field 1");
  expect_refused("1,2\n1e300,1\n", {}, "some.csv:2: field 1");
  expect_refused("1,2.5\n", classes, "some.csv:1: the target 2.5 is no class");
  expect_refused("1,-1\n", classes, "some.csv:1: the target -1 is no class");
  expect_refused("a,b\n1,2\n", named, "no column 'z'");
  expect_refused("1,2\n", far, "no column 5");
  expect_refused("1\n2\n", {}, "one column");
}

TEST(Digits, AreTheOnesOfScikitLearn) {
  const auto table = read_digits(SHOAL_SOURCE_DIR "/data/digits.csv");
  EXPECT_EQ(table.rows, 1797u);
  EXPECT_EQ(table.columns, 64u);
  EXPECT_EQ(table.class_count, 10);
  // sklearn.datasets.load_digits(): class counts, and data.sum() = 561718.
  std::vector<int> counts(10);
  for (const auto digit : table.classes) ++counts[digit];
  EXPECT_EQ(counts, (std::vector<int>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}));
  EXPECT_EQ(std::accumulate(table.features.begin(), table.features.end(), 0.0) * 16, 561718);
}

TEST(Regression, IsAPureFunctionOfItsArguments) {
  RegressionOptions options;
  options.rows = 500;
  const auto problem = make_regression(options);
  RegressionOptions fewer = options;
  fewer.rows = 100;
  const auto start = make_regression(fewer);
  EXPECT_TRUE(std::equal(start.table.features.begin(), start.table.features.end(),
                         problem.table.features.begin()));
  EXPECT_TRUE(std::equal(start.table.targets.begin(), start.table.targets.end(),
                         problem.table.targets.begin()));
  options.seed = 1;
  EXPECT_NE(make_regression(options).table.features, problem.table.features);
  // The residual of the true weights is the noise: standard deviation 0.1, known to 1/sqrt(2 * 500)
  // = 3 %; five times that is allowed.
  double squares = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    double residual = problem.table.targets[i] - problem.bias;
    for (std::size_t k = 0; k < 8; ++k) residual -= problem.weights[k] * problem.table.row(i)[k];
    squares += residual * residual;
  }
  EXPECT_NEAR(std::sqrt(squares / 500), 0.1, 0.016);
}

TEST(Table, SplitsTheSameWayEveryTime) {
  const auto table = make_regression({.rows = 2000, .columns = 2}).table;
  const auto split = split_table(table, 0.25, 9);
  EXPECT_EQ(split.train.rows + split.test.rows, 2000u);
  EXPECT_NEAR(static_cast<double>(split.test.rows), 500, 5 * std::sqrt(2000 * 0.25 * 0.75));
  EXPECT_EQ(split_table(table, 0.25, 9).test.features, split.test.features);
  EXPECT_NE(split_table(table, 0.25, 10).test.features, split.test.features);
  EXPECT_THROW(split_table(make_regression({.rows = 1}).table, 0.5, 0), Error);
  EXPECT_THROW(split_table(table, 1, 0), Error);
}

TEST(Table, AnEpochShowsEveryRowOnce) {
  const RowCursor cursor(97, 4);
  std::vector<std::uint64_t> first;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::uint64_t> rows;
    for (std::uint64_t i = 0; i < 97; ++i) rows.insert(cursor.at(epoch * 97 + i));
    EXPECT_EQ(rows.size(), 97u);
    EXPECT_EQ(*rows.rbegin(), 96u);
  }
  EXPECT_NE(cursor.at(0) * 97 + cursor.at(1), cursor.at(97) * 97 + cursor.at(98));
}

}  // namespace
}  // namespace shoal::data
