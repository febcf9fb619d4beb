#include "shoal/checkpoint/format/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "shoal/base/error.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/checkpoint_format/written_checkpoint.h"

namespace shoal::checkpoint::format::reader_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Cuts a box in two somewhere, again and again, until there are `parts`.
std::vector<Box> cut(const Shape& shape, int parts, std::mt19937& random) {
  std::vector<Box> boxes{whole(shape)};
  while (static_cast<int>(boxes.size()) < parts) {
    const std::size_t which = random() % boxes.size();
    const std::size_t d = random() % shape.size();
    Box& box = boxes[which];
    const std::int64_t at = box.begin[d] + random() % (box.end[d] - box.begin[d] + 1);
    Box rest = box;
    rest.begin[d] = box.end[d] = at;
    boxes.push_back(rest);
  }
  return boxes;
}

TEST(Reader, ReadsAnyBoxesFromAnyBoxes) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    testing::Scratch scratch;
    const Shape shape = round % 2 ? Shape{6, 5, 4} : Shape{17, 9};
    std::vector<std::vector<Source>> writers(1 + round % 4);
    std::size_t next = 0;
    for (const Box& box : cut(shape, static_cast<int>(writers.size()), random))
      writers[next++].push_back(testing::source("w", shape, box, 100));
    Reader reader(testing::write_checkpoint(scratch.path(), 1, writers));
    const LogicalTensor& tensor = *reader.manifest().find("w");
    for (const Box& box : cut(shape, 1 + round % 5, random)) {
      std::vector<std::int32_t> found(box.count(), -1);
      reader.read(tensor, box, found.data());
      EXPECT_EQ(found, testing::counted(box, shape, 100)) << text(box) << " of " << text(shape);
    }
  }
}

TEST(Reader, ReadsTensorsOfManyBlocksAndPartsOfThem) {
  testing::Scratch scratch;
  const Shape shape{3000, 1000};  // almost three blocks
  Reader reader(
      testing::write_checkpoint(scratch.path(), 1,
                                {{testing::source("w", shape, {{0, 0}, {3000, 400}}, 5),
                                  testing::source("w", shape, {{0, 400}, {3000, 1000}}, 5)}}));
  const LogicalTensor& tensor = *reader.manifest().find("w");
  EXPECT_EQ(tensor.pieces[0].blocks.size() + tensor.pieces[1].blocks.size(), 2 + 2);
  for (const Box& box :
       {whole(shape), Box{{1000, 0}, {2900, 400}}, Box{{2999, 399}, {3000, 401}}}) {
    std::vector<std::int32_t> found(box.count(), -1);
    reader.read(tensor, box, found.data());
    EXPECT_TRUE(found == testing::counted(box, shape, 5)) << text(box);
  }
}

TEST(Reader, ChecksumsDoNotDependOnTheCut) {
  testing::Scratch scratch;
  const Shape shape{1500, 1000};
  std::uint64_t checksums[2];
  const std::vector<std::vector<Box>> cuts{
      {whole(shape)}, {{{0, 0}, {1500, 10}}, {{0, 10}, {700, 1000}}, {{700, 10}, {1500, 1000}}}};
  for (int i = 0; i < 2; ++i) {
    std::vector<Source> sources;
    for (const Box& box : cuts[i]) sources.push_back(testing::source("w", shape, box, 5));
    checksums[i] = Reader(testing::write_checkpoint(scratch.path(), i, {sources}))
                       .manifest()
                       .find("w")
                       ->checksum();
  }
  EXPECT_EQ(checksums[0], checksums[1]);
}

TEST(Reader, KeepsMetadata) {
  testing::Scratch scratch;
  const Reader reader(testing::write_checkpoint(scratch.path(), 12,
                                                {{testing::source("w", {3}, whole({3}), 0)}},
                                                R"({"seed":18446744073709551615,"lr":0.1})"));
  EXPECT_EQ(reader.manifest().step, 12);
  EXPECT_EQ(reader.manifest().metadata, R"({"lr":0.1,"seed":18446744073709551615})");
}

/// What verifying says; empty when all is well.
std::string fault(const std::string& checkpoint) {
  try {
    Reader(checkpoint).verify();
    return "";
  } catch (const Error& error) {
    EXPECT_THAT(error.kind(), AnyOf(ErrorKind::kData, ErrorKind::kInputMissing)) << error.what();
    return error.what();
  }
}

class Damage : public ::testing::Test {
 protected:
  Damage()
      : checkpoint_(
            testing::write_checkpoint(scratch_.path(), 3,
                                      {{testing::source("a", {40}, whole({40}), 1),
                                        testing::source("b", {4, 4}, {{0, 0}, {2, 4}}, 2)},
                                       {testing::source("b", {4, 4}, {{2, 0}, {4, 4}}, 2)}})),
        data_(checkpoint_ + "/shard-0000-00.safetensors"),
        manifest_(checkpoint_ + "/manifest.json") {}

  testing::Scratch scratch_;
  const std::string checkpoint_, data_, manifest_;
};

TEST_F(Damage, NoneIsFine) { EXPECT_EQ(fault(checkpoint_), ""); }

// What a progress bar shows: the bytes of all pieces until now.
TEST_F(Damage, VerifyingTellsItsProgress) {
  std::vector<std::int64_t> seen;
  Reader reader(checkpoint_);
  reader.verify([&](std::int64_t bytes) { seen.push_back(bytes); });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{160, 160 + 32, 160 + 64}));
  EXPECT_EQ(reader.bytes_read(), 160 + 64);
}

TEST_F(Damage, OfDataNamesFileAndTensor) {
  testing::flip_byte(data_, testing::slurp(data_).size() - 1);
  EXPECT_THAT(fault(checkpoint_), AllOf(HasSubstr(data_), HasSubstr("tensor 'b[0:2, 0:4]'"),
                                        HasSubstr("damaged after it was written")));
}

TEST_F(Damage, OfEveryByteIsFound) {
  for (const std::string& path : {data_, manifest_}) {
    const std::string good = testing::slurp(path);
    for (std::size_t at = 0; at < good.size(); ++at) {
      // White space between the words of the manifest carries nothing: a blank for a line feed is
      // the same manifest.
      if (path == manifest_ && std::isspace(good[at])) continue;
      testing::flip_byte(path, at, 0x01);
      EXPECT_NE(fault(checkpoint_), "") << path << " byte " << at;
      testing::flip_byte(path, at, 0x01);
    }
  }
}

TEST_F(Damage, OfLengthIsFound) {
  for (const std::string& path : {data_, manifest_}) {
    const std::string good = testing::slurp(path);
    for (const std::string& bad : {good.substr(0, good.size() - 2), good.substr(0, 20),
                                   std::string(), good + good.substr(0, 9)}) {
      testing::spill(path, bad);
      EXPECT_THAT(fault(checkpoint_), HasSubstr(path));
      if (path == data_) {
        EXPECT_THAT(fault(checkpoint_),
                    HasSubstr("has " + std::to_string(bad.size()) + " bytes, the manifest says " +
                              std::to_string(good.size())));
      }
    }
    testing::spill(path, good);
  }
  std::filesystem::remove(data_);
  EXPECT_THAT(fault(checkpoint_), HasSubstr("belongs to the checkpoint and is missing"));
  std::filesystem::remove(manifest_);
  EXPECT_THAT(fault(checkpoint_), HasSubstr("manifest.json"));
}

TEST_F(Damage, ByASwappedFileIsFound) {
  testing::Scratch other;
  const std::string foreign =
      testing::write_checkpoint(other.path(), 3,
                                {{testing::source("a", {40}, whole({40}), 9),
                                  testing::source("b", {4, 4}, {{0, 0}, {2, 4}}, 2)},
                                 {testing::source("b", {4, 4}, {{2, 0}, {4, 4}}, 2)}});
  testing::spill(data_, testing::slurp(foreign + "/shard-0000-00.safetensors"));
  EXPECT_THAT(fault(checkpoint_), HasSubstr("tensor 'a': elements 0 to 40 have checksum"));
}

TEST_F(Damage, ByRandomMutationNeverCrashes) {
  const std::string good = testing::slurp(manifest_);
  std::mt19937 random(7);
  for (int round = 0; round < 10'000; ++round) {
    std::string bad = good;
    for (int changes = 1 + random() % 3; changes > 0 && !bad.empty(); --changes) {
      const std::size_t at = random() % bad.size();
      if (random() % 2) {
        bad[at] = "{}[]\",:0123456789-e"[random() % 19];
      } else {
        bad.replace(at, random() % 30, good.substr(random() % good.size(), random() % 30));
      }
    }
    try {
      parse_manifest(bad, "manifest.json");
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData) << error.what();
    }
  }
}

}  // namespace
}  // namespace shoal::checkpoint::format::reader_test
