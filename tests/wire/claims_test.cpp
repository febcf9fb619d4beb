// In which order chunks are claimed, by which connections, and when memory is released.
#include "shoal/wire/claims.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "shoal/wire/chunk_header.h"

namespace shoal::wire::claims_test {
namespace {

using Kind = Claims::Kind;
constexpr std::size_t kChunk = Assembler::kChunkBytes;
constexpr std::size_t kPiece = Assembler::kPieceBytes;
constexpr Stream kFirst{1, 1};
constexpr Stream kSecond{1, 2};

Released flag() { return std::make_shared<std::atomic<bool>>(false); }

void send(Claims& claims, Stream stream, std::size_t bytes, int priority = 0) {
  claims.send(stream, priority, Bytes(bytes), {}, nullptr);
}

ChunkHeader header_of(const Claims::Chunk& chunk) {
  ChunkHeader header;
  std::memcpy(&header, chunk.header.data(), sizeof header);
  return header;
}

PieceHeader piece_of(const Claims::Chunk& chunk) {
  PieceHeader header;
  std::memcpy(&header, chunk.header.data(), sizeof header);
  return header;
}

TEST(Claims, OneConnectionClaimsEverythingInChunks) {
  Claims claims;
  send(claims, kFirst, kChunk + 5);
  const auto whole = claims.claim(Kind::kAny);
  ASSERT_TRUE(whole);
  EXPECT_EQ(header_of(*whole).magic, ChunkHeader{}.magic);
  EXPECT_EQ(header_of(*whole).stream, kFirst);
  EXPECT_EQ(header_of(*whole).length, kChunk);
  EXPECT_EQ(header_of(*whole).total, kChunk + 5);
  const auto rest = claims.claim(Kind::kAny);
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->begin, kChunk);
  EXPECT_EQ(rest->bytes, 5u);
  EXPECT_FALSE(claims.claim(Kind::kAny));
  EXPECT_TRUE(claims.idle());
}

// The bytes of a large message go to the others, and what is behind it in its stream waits.
TEST(Claims, OfSeveralConnectionsTheFirstClaimsSmallMessagesAndAnnouncesLargeOnes) {
  Claims claims(true);
  send(claims, kFirst, Claims::kMostSmall);
  send(claims, kFirst, kPiece + 7);
  send(claims, kFirst, 9);
  EXPECT_FALSE(claims.claim(Kind::kPiece)) << "nothing is announced";
  const auto small = claims.claim(Kind::kSmall);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->bytes, Claims::kMostSmall);
  const auto announcement = claims.claim(Kind::kSmall);
  ASSERT_TRUE(announcement);
  EXPECT_EQ(announcement->bytes, 0u);
  EXPECT_EQ(header_of(*announcement).length, 0u);
  EXPECT_EQ(header_of(*announcement).total, kPiece + 7);
  EXPECT_FALSE(claims.claim(Kind::kSmall));
  const auto piece = claims.claim(Kind::kPiece);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece_of(*piece).magic, PieceHeader{}.magic);
  EXPECT_EQ(piece_of(*piece).message, 0u);
  EXPECT_EQ(piece_of(*piece).length, kPiece);
  const auto rest = claims.claim(Kind::kPiece);
  ASSERT_TRUE(rest);
  EXPECT_EQ(piece_of(*rest).offset, kPiece);
  EXPECT_EQ(piece_of(*rest).length, 7u);
  EXPECT_EQ(claims.claim(Kind::kSmall)->bytes, 9u);
  send(claims, kSecond, Claims::kMostSmall + 1);
  EXPECT_TRUE(claims.claim(Kind::kSmall));
  EXPECT_EQ(piece_of(*claims.claim(Kind::kPiece)).message, 1u);
  EXPECT_EQ(piece_of(*claims.claim(Kind::kPiece)).length, 1u);
  EXPECT_TRUE(claims.idle());
}

TEST(Claims, MessagesOfTheTransportItselfAreNeverLarge) {
  Claims claims(true);
  send(claims, {0, 2}, kPiece);
  EXPECT_EQ(claims.claim(Kind::kSmall)->bytes, kPiece);
}

TEST(Claims, AnUrgentLargeMessageOvertakesAnotherBetweenPieces) {
  Claims claims(true);
  send(claims, kFirst, 4 * kPiece);
  claims.claim(Kind::kSmall);
  EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kFirst);
  send(claims, kSecond, 2 * kPiece, 9);
  claims.claim(Kind::kSmall);
  EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kSecond);
  EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kSecond);
  EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kFirst);
}

// Connections write pieces in any order, so the last piece may be written first.
TEST(Claims, MemoryIsReleasedWhenEveryPieceIsWritten) {
  Claims claims(true);
  const Bytes body(3 * kPiece);
  const Released released = flag();
  claims.send(kFirst, 0, {}, body, released);
  std::vector<Claims::Chunk> chunks;
  chunks.push_back(*claims.claim(Kind::kSmall));
  claims.wrote(chunks[0]);
  EXPECT_FALSE(*released);
  while (auto piece = claims.claim(Kind::kPiece)) chunks.push_back(*piece);
  ASSERT_EQ(chunks.size(), 4u);
  claims.wrote(chunks[3]);
  claims.wrote(chunks[1]);
  EXPECT_FALSE(*released);
  claims.wrote(chunks[2]);
  EXPECT_TRUE(*released);
  EXPECT_EQ(claims.releases(), 1u);
}

// The one that waits may lie in memory that the caller has again.
TEST(Claims, ACopyOfWhatIsDeliveredIsNotClaimed) {
  Claims claims(true);
  const Bytes body(2 * kPiece);
  const Released released = flag();
  claims.send(kFirst, 0, {}, body, released);
  claims.wrote(*claims.claim(Kind::kSmall));
  auto first = *claims.claim(Kind::kPiece);
  auto second = *claims.claim(Kind::kPiece);
  claims.take_back({first.move(), second.move()});
  EXPECT_TRUE(claims.has_pieces());
  claims.wrote(first);
  const auto copy = claims.claim(Kind::kPiece);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->begin, kPiece);
  EXPECT_FALSE(*released);
  claims.wrote(*copy);
  EXPECT_TRUE(*released);
  EXPECT_TRUE(claims.idle());
}

// A receiver that has paused gets no chunk but those that it asks for, and of each chunk that was
// begun the rest, without which it could use none of it.
TEST(Claims, APausedReceiverGetsWholeChunksOfWhatItAsksFor) {
  Claims claims(true);
  send(claims, kFirst, 3 * kChunk);
  send(claims, kSecond, 3 * kChunk);
  claims.claim(Kind::kSmall);
  claims.claim(Kind::kSmall);
  EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kFirst);
  claims.obey({.what = FlowMessage::kPause});
  constexpr std::size_t kPieces = kChunk / kPiece;
  for (std::size_t i = 1; i < kPieces; ++i)
    EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kFirst) << i;
  EXPECT_FALSE(claims.claim(Kind::kPiece));
  // One byte asks for a chunk.
  claims.obey({.what = FlowMessage::kAsk, .stream = kSecond, .bytes = 1});
  for (std::size_t i = 0; i < kPieces; ++i)
    EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kSecond) << i;
  EXPECT_FALSE(claims.claim(Kind::kPiece));
  // What the pieces of a chunk cost is what the receiver counts for one chunk.
  claims.obey({.what = FlowMessage::kAsk, .stream = kSecond, .bytes = window_cost(kChunk) + 1});
  for (std::size_t i = 0; i < 2 * kPieces; ++i)
    EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kSecond) << i;
  EXPECT_FALSE(claims.claim(Kind::kPiece));
  claims.obey({.what = FlowMessage::kResume});
  for (std::size_t i = 0; i < 2 * kPieces; ++i)
    EXPECT_EQ(claims.claim(Kind::kPiece)->stream, kFirst) << i;
  EXPECT_TRUE(claims.idle());
}

TEST(Claims, OfManyLargeMessagesABoundedNumberIsAnnounced) {
  Claims claims(true);
  for (std::uint64_t i = 0; i < Claims::kMostBegun + 10; ++i) send(claims, {2, i}, kPiece + 1);
  std::size_t announced = 0;
  while (claims.claim(Kind::kSmall)) ++announced;
  EXPECT_EQ(announced, Claims::kMostBegun);
  // Streams take turns.
  for (std::size_t i = 0; i < Claims::kMostBegun; ++i) EXPECT_TRUE(claims.claim(Kind::kPiece));
  EXPECT_FALSE(claims.claim(Kind::kSmall));
  EXPECT_TRUE(claims.claim(Kind::kPiece));
  EXPECT_TRUE(claims.claim(Kind::kSmall)) << "one is claimed, so another may begin";
  EXPECT_FALSE(claims.claim(Kind::kSmall));
}

TEST(Claims, WhatIsDroppedIsReleasedAndWhatIsAdoptedIsCopied) {
  Claims claims(true);
  Bytes body(2 * kPiece, std::byte{1});
  const Released adopted = flag();
  const Released dropped = flag();
  claims.send(kFirst, 0, {}, body, adopted);
  claims.claim(Kind::kSmall);
  claims.adopt(kFirst);
  EXPECT_TRUE(*adopted);
  body.assign(body.size(), std::byte{2});
  const auto piece = claims.claim(Kind::kPiece);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->message->body[0], std::byte{1});
  claims.send(kSecond, 0, {}, body, dropped);
  send(claims, {0, 1}, 3);
  claims.drop_all();
  EXPECT_TRUE(*dropped);
  EXPECT_FALSE(claims.claim(Kind::kPiece));
  EXPECT_EQ(claims.claim(Kind::kSmall)->stream, (Stream{0, 1}));
  EXPECT_TRUE(claims.idle());
}

}  // namespace
}  // namespace shoal::wire::claims_test
