// What a link counts, in which order it sends, and when it lets the caller's memory go.
#include "shoal/wire/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"

namespace shoal::wire::link_test {
namespace {

constexpr std::size_t kHeader = Assembler::kHeaderBytes;
constexpr std::size_t kChunk = Assembler::kChunkBytes;

std::pair<Link, Link> two_ends() {
  auto [left, right] = socket_pair();
  return {Link(std::move(left)), Link(std::move(right))};
}

Released flag() { return std::make_shared<std::atomic<bool>>(false); }

/// Moves everything from `a` to `b`; the sequence numbers of the messages as they are complete.
std::vector<std::uint64_t> arrivals(Link& a, Link& b) {
  std::vector<std::uint64_t> order;
  for (bool done = false; !done;) {
    done = a.flush();
    EXPECT_TRUE(b.receive([&](Stream stream, Bytes) { order.push_back(stream.sequence); }));
  }
  return order;
}

TEST(Link, CountsEveryByteAndEveryRelease) {
  auto [a, b] = two_ends();
  const Bytes body(2 * kChunk, std::byte{1});
  const Released released = flag();
  a.send({1, 1}, 0, Bytes(10));
  a.send({1, 2}, 0, Bytes(5), body, released);  // three chunks
  a.send({1, 3}, 0, {});
  EXPECT_FALSE(a.idle());
  EXPECT_FALSE(a.idle({1, 2}));
  EXPECT_TRUE(a.idle({1, 4}));
  EXPECT_EQ(arrivals(a, b), (std::vector<std::uint64_t>{1, 3, 2}));
  EXPECT_TRUE(a.idle());
  EXPECT_TRUE(a.idle({1, 2}));
  EXPECT_EQ(a.bytes_sent(), 10 + 5 + body.size() + 5 * kHeader);
  EXPECT_EQ(b.bytes_received(), a.bytes_sent());
  EXPECT_EQ(a.releases(), 1u) << "the others had no memory of the caller";
  EXPECT_TRUE(*released);
}

// Streams take turns chunk by chunk.
TEST(Link, EqualStreamsTakeTurns) {
  auto [a, b] = two_ends();
  a.send({1, 1}, 0, Bytes(4 * kChunk));
  a.send({1, 2}, 0, Bytes(3 * kChunk));
  a.send({1, 3}, 0, Bytes(1 * kChunk));
  a.send({1, 4}, 0, Bytes(2 * kChunk));
  EXPECT_EQ(arrivals(a, b), (std::vector<std::uint64_t>{3, 4, 2, 1}));
}

// A message behind others of its stream takes them along.
TEST(Link, AStreamIsAsUrgentAsItsMostUrgentMessage) {
  auto [a, b] = two_ends();
  a.send({1, 1}, 1, Bytes(2 * kChunk));
  a.send({1, 2}, 0, Bytes(2 * kChunk));
  a.send({1, 2}, 5, Bytes(10));
  a.send({1, 2}, 0, Bytes(10));
  EXPECT_EQ(arrivals(a, b), (std::vector<std::uint64_t>{2, 2, 2, 1}));
}

TEST(Link, LetsAllMemoryGoAtItsEnd) {
  const Bytes body(8 << 20, std::byte{1});
  const Released under_way = flag();
  const Released queued = flag();
  const Released last_chunks = flag();
  {
    auto [a, b] = two_ends();
    a.send({1, 1}, 0, {}, std::span(body).first(400 << 10), last_chunks);
    EXPECT_FALSE(a.flush()) << "all of it is in chunks, and the kernel has not taken them";
    EXPECT_FALSE(*last_chunks);
  }
  EXPECT_TRUE(*last_chunks);
  {
    auto [a, b] = two_ends();
    a.send({1, 1}, 0, {}, body, under_way);
    EXPECT_FALSE(a.flush()) << "more than the kernel takes";
    a.send({1, 2}, 0, {}, body, queued);
    EXPECT_FALSE(*under_way);
  }
  EXPECT_TRUE(*under_way);
  EXPECT_TRUE(*queued);
}

// The receiver counts the bytes of the chunk that is under way, so it arrives whole; the rest of
// the message does not.
TEST(Link, AChunkThatIsUnderWayArrivesWholeWhenAllIsDropped) {
  auto [a, b] = two_ends();
  Bytes body(8 << 20, std::byte{1});
  const Released released = flag();
  a.send({1, 1}, 0, {}, body, released);
  EXPECT_FALSE(a.flush());
  const std::uint64_t before = a.bytes_sent();
  a.drop_all();
  EXPECT_TRUE(*released);
  EXPECT_EQ(a.releases(), 1u);
  body.assign(body.size(), std::byte{2});
  a.send({0, 7}, 0, Bytes(3));
  EXPECT_EQ(arrivals(a, b), (std::vector<std::uint64_t>{7}));
  EXPECT_TRUE(a.idle());
  EXPECT_LT(a.bytes_sent(), before + kChunk + 3 + 2 * kHeader);
  EXPECT_EQ((b.bytes_received() - 3 - kHeader) % (kChunk + kHeader), 0u);
}

TEST(Link, AnEndThatIsGoneIsAnError) {
  auto [left, right] = socket_pair();
  Link a(std::move(left));
  right = Descriptor();
  EXPECT_FALSE(a.receive([](Stream, Bytes) {}));
  a.send({1, 1}, 0, Bytes(3));
  try {
    a.flush();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  }
}

/// Takes every chunk and keeps the number of those that were the last of their message.
class Counting final : public ChunkSink {
 public:
  std::byte* place(Stream, std::uint64_t, std::uint64_t, std::size_t) override { return nullptr; }
  void arrived(Stream, ReceivedChunk chunk, std::size_t bytes) override {
    if (chunk.offset() + bytes == chunk.total()) ++messages;
  }
  std::size_t messages = 0;
};

// A receiver refuses more open messages than it keeps an account of, so a sender begins no more.
TEST(Link, ManyLargeMessagesAreNotAllBegunAtOnce) {
  constexpr std::size_t kMessages = 4500;
  auto [a, b] = two_ends();
  const Bytes body(kChunk + 1, std::byte{1});
  for (std::uint64_t i = 0; i < kMessages; ++i) a.send({1, i}, 0, {}, body, flag());
  Counting sink;
  for (const Deadline end = soon(); sink.messages < kMessages && !end.passed();) {
    a.flush();
    ASSERT_TRUE(b.receive(sink));
  }
  EXPECT_EQ(sink.messages, kMessages);
  EXPECT_TRUE(a.idle());
}

}  // namespace
}  // namespace shoal::wire::link_test
