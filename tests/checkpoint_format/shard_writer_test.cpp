#include "shoal/checkpoint/format/shard_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/file.h"
#include "shoal/checkpoint/format/safetensors.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/checkpoint_format/written_checkpoint.h"
#include "tests/error_text.h"

namespace shoal::checkpoint::format::shard_writer_test {
namespace {

using ::testing::HasSubstr;

/// A hundred bytes.
Source hundred(const std::string& name) { return testing::source(name, {25}, whole({25}), 0); }

TEST(ShardWriter, AFileMayHaveExactlyItsLimit) {
  const std::pair<std::int64_t, std::size_t> limits[] = {
      {400, 1}, {399, 2}, {200, 2}, {199, 4}, {1, 4}};
  for (const auto& [limit, files] : limits) {
    testing::Scratch scratch;
    const Written written =
        write_shards(scratch.path(), "shard",
                     {hundred("a"), hundred("b"), hundred("c"), hundred("d")}, limit, false);
    EXPECT_EQ(written.files.size(), files) << limit;
    EXPECT_EQ(written.files[0].name, "shard-00.safetensors");
    EXPECT_EQ(written.tensors.size(), 4u);
    for (const DataFile& file : written.files)
      EXPECT_EQ(testing::slurp(scratch / file.name).size(), static_cast<std::size_t>(file.bytes));
  }
}

// Elements of eight bytes before those of four before those of one: each lies at a multiple of its
// size.
TEST(ShardWriter, EveryTensorIsAlignedToItsElements) {
  testing::Scratch scratch;
  const std::vector<char> bytes(64, 'x');
  const auto of = [&](const char* name, ElementType type, std::int64_t count) {
    return Source{
        name, type, {count}, whole({count}), blocks_of(type, [&] { return bytes.data(); })};
  };
  write_shards(scratch.path(), "shard",
               {of("a", ElementType::kU8, 3), of("b", ElementType::kBF16, 3),
                of("c", ElementType::kF64, 2), of("d", ElementType::kF32, 1)},
               1000, false);
  const Header header = read_header(File::open(scratch / "shard-00.safetensors"));
  ASSERT_EQ(header.entries.size(), 4u);
  for (const Entry& entry : header.entries)
    EXPECT_EQ(entry.offset % static_cast<std::int64_t>(size_of(entry.type)), 0) << entry.name;
}

TEST(ShardWriter, RanksMustAgreeOnATensor) {
  testing::Scratch scratch;
  const auto write = [&](const char* stem, Source source) {
    return write_shards(scratch.path(), stem, {std::move(source)}, 1000, false);
  };
  const std::vector<float> floats(25);
  for (const Source& other :
       {testing::source("w", {5, 5}, whole({5, 5}), 0),
        Source{"w", ElementType::kF32, {25}, whole({25}), blocks_of(ElementType::kF32, [&] {
                 return floats.data();
               })}}) {
    Manifest manifest{.step = 1};
    add_written(manifest, write("one", hundred("w")));
    const Written second = write("two", other);
    try {
      add_written(manifest, second);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ranks disagree on tensor 'w'"));
    }
  }
}

TEST(File, ATextHasItsLimitAndAFileItsEnd) {
  testing::Scratch scratch;
  testing::spill(scratch / "f", "12345");
  EXPECT_EQ(read_text(scratch / "f", 5), "12345");
  EXPECT_THROW(read_text(scratch / "f", 4), Error);
  const File file = File::open(scratch / "f");
  EXPECT_EQ(file.bytes(), 5);
  char bytes[4] = {};
  file.read(bytes, 2, 3);
  EXPECT_STREQ(bytes, "345");
  try {
    file.read(bytes, 3, 3);
    ADD_FAILURE() << "read beyond the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(), HasSubstr("ends at byte 5, 1 bytes too early"));
  }
  const auto kind_of = [](const std::string& path) {
    try {
      File::open(path);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of(scratch / "absent"), ErrorKind::kInputMissing);
  EXPECT_EQ(kind_of(scratch / "f/below"), ErrorKind::kInputMissing);
  EXPECT_EQ(kind_of(scratch.path()), ErrorKind::kInputMissing) << "a folder";
  EXPECT_THROW(File::create(scratch / "absent/f"), Error);
  // A device on which there is never room.
  const std::string full = error_text([] {
    File file = File::create("/dev/full");
    file.append("x", 1);
    file.close(false);
  });
  EXPECT_THAT(full, ::testing::ContainsRegex("cannot write '/dev/full': No space left on device "
                                             ".errno 28.; .* MB are free there"));
}

// Four MiB are written at a time: before, at and behind the border.
TEST(File, ManyBuffersReachIt) {
  constexpr std::size_t kBuffer = std::size_t{4} << 20;
  for (const std::size_t size : {kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer, 3 * kBuffer + 5}) {
    testing::Scratch scratch;
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
    File file = File::create(scratch / "f");
    const std::size_t cut = size / 3;
    file.append(bytes.data(), cut);
    file.append(bytes.data() + cut, size - cut);
    EXPECT_EQ(file.bytes(), static_cast<std::int64_t>(size));
    file.close(false);
    EXPECT_TRUE(testing::slurp(scratch / "f") == bytes) << size;
  }
}

}  // namespace
}  // namespace shoal::checkpoint::format::shard_writer_test
