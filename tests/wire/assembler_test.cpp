// Chunks that no sender of ours writes, at the limits of what is allowed, and memory that a sink
// has named and takes back.
#include "shoal/wire/assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/chunk_header.h"

namespace shoal::wire::assembler_test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kChunk = Assembler::kChunkBytes;

Bytes chunk(Stream stream, std::uint64_t total, std::size_t length, int value = 1) {
  const ChunkHeader header{
      .length = static_cast<std::uint32_t>(length), .stream = stream, .total = total};
  Bytes bytes(sizeof header + length, static_cast<std::byte>(value));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

/// Places every byte in memory of its own, and counts what arrives with memory and without.
struct Placing final : ChunkSink {
  explicit Placing(std::size_t bytes) : memory(bytes) {}
  std::byte* place(Stream, std::uint64_t, std::uint64_t offset, std::size_t) override {
    return memory.data() + offset;
  }
  void arrived(Stream, ReceivedChunk chunk, std::size_t) override {
    chunk.data() ? ++elsewhere : ++placed;
    last = std::move(chunk);
  }
  Bytes memory;
  int placed = 0;
  int elsewhere = 0;
  ReceivedChunk last;
};

/// What `assembler` says to the bytes; empty when it takes them.
std::string refusal(Assembler& assembler, const Bytes& bytes) {
  try {
    assembler.feed(bytes, [](Stream, Bytes) {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.what();
  }
  return "";
}

TEST(Assembler, RefusesWhatNoSenderOfOursWrites) {
  const auto refused = [](const Bytes& first, const Bytes& second = {}) {
    Assembler assembler(3 * kChunk);
    const std::string text = refusal(assembler, first);
    return text.empty() && !second.empty() ? refusal(assembler, second) : text;
  };
  Bytes foreign = chunk({1, 1}, 4, 4);
  foreign[0] ^= std::byte{1};
  EXPECT_THAT(refused(foreign), HasSubstr("not ours"));
  EXPECT_EQ(refused(chunk({1, 1}, 3 * kChunk, kChunk)), "");
  EXPECT_THAT(refused(chunk({1, 1}, 3 * kChunk + 1, kChunk)), HasSubstr("too long"));
  EXPECT_THAT(refused(chunk({1, 1}, 2 * kChunk, kChunk + 1)), HasSubstr("too long"));
  EXPECT_THAT(refused(chunk({1, 1}, 10, 9)), HasSubstr("not cut as ours are"));
  EXPECT_THAT(refused(chunk({1, 1}, 10, 11)), HasSubstr("not cut as ours are"));
  EXPECT_THAT(refused(chunk({1, 1}, 2 * kChunk, kChunk), chunk({1, 1}, 2 * kChunk, kChunk - 1)),
              HasSubstr("not cut as ours are"));
  EXPECT_THAT(refused(chunk({1, 1}, 2 * kChunk, kChunk), chunk({1, 1}, 2 * kChunk - 1, kChunk - 1)),
              HasSubstr("another length than was announced"));
  EXPECT_EQ(refused(chunk({1, 1}, 2 * kChunk, kChunk), chunk({1, 1}, 2 * kChunk, kChunk)), "");
  EXPECT_EQ(refused(chunk({1, 1}, 2 * kChunk, kChunk), chunk({1, 2}, 5, 5)), "")
      << "of another stream";
}

// Streams of which a part has arrived are bounded; their rests, and whole messages of others, pass
// all the same.
TEST(Assembler, KeepsABoundedNumberOfOpenStreams) {
  Assembler assembler;
  Placing sink(2 * kChunk);
  const auto begin = [&](std::uint64_t stream) {
    const ChunkHeader header{.length = kChunk, .stream = {1, stream}, .total = kChunk + 1};
    std::memcpy(assembler.wanted().data(), &header, sizeof header);
    assembler.took(sizeof header, sink);
    assembler.took(kChunk, sink);  // the bytes themselves play no part
  };
  for (std::uint64_t s = 0; s < Assembler::kMaxOpenStreams; ++s) begin(s);
  assembler.feed(chunk({2, 0}, 3, 3), sink);
  assembler.feed(chunk({1, 0}, kChunk + 1, 1), sink);
  begin(5000);  // there is room for one again
  try {
    begin(5001);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("too many streams"));
  }
}

TEST(Assembler, WritesWhereTheSinkSays) {
  Assembler assembler;
  Placing sink(kChunk + 5);
  assembler.feed(chunk({1, 1}, kChunk + 5, kChunk, 1), sink);
  EXPECT_EQ(sink.last.offset(), 0u);
  assembler.feed(chunk({1, 1}, kChunk + 5, 5, 2), sink);
  EXPECT_EQ(sink.last.offset(), kChunk);
  EXPECT_EQ(sink.last.total(), kChunk + 5);
  EXPECT_EQ(sink.placed, 2);
  EXPECT_EQ(sink.elsewhere, 0);
  Bytes want(kChunk, std::byte{1});
  want.resize(kChunk + 5, std::byte{2});
  EXPECT_EQ(sink.memory, want);
}

// The caller's memory may be gone: not a byte is written there any more.
TEST(Assembler, ForgetsTheMemoryOfAStreamOrOfAll) {
  const Bytes bytes = chunk({1, 1}, 100, 100, 3);
  const std::size_t half = Assembler::kHeaderBytes + 50;
  const auto run = [&](std::optional<Stream> forgotten) {
    Assembler assembler;
    Placing sink(100);
    assembler.feed(std::span(bytes).first(half), sink);
    assembler.forget_places(forgotten);
    assembler.feed(std::span(bytes).subspan(half), sink);
    const auto written = std::count(sink.memory.begin(), sink.memory.end(), std::byte{3});
    return std::pair(static_cast<int>(written), sink.placed);
  };
  EXPECT_EQ(run(std::nullopt), std::pair(50, 0));
  EXPECT_EQ(run(Stream{1, 1}), std::pair(50, 0));
  EXPECT_EQ(run(Stream{1, 2}), std::pair(100, 1)) << "memory of another stream";
}

TEST(Assembler, IsReadyForTheNextChunkAfterOneItRefused) {
  Assembler assembler;
  EXPECT_NE(refusal(assembler, chunk({1, 1}, 10, 9)), "");
  EXPECT_FALSE(assembler.within_chunk());
  EXPECT_EQ(assembler.wanted().size(), Assembler::kHeaderBytes);
}

// What was given back is not freed: the C library would write to it.
TEST(ChunkPool, GivesOutAgainWhatWasGivenBack) {
  const auto pool = std::make_shared<ChunkPool>(1000);
  const Bytes mark(1000, std::byte{7});
  std::byte* first = nullptr;
  {
    const ReceivedChunk chunk(pool, 1000, 0, 1000);
    first = chunk.data();
    std::memcpy(first, mark.data(), mark.size());
  }
  {
    const ReceivedChunk small(pool, 250, 0, 250);
    EXPECT_NE(small.data(), first) << "a whole block would be wasted on it";
  }
  const ReceivedChunk chunk(pool, 251, 0, 251);
  EXPECT_EQ(chunk.data(), first);
  EXPECT_EQ(std::memcmp(first, mark.data(), mark.size()), 0);
  EXPECT_NE(ReceivedChunk(pool, 1000, 0, 1000).data(), first);
}

TEST(ReceivedChunk, MovesWithItsMemory) {
  const auto pool = std::make_shared<ChunkPool>(64);
  ReceivedChunk first(pool, 100, 36, 64);
  const std::byte* memory = first.data();
  ReceivedChunk second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.total(), 100u);
  EXPECT_EQ(second.offset(), 36u);
  EXPECT_EQ(second.bytes(), 64u);
}

}  // namespace
}  // namespace shoal::wire::assembler_test
