// Messages over several connections that arrive in any order, against what was sent; and pieces
// that no sender of ours writes.
#include "shoal/wire/gathering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/chunk_header.h"
#include "shoal/wire/claims.h"

namespace shoal::wire::gathering_test {
namespace {

using testing::HasSubstr;
using Carries = Assembler::Carries;
constexpr std::size_t kChunk = Assembler::kChunkBytes;
constexpr std::size_t kPiece = Assembler::kPieceBytes;
constexpr std::uint64_t kMost = std::uint64_t{1} << 40;

/// Byte `at` of message `number` of a stream.
std::byte value(std::uint64_t stream, std::size_t number, std::size_t at) {
  return static_cast<std::byte>((stream * 31 + number * 7 + at * 3 + (at >> 16)) & 0xff);
}

/// Takes chunks as an inbox does, some of them in memory that was posted, and compares them with
/// what was sent.
class Comparing final : public ChunkSink {
 public:
  explicit Comparing(std::map<Stream, std::vector<std::size_t>> sent) : sent_(std::move(sent)) {}

  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    Reading& reading = reading_[stream];
    if (!posts(stream, reading.number)) return nullptr;
    EXPECT_EQ(total, expected(stream)) << "memory was posted for another message";
    reading.memory.resize(total);
    ++placed;
    return reading.memory.data() + offset;
  }

  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    Reading& reading = reading_[stream];
    ASSERT_EQ(chunk.total(), expected(stream));
    ASSERT_EQ(chunk.offset(), reading.at);
    ASSERT_EQ(bytes, std::min(kChunk, chunk.total() - reading.at)) << "not cut as one connection";
    const std::byte* data = chunk.data() ? chunk.data() : reading.memory.data() + reading.at;
    for (std::size_t i = 0; i < bytes; ++i)
      wrong += data[i] != value(stream.sequence, reading.number, reading.at + i);
    reading.at += bytes;
    if (reading.at < chunk.total()) return;
    reading = {.number = reading.number + 1};
    ++messages;
  }

  std::size_t wrong = 0;
  std::size_t messages = 0;
  int placed = 0;

 private:
  struct Reading {
    std::size_t number = 0;
    std::size_t at = 0;
    Bytes memory;
  };
  static bool posts(Stream stream, std::size_t number) {
    return (stream.sequence + number) % 2 == 0;
  }
  std::size_t expected(Stream stream) { return sent_.at(stream).at(reading_[stream].number); }
  std::map<Stream, std::vector<std::size_t>> sent_;
  std::map<Stream, Reading> reading_;
};

Bytes bytes_of(const Claims::Chunk& chunk) {
  Bytes bytes(chunk.header.begin(), chunk.header.end());
  const Bytes& head = chunk.message->head;
  const auto begin = head.begin() + static_cast<std::ptrdiff_t>(chunk.begin);
  bytes.insert(bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(chunk.bytes));
  return bytes;
}

/// The connections as queues of bytes: which one claims next, and which one delivers how much, is
/// drawn.
void run(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  const std::size_t rails = 2 + below(7);
  Claims claims(true);
  std::map<Stream, std::vector<std::size_t>> sent;
  std::size_t messages = 0;
  for (std::uint64_t s = 1; s <= 1 + below(4); ++s) {
    for (std::size_t number = 0; number < 1 + below(5); ++number) {
      const std::size_t sizes[] = {0,
                                   40,
                                   Claims::kMostSmall,
                                   Claims::kMostSmall + 1,
                                   kPiece,
                                   3 * kPiece + 1,
                                   kChunk,
                                   2 * kChunk + kPiece + 9};
      const std::size_t bytes = sizes[below(std::size(sizes))];
      Bytes message(bytes);
      for (std::size_t i = 0; i < bytes; ++i) message[i] = value(s, number, i);
      sent[{1, s}].push_back(bytes);
      claims.send({1, s}, static_cast<int>(below(3)), std::move(message), {}, nullptr);
      ++messages;
    }
  }
  const auto pool = std::make_shared<ChunkPool>(kChunk);
  Gathering gathering(pool);
  Comparing sink(sent);
  Gathering::Messages first(gathering, sink);
  std::uint64_t pieces_received = 0;
  Gathering::Pieces others(gathering, sink, pieces_received);
  std::vector<std::deque<std::byte>> under_way(rails);
  std::vector<std::unique_ptr<Assembler>> assemblers;
  for (std::size_t r = 0; r < rails; ++r) {
    assemblers.push_back(std::make_unique<Assembler>(
        kMost, pool, r == 0 ? Carries::kMessagesAndAnnouncements : Carries::kPieces));
  }
  for (bool busy = true; busy;) {
    const std::size_t claiming = below(rails);
    const auto chunk = claims.claim(claiming == 0 ? Claims::Kind::kSmall : Claims::Kind::kPiece);
    if (chunk) {
      const Bytes bytes = bytes_of(*chunk);
      under_way[claiming].insert(under_way[claiming].end(), bytes.begin(), bytes.end());
    }
    const std::size_t r = below(rails);
    const std::size_t n = std::min(under_way[r].size(), below(2) == 0 ? below(100) : below(90000));
    const Bytes part(under_way[r].begin(), under_way[r].begin() + static_cast<std::ptrdiff_t>(n));
    under_way[r].erase(under_way[r].begin(), under_way[r].begin() + static_cast<std::ptrdiff_t>(n));
    assemblers[r]->feed(part, r == 0 ? static_cast<ChunkSink&>(first) : others);
    busy = !claims.idle();
    for (const auto& bytes : under_way) busy = busy || !bytes.empty();
  }
  EXPECT_EQ(sink.messages, messages) << "seed " << seed;
  EXPECT_EQ(sink.wrong, 0u) << "seed " << seed;
  EXPECT_TRUE(gathering.complete());
  EXPECT_EQ(gathering.held_bytes(), 0u) << "seed " << seed;
}

TEST(Gathering, AnyInterleavingGivesWhatOneConnectionWouldBring) {
  for (unsigned seed = 0; seed < 60; ++seed) run(seed);
}

/// Takes everything, in memory that the test names.
struct Taking final : ChunkSink {
  std::byte* place(Stream, std::uint64_t, std::uint64_t offset, std::size_t) override {
    return memory.empty() ? nullptr : memory.data() + offset;
  }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    order.push_back(stream.sequence);
    last_bytes = bytes;
    last = std::move(chunk);
  }
  Bytes memory;
  std::vector<std::uint64_t> order;
  std::size_t last_bytes = 0;
  ReceivedChunk last;
};

class GatheringOfThree : public testing::Test {
 protected:
  void announce(Stream stream, std::uint64_t total) {
    const ChunkHeader header{.length = 0, .stream = stream, .total = total};
    feed(0, &header, 0);
  }
  void small(Stream stream, std::uint32_t bytes) {
    const ChunkHeader header{.length = bytes, .stream = stream, .total = bytes};
    feed(0, &header, bytes);
  }
  void piece(int rail, std::uint64_t message, std::uint64_t offset, std::uint64_t total,
             std::size_t most = kPiece) {
    const PieceHeader header{
        .length = static_cast<std::uint32_t>(std::min<std::uint64_t>(kPiece, total - offset)),
        .message = message,
        .offset = offset,
        .total = total};
    feed(rail, &header, std::min<std::size_t>(most, header.length));
  }
  void feed(int rail, const void* header, std::size_t bytes) {
    Bytes all(Assembler::kHeaderBytes + bytes, std::byte{5});
    std::memcpy(all.data(), header, Assembler::kHeaderBytes);
    assemblers_[rail].feed(all, rail == 0 ? static_cast<ChunkSink&>(messages_) : pieces_);
  }
  std::string refusal(int rail, std::uint64_t message, std::uint64_t offset, std::uint64_t total) {
    try {
      piece(rail, message, offset, total);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return error.what();
    }
    return "";
  }

  std::shared_ptr<ChunkPool> pool_ = std::make_shared<ChunkPool>(kChunk);
  Gathering gathering_{pool_};
  Taking sink_;
  Gathering::Messages messages_{gathering_, sink_};
  std::uint64_t pieces_received_ = 0;
  Gathering::Pieces pieces_{gathering_, sink_, pieces_received_};
  Assembler assemblers_[3] = {Assembler(kMost, pool_, Carries::kMessagesAndAnnouncements),
                              Assembler(kMost, pool_, Carries::kPieces),
                              Assembler(kMost, pool_, Carries::kPieces)};
};

// What waits is counted, with the memory of chunks that are not complete.
TEST_F(GatheringOfThree, WhatIsBehindAMissingPieceIsHeldAndCounted) {
  announce({1, 1}, 2 * kPiece);
  small({1, 1}, 100);
  small({1, 2}, 7);
  EXPECT_EQ(sink_.order, (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(gathering_.held_bytes(), 132u);
  piece(2, 0, kPiece, 2 * kPiece);
  EXPECT_EQ(gathering_.held_bytes(), 132u + 2 * kPiece + 32);
  EXPECT_FALSE(gathering_.complete());
  piece(1, 0, 0, 2 * kPiece);
  EXPECT_EQ(sink_.order, (std::vector<std::uint64_t>{2, 1, 1}));
  EXPECT_EQ(gathering_.held_bytes(), 0u);
  EXPECT_TRUE(gathering_.complete());
}

TEST_F(GatheringOfThree, PiecesThatOvertakeTheirAnnouncementWaitForIt) {
  piece(1, 0, 0, kPiece);
  EXPECT_TRUE(sink_.order.empty());
  announce({1, 4}, kPiece);
  EXPECT_EQ(sink_.order, (std::vector<std::uint64_t>{4}));
  EXPECT_EQ(sink_.last_bytes, kPiece);
}

TEST_F(GatheringOfThree, RefusesPiecesThatNobodyWaitsFor) {
  announce({1, 1}, 2 * kPiece);
  piece(1, 0, 0, 2 * kPiece);
  EXPECT_THAT(refusal(2, 0, kPiece, 2 * kPiece + 1), HasSubstr("no message that is awaited"));
  EXPECT_THAT(refusal(2, 0, kPiece + 1, 2 * kPiece), HasSubstr("not cut as ours are"));
  EXPECT_THAT(refusal(2, 0, 2 * kPiece, 2 * kPiece), HasSubstr("not cut as ours are"));
  EXPECT_EQ(refusal(2, 0, kPiece, 2 * kPiece), "");
  piece(1, 1, 0, kPiece);
  EXPECT_THROW(announce({1, 1}, kPiece + 1), Error) << "its pieces say otherwise";
  EXPECT_THROW(announce({0, 1}, kPiece), Error) << "the transport's own messages are small";
}

// A sender that waits long for a report sends a piece again.
TEST_F(GatheringOfThree, OfAPieceThatComesTwiceTheFirstCounts) {
  sink_.memory.assign(2 * kPiece, std::byte{7});
  announce({1, 1}, 2 * kPiece);
  piece(1, 0, 0, 2 * kPiece);
  std::ranges::fill(sink_.memory, std::byte{8});
  EXPECT_EQ(refusal(2, 0, 0, 2 * kPiece), "") << "the message is not complete";
  piece(2, 0, kPiece, 2 * kPiece);
  ASSERT_EQ(sink_.order, (std::vector<std::uint64_t>{1}));
  const Bytes before = sink_.memory;
  EXPECT_EQ(refusal(1, 0, kPiece, 2 * kPiece), "") << "it is complete";
  EXPECT_EQ(sink_.memory, before) << "its memory may be the caller's again";
  EXPECT_EQ(sink_.order.size(), 1u);
  EXPECT_EQ(pieces_received_, 4u) << "a report counts all";
  EXPECT_EQ(gathering_.held_bytes(), 0u);
}

// The rest of the first copy is read when the message is passed on.
TEST_F(GatheringOfThree, APieceThatStopsInTheMiddleIsCompletedByItsCopy) {
  sink_.memory.assign(kPiece, std::byte{7});
  announce({1, 1}, kPiece);
  piece(1, 0, 0, kPiece, 1000);
  int superseded = 0;
  Gathering::Pieces pieces(gathering_, sink_, pieces_received_,
                           [&](std::uint64_t message, std::uint64_t offset) {
                             EXPECT_TRUE(sink_.order.empty()) << "before it is passed on";
                             EXPECT_EQ(assemblers_[1].arriving_piece(), std::pair(message, offset));
                             assemblers_[1].supersede_piece();
                             ++superseded;
                           });
  const PieceHeader header{.length = kPiece, .message = 0, .offset = 0, .total = kPiece};
  Bytes all(sizeof header + kPiece, std::byte{5});
  std::memcpy(all.data(), &header, sizeof header);
  assemblers_[2].feed(all, pieces);
  EXPECT_EQ(superseded, 1);
  EXPECT_EQ(sink_.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink_.memory, Bytes(kPiece, std::byte{5}));
  EXPECT_FALSE(assemblers_[1].arriving_piece()) << "nothing is lost with that connection";
  std::ranges::fill(sink_.memory, std::byte{7});
  assemblers_[1].feed(Bytes(kPiece - 1000, std::byte{6}), pieces);
  EXPECT_EQ(sink_.memory, Bytes(kPiece, std::byte{7})) << "its memory may be the caller's again";
  EXPECT_EQ(sink_.order.size(), 1u);
  EXPECT_EQ(pieces_received_, 2u);
  piece(1, 1, 0, kPiece);
  announce({1, 2}, kPiece);
  EXPECT_EQ(sink_.order, (std::vector<std::uint64_t>{1, 2})) << "that connection goes on";
}

// A piece of which a part is in the caller's memory is read to its end elsewhere.
TEST_F(GatheringOfThree, ForgottenMemoryIsNotWritten) {
  sink_.memory.assign(2 * kPiece, std::byte{7});
  announce({1, 1}, 2 * kPiece);
  piece(1, 0, 0, 2 * kPiece, 1000);
  EXPECT_FALSE(gathering_.is_placed(0, 0, Stream{1, 2}));
  ASSERT_TRUE(gathering_.is_placed(0, 0, Stream{1, 1}));
  EXPECT_EQ(assemblers_[1].placed_piece(), std::pair(std::uint64_t{0}, std::uint64_t{0}));
  assemblers_[1].forget_places();
  gathering_.forget_places(Stream{1, 1});
  const Bytes before = sink_.memory;
  const Bytes rest(kPiece - 1000, std::byte{5});
  assemblers_[1].feed(rest, pieces_);
  piece(2, 0, kPiece, 2 * kPiece);
  EXPECT_EQ(sink_.memory, before);
  EXPECT_EQ(sink_.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink_.last.bytes(), 2 * kPiece) << "it has memory of its own";
}

/// Names memory, but has none the first time.
struct OutOfMemoryOnce final : ChunkSink {
  std::byte* place(Stream, std::uint64_t, std::uint64_t offset, std::size_t) override {
    if (++asked == 1) throw std::bad_alloc();
    return memory.data() + offset;
  }
  void arrived(Stream, ReceivedChunk, std::size_t) override { ++chunks; }
  Bytes memory = Bytes(kPiece, std::byte{7});
  int asked = 0;
  int chunks = 0;
};

// What has no place is not written to that of the piece before, which may be the caller's again.
TEST_F(GatheringOfThree, APieceForWhichThereIsNoMemoryHasNoPlace) {
  sink_.memory.assign(kPiece, std::byte{7});
  announce({1, 1}, kPiece);
  piece(1, 0, 0, kPiece);
  ASSERT_EQ(sink_.order.size(), 1u);
  OutOfMemoryOnce sink;
  Gathering::Pieces pieces(gathering_, sink, pieces_received_);
  announce({1, 2}, kPiece);
  const PieceHeader header{.length = kPiece, .message = 1, .offset = 0, .total = kPiece};
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  EXPECT_THROW(assemblers_[1].feed({bytes, sizeof header}, pieces), std::bad_alloc);
  EXPECT_EQ(assemblers_[1].wanted().size(), Assembler::kHeaderBytes) << "the next header";
  EXPECT_EQ(gathering_.held_bytes(), 0u);
  Bytes all(sizeof header + kPiece, std::byte{5});
  std::memcpy(all.data(), &header, sizeof header);
  assemblers_[2].feed(all, pieces);
  EXPECT_EQ(sink.chunks, 1) << "it may come again";
  EXPECT_EQ(sink.memory, Bytes(kPiece, std::byte{5}));
  EXPECT_TRUE(gathering_.complete());
}

}  // namespace
}  // namespace shoal::wire::gathering_test
