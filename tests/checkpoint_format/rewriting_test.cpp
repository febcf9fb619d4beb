#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/difference.h"
#include "shoal/checkpoint/format/reshard.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/checkpoint_format/written_checkpoint.h"

namespace shoal::checkpoint::format::rewriting_test {
namespace {

namespace fs = std::filesystem;

/// Four tensors, one of them cut in two, in two files.
std::string write_four(const std::string& directory, std::int32_t seed = 0) {
  return testing::write_checkpoint(
      directory, 6,
      {{testing::source("a", {40}, whole({40}), seed),
        testing::source("b", {6, 8}, {{0, 0}, {6, 3}}, seed)},
       {testing::source("b", {6, 8}, {{0, 3}, {6, 8}}, seed),
        testing::source("c", {}, whole({}), 5), testing::source("d", {30}, whole({30}), 5)}},
      R"({"seed":1})");
}

TEST(Reshard, ChangesFilesAndNothingElse) {
  for (const int files : {1, 2, 4, 9}) {
    testing::Scratch scratch;
    Reader before(write_four(scratch / "from"));
    Reader after(reshard(before, scratch / "to", files));
    EXPECT_EQ(after.manifest().files.size(), std::min(files, 4));
    EXPECT_EQ(after.manifest().step, 6);
    EXPECT_EQ(after.manifest().metadata, before.manifest().metadata);
    EXPECT_TRUE(compare(before, after).empty());
    after.verify();
    EXPECT_EQ(after.manifest().find("b")->pieces.size(), 1);
    std::vector<std::int32_t> values(48);
    after.read(*after.manifest().find("b"), whole({6, 8}), values.data());
    EXPECT_EQ(values, testing::counted(whole({6, 8}), {6, 8}, 0));
  }
}

// 400 bytes, 240, 200 and 40: largest first, each to the file that is smallest so far.
TEST(Reshard, FilesAreOfSimilarSize) {
  testing::Scratch scratch;
  std::vector<Source> sources;
  for (const auto& [name, count] : {std::pair{"a", 10}, {"b", 50}, {"c", 60}, {"d", 100}})
    sources.push_back(testing::source(name, {count}, whole({count}), 0));
  Reader before(testing::write_checkpoint(scratch / "from", 6, {sources}));
  const Reader after(reshard(before, scratch / "to", 2));
  std::map<int, std::int64_t> bytes;
  for (const LogicalTensor& tensor : after.manifest().tensors)
    bytes[tensor.pieces[0].file] += tensor.bytes();
  EXPECT_EQ(bytes, (std::map<int, std::int64_t>{{0, 440}, {1, 440}}));
}

TEST(Reshard, OverwritesNothingAndLeavesNothingBehind) {
  testing::Scratch scratch;
  Reader reader(write_four(scratch / "from"));
  EXPECT_THROW(reshard(reader, scratch / "from", 1), Error);
  EXPECT_THROW(reshard(reader, scratch / "to", 0), Error);
  const std::string data = scratch / "from/step-6/shard-0001-00.safetensors";
  testing::flip_byte(data, testing::slurp(data).size() - 1);
  EXPECT_THROW(reshard(reader, scratch / "to", 1), Error);
  EXPECT_TRUE(fs::is_empty(scratch / "to"));
}

TEST(Compare, NamesEveryKindOfDifference) {
  testing::Scratch scratch;
  Reader first(write_four(scratch / "first"));
  Reader second(testing::write_checkpoint(
      scratch / "second", 6,
      {{testing::source("a", {40}, whole({40}), 1), testing::source("b", {8, 6}, whole({8, 6}), 0),
        testing::source("d", {30}, whole({30}), 5), testing::source("e", {1}, whole({1}), 0)}}));
  const auto differences = compare(first, second);
  ASSERT_EQ(differences.size(), 4);
  EXPECT_EQ(differences[0].name, "a");
  EXPECT_EQ(differences[0].kind, Difference::Kind::kValues);
  EXPECT_EQ(differences[0].elements, 40);
  EXPECT_EQ(differences[1].kind, Difference::Kind::kForm);
  EXPECT_EQ(differences[1].second, "i32 [8, 6]");
  EXPECT_EQ(differences[2].kind, Difference::Kind::kOnlyFirst);
  EXPECT_EQ(differences[3].kind, Difference::Kind::kOnlySecond);
  EXPECT_EQ(differences[3].name, "e");
}

TEST(Compare, MeasuresHowFarNumbersAreApart) {
  testing::Scratch scratch;
  const float values[2][4] = {{1.f, 2.f, -3.f, 0.f}, {1.f, 2.5f, -5.f, -0.f}};
  const auto write = [&](int which) {
    return testing::write_checkpoint(
        scratch / std::to_string(which), 1,
        {{{"w", ElementType::kF32, {4}, whole({4}), blocks_of(ElementType::kF32, [&values, which] {
             return values[which];
           })}}});
  };
  Reader first(write(0));
  Reader second(write(1));
  const auto differences = compare(first, second);
  ASSERT_EQ(differences.size(), 1);
  EXPECT_EQ(differences[0].elements, 3) << "zeros of either sign have different bits";
  EXPECT_EQ(differences[0].largest_apart, 2.0);
}

/// The difference of two tensors of one element type.
template <class T>
Difference difference_of(ElementType type, const std::vector<T>& a, const std::vector<T>& b) {
  testing::Scratch scratch;
  const auto count = static_cast<std::int64_t>(a.size());
  const auto write = [&](const char* name, const std::vector<T>& values) {
    return testing::write_checkpoint(
        scratch / name, 1,
        {{{"w", type, {count}, whole({count}), blocks_of(type, [&] { return values.data(); })}}});
  };
  Reader first(write("a", a));
  Reader second(write("b", b));
  const auto differences = compare(first, second);
  EXPECT_EQ(differences.size(), 1u);
  return differences.empty() ? Difference() : differences[0];
}

TEST(Compare, KnowsTheTypesOfNumbers) {
  const auto wide = difference_of<double>(ElementType::kF64, {1, 2}, {1, 2 + 1e-12});
  EXPECT_NEAR(*wide.largest_apart, 1e-12, 1e-15);
  EXPECT_EQ(wide.count, 2);
  EXPECT_EQ(wide.elements, 1);
  // 1.0 and 1.5 are 0x3f80 and 0x3fc0.
  const auto half =
      difference_of<std::uint16_t>(ElementType::kBF16, {0x3f80, 0x3f80}, {0x3fc0, 0x3f80});
  EXPECT_EQ(half.largest_apart, 0.5);
  const auto words = difference_of<std::int64_t>(ElementType::kI64, {1, 2, 3}, {1, 5, 6});
  EXPECT_EQ(words.elements, 2);
  EXPECT_FALSE(words.largest_apart.has_value());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto broken = difference_of<float>(ElementType::kF32, {1, nan}, {2, 7});
  EXPECT_EQ(broken.largest_apart, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace shoal::checkpoint::format::rewriting_test
