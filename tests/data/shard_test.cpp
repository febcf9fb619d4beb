#include "shoal/data/shard.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "shoal/base/error.h"
#include "tests/data/folder.h"

namespace shoal::data {
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
    EXPECT_THROW(shard.copy(6, std::span(middle)), Error);
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

}  // namespace
}  // namespace shoal::data
