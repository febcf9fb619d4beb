#include "shoal/data/shard.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>

#include "shoal/base/error.h"
#include "tests/data/folder.h"

namespace shoal::data::shard_test {
namespace {

std::string write_shard(const Folder& folder, std::uint32_t token_bytes) {
  ShardWriter writer;
  writer.add(std::vector<std::uint32_t>{1, 2, 3, 0}, 10);
  writer.add(std::vector<std::uint32_t>{0}, 1);
  writer.add(std::vector<std::uint32_t>{65535, 4, 0}, 5);
  const std::string path = folder / fmt::format("shard{}", token_bytes);
  writer.write(path, token_bytes, 0x1234, 0x5678);
  return path;
}

TEST(Shard, HoldsWhatWasWritten) {
  const Folder folder;
  for (const std::uint32_t token_bytes : {2u, 4u}) {
    const TokenShard shard(write_shard(folder, token_bytes), true);
    EXPECT_EQ(shard.header().tokens, 8u);
    EXPECT_EQ(shard.header().documents, 3u);
    EXPECT_EQ(shard.header().text_bytes, 16u);
    EXPECT_EQ(shard.header().fingerprint, 0x1234u);
    EXPECT_EQ(std::vector(shard.document_tokens().begin(), shard.document_tokens().end()),
              (std::vector<std::uint64_t>{0, 4, 5, 8}));
    EXPECT_EQ(std::vector(shard.document_bytes().begin(), shard.document_bytes().end()),
              (std::vector<std::uint64_t>{0, 10, 11, 16}));
    std::vector<std::int64_t> tokens(8);
    shard.copy(0, std::span(tokens));
    EXPECT_EQ(tokens, (std::vector<std::int64_t>{1, 2, 3, 0, 0, 65535, 4, 0}));
    std::vector<std::uint32_t> middle(3);
    shard.copy(4, std::span(middle));
    EXPECT_EQ(middle, (std::vector<std::uint32_t>{0, 65535, 4}));
    shard.copy(5, std::span(middle));
    EXPECT_THROW(shard.copy(6, std::span(middle)), Error);
    EXPECT_THROW(shard.copy(9, std::span(middle).first(0)), Error);
    std::vector<std::int64_t> last(3);
    shard.copy(5, std::span(last));
    EXPECT_EQ(last, (std::vector<std::int64_t>{65535, 4, 0}));
    EXPECT_THROW(shard.copy(6, std::span(last)), Error);
    EXPECT_THROW(shard.copy(9, std::span(last).first(0)), Error);
  }
}

TEST(Shard, IsTheDocumentedLayout) {
  // Independent of the reader: header 64, two tables of 4 x u64, 8 tokens of u16.
  const Folder folder;
  const std::string bytes = content(write_shard(folder, 2));
  ASSERT_EQ(bytes.size(), 64u + 2 * 4 * 8 + 8 * 2);
  EXPECT_EQ(bytes.substr(0, 8), "SHOALTOK");
  EXPECT_EQ(bytes.substr(8, 8), std::string("\1\0\0\0\2\0\0\0", 8));
  EXPECT_EQ(bytes.substr(64 + 64 + 8, 4), std::string("\0\0\xff\xff", 4));
}

/// Every kind of damage is found and names the file.
TEST(Shard, RefusesDamage) {
  const Folder folder;
  const std::string good = content(write_shard(folder, 2));
  const auto refuses = [&](std::string bytes, const std::string& words) {
    const std::string path = folder.write("damaged", bytes);
    try {
      TokenShard shard(path, true);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refuses("", "less than a header");
  refuses(good.substr(0, 63), "less than a header");
  refuses(good.substr(0, 64), "header promises");
  refuses(good.substr(0, good.size() - 1), "header promises");
  refuses(good + "x", "header promises");
  refuses("x" + good.substr(1), "not a token shard");
  // One flipped bit anywhere is noticed.
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    refuses(flipped, "damaged");
  }
  EXPECT_THROW(TokenShard(folder / "absent", true), Error);
}

/// `bytes` with the checksums that then belong to them: only what these cannot catch is left to
/// find.
std::string sealed(std::string bytes) {
  const auto put = [&](std::size_t at, std::uint32_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  };
  put(offsetof(ShardHeader, body_crc32), crc32(std::string_view(bytes).substr(64)));
  put(offsetof(ShardHeader, header_crc32), crc32(std::string_view(bytes).substr(0, 60)));
  return bytes;
}

TEST(Shard, RefusesWhatNoChecksumShows) {
  const Folder folder;
  const std::string good = content(write_shard(folder, 2));
  const auto refuses = [&](const std::function<void(std::string&)>& change,
                           const std::string& words) {
    std::string bytes = good;
    change(bytes);
    const std::string path = folder.write("changed", sealed(bytes));
    try {
      TokenShard shard(path, true);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  EXPECT_NO_THROW(TokenShard(folder.write("same", sealed(good)), true));
  const auto set = [](std::size_t at, std::uint64_t value) {
    return [=](std::string& bytes) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  };
  refuses([](std::string& bytes) { bytes[0] = 'X'; }, "not a token shard");
  refuses([](std::string& bytes) { bytes[8] = 2; }, "format version 2; this program reads 1");
  refuses([](std::string& bytes) { bytes[12] = 3; }, "tokens of 3 bytes");
  // One more document would be none at all, and 40 tokens of two bytes the rest of the file.
  refuses(
      [&](std::string& bytes) {
        set(offsetof(ShardHeader, documents), ~std::uint64_t{0})(bytes);
        set(offsetof(ShardHeader, tokens), (good.size() - 64) / 2)(bytes);
      },
      "header promises");
  refuses(set(offsetof(ShardHeader, tokens), 9), "header promises");
  const std::size_t tokens = 64;
  const std::size_t text = 64 + 4 * 8;
  for (const std::size_t table : {tokens, text}) {
    refuses(set(table, 1), "table of documents is not in order");
    refuses(set(table + 8, 100), "table of documents is not in order");
    refuses(set(table + 24, 100), "table of documents is not in order");
  }
}

TEST(Shard, TheChecksumOfTheBodyIsComparedOnDemand) {
  const Folder folder;
  std::string bytes = content(write_shard(folder, 4));
  bytes.back() = 1;
  const std::string path = folder.write("changed", bytes);
  EXPECT_THROW(TokenShard(path, true), Error);
  EXPECT_NO_THROW(TokenShard(path, false));
}

TEST(Shard, AWriterBeginsAnewAfterWriting) {
  const Folder folder;
  ShardWriter writer;
  EXPECT_TRUE(writer.empty());
  EXPECT_THROW(writer.write(folder / "none", 2, 0, 0), Error);
  writer.add(std::vector<std::uint32_t>{5, 6}, 3);
  EXPECT_FALSE(writer.empty());
  EXPECT_EQ(writer.tokens(), 2u);
  EXPECT_THROW(writer.write(folder / "none", 3, 0, 0), Error);
  const ShardHeader header = writer.write(folder / "first", 4, 7, 8);
  EXPECT_EQ(header.tokens, 2u);
  EXPECT_EQ(header.documents, 1u);
  EXPECT_EQ(header.text_bytes, 3u);
  EXPECT_EQ(header.tokenizer_crc32, 8u);
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.tokens(), 0u);
}

}  // namespace
}  // namespace shoal::data::shard_test
