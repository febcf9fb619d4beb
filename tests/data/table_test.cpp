#include "shoal/data/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "shoal/base/error.h"
#include "tests/data/folder.h"

namespace shoal::data::table_test {
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
  expect_refused("1,2.5\n", classes, "data.task = \"regression\"");
  expect_refused("a,b\n1,2\n", named, "the header line has no column 'z'; it has a, b");
  expect_refused("1,2\n", named, "there is no header line, and so no column 'z'");
  expect_refused("a,price\n1,2\n3,three\n", {}, "field 2 (price) is no finite number: 'three'");
  named.target_name = "prise";
  expect_refused("a,price\n1,2\n", named, "did you mean 'price'?");
  expect_refused("1,2\n", far, "no column 5");
  expect_refused("1\n2\n", {}, "one column");
  expect_refused("a;b\n1;2\n", {}, "the separator looks like ';': write the file with ','");
  expect_refused("a\tb\n1\t2\n", {}, "the separator looks like a tab");
}

TEST(Csv, ClassesAndValuesHaveTheirLimits) {
  CsvOptions classes;
  classes.classes = true;
  const auto table = parse_csv("1,1000000\n2,0\n", "some.csv", classes);
  EXPECT_EQ(table.class_count, 1000001);
  EXPECT_EQ(table.targets, (std::vector<float>{1000000, 0}));
  expect_refused("1,1000001\n", classes, "the target 1000001 is no class");
  EXPECT_EQ(parse_csv("3.3e38,-3.3e38\n", "some.csv", {}).features[0], 3.3e38f);
  expect_refused("3.5e38,1\n", {}, "some.csv:1: field 1");
  expect_refused("1,-3.5e38\n", {}, "some.csv:1: field 2");
  expect_refused("inf,1\n", {}, "some.csv:1: field 1");
  expect_refused("1 2,1\n3,4 5\n", {}, "some.csv:2: field 2 (1) is no finite number: '4 5'");
  expect_refused("1,2\n3,4,5\n", {}, "some.csv:2: 3 fields where the first line has 2");
}

TEST(Csv, TheHeaderIsDetectedOrAsTold) {
  CsvOptions present;
  present.header = Header::kPresent;
  CsvOptions absent;
  absent.header = Header::kAbsent;
  const std::string numbers = "1,2\n3,4\n";
  EXPECT_EQ(parse_csv(numbers, "some.csv", {}).rows, 2u);
  EXPECT_EQ(parse_csv(numbers, "some.csv", absent).rows, 2u);
  EXPECT_EQ(parse_csv(numbers, "some.csv", present).names, std::vector<std::string>{"1"});
  EXPECT_EQ(parse_csv("1,y\n3,4\n", "some.csv", {}).rows, 1u) << "one field is no number";
  expect_refused("a,b\n1,2\n", absent, "some.csv:1: field 1");
  CsvOptions named;
  named.target_name = "1";
  expect_refused(numbers, named, "no column '1'");
  named.header = Header::kPresent;
  EXPECT_EQ(parse_csv(numbers, "some.csv", named).targets, std::vector<float>{3});
}

TEST(Csv, CountsTheTargetFromEitherSide) {
  const auto targets = [](std::int64_t index) {
    CsvOptions options;
    options.target_index = index;
    return parse_csv("a,b,c\n1,2,3\n", "some.csv", options);
  };
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(targets(k).targets, std::vector<float>{static_cast<float>(k + 1)});
    EXPECT_EQ(targets(k - 3).targets, std::vector<float>{static_cast<float>(k + 1)});
  }
  EXPECT_EQ(targets(1).names, (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(targets(1).features, (std::vector<float>{1, 3}));
  EXPECT_EQ(CsvOptions().target_index, -1);
  for (const std::int64_t index : {3, -4}) {
    CsvOptions options;
    options.target_index = index;
    expect_refused("a,b,c\n1,2,3\n", options, fmt::format("no column {} in a row of 3", index));
  }
}

TEST(Csv, TakesQuotesBlanksAndAByteOrderMark) {
  const auto table =
      parse_csv("\xef\xbb\xbf\"a b\"\t; \" c \" ;\"\n +1;\" -2\";3\r\n\n \t\r\n4;5;\"6\"",
                "some.csv", {.separator = ';'});
  EXPECT_EQ(table.names, (std::vector<std::string>{"a b", "c"}));
  EXPECT_EQ(table.features, (std::vector<float>{1, -2, 4, 5}));
  EXPECT_EQ(table.targets, (std::vector<float>{3, 6}));
}

TEST(Digits, RefusesAnotherTable) {
  const Folder folder;
  std::string row;
  for (int k = 0; k < 63; ++k) row += "1,";
  EXPECT_THROW(read_digits(folder.write("narrow.csv", row + "1\n")), Error);
  EXPECT_THROW(read_digits(folder.write("classes.csv", row + "1,10\n")), Error);
  EXPECT_THROW(read_digits(folder.write("named.csv", row + "1,digit\n" + row + "1,9\n")), Error)
      << "the first line is a digit as all others are";
  EXPECT_EQ(read_digits(folder.write("good.csv", row + "1,9\n")).features[0], 1.0f / 16);
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

TEST(Regression, WeightsAndFeaturesHaveTheirVariance) {
  RegressionOptions options;
  options.rows = 2000;
  options.columns = 400;
  options.noise = 0;
  const auto problem = make_regression(options);
  // Each weight is standard normal over sqrt(400), so their squares add up to 1 with a deviation of
  // sqrt(2 / 400) = 0.07; those of 800000 features to 1 with one of 0.0016. Five of them.
  double weights = 0;
  for (const double weight : problem.weights) weights += weight * weight;
  EXPECT_NEAR(weights, 1, 0.36);
  double features = 0;
  for (const float feature : problem.table.features) features += feature * feature / 800000;
  EXPECT_NEAR(features, 1, 0.008);
  EXPECT_NE(problem.bias, 0);
  options.rows = 0;
  EXPECT_THROW(make_regression(options), Error);
  EXPECT_THROW(make_regression({.columns = 0}), Error);
  EXPECT_THROW(make_regression({.noise = -0.1}), Error);
  EXPECT_THROW(make_regression({.noise = NAN}), Error);
}

TEST(Table, PartsKeepRowsTogetherAndInOrder) {
  TableDataset table;
  table.rows = 300;
  table.columns = 2;
  table.class_count = 300;
  table.names = {"a", "b"};
  for (int i = 0; i < 300; ++i) {
    table.features.insert(table.features.end(), {static_cast<float>(i), static_cast<float>(-i)});
    table.targets.push_back(static_cast<float>(i));
    table.classes.push_back(i);
  }
  const TableSplit split = split_table(table, 0.1, 3);
  EXPECT_NEAR(static_cast<double>(split.test.rows), 30, 5 * std::sqrt(300 * 0.1 * 0.9));
  for (const TableDataset* part : {&split.train, &split.test}) {
    EXPECT_EQ(part->columns, 2u);
    EXPECT_EQ(part->class_count, 300);
    EXPECT_EQ(part->names, table.names);
    ASSERT_EQ(part->targets.size(), part->rows);
    ASSERT_EQ(part->classes.size(), part->rows);
    for (std::uint64_t i = 0; i < part->rows; ++i) {
      EXPECT_EQ(part->row(i)[0], part->targets[i]);
      EXPECT_EQ(part->row(i)[1], -part->targets[i]);
      EXPECT_EQ(static_cast<float>(part->classes[i]), part->targets[i]);
      if (i > 0) {
        EXPECT_GT(part->targets[i], part->targets[i - 1]);
      }
    }
  }
  EXPECT_THROW(split_table(table, 0, 3), Error);
  EXPECT_THROW(RowCursor(0, 1), Error);
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
}  // namespace shoal::data::table_test
