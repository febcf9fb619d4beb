// Several connections between two ranks: which of them are admitted, what the loss of one means,
// and words that overtake data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/wire/chunk_header.h"
#include "shoal/wire/error_bytes.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"

namespace shoal::wire::rails_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr std::size_t kPiece = Assembler::kPieceBytes;

/// The two ends of a link of several connections within this process.
std::pair<Link, Link> two_ends(int rails) {
  auto [left, right] = socket_pair();
  std::pair<Link, Link> ends(Link(std::move(left), 1 << 30, nullptr, rails),
                             Link(std::move(right), 1 << 30, nullptr, rails));
  for (int rail = 1; rail < rails; ++rail) {
    auto [a, b] = socket_pair();
    ends.first.add_rail(rail, std::move(a));
    ends.second.add_rail(rail, std::move(b));
  }
  return ends;
}

/// Counts the bytes of each message as they come.
struct Counting final : ChunkSink {
  std::byte* place(Stream, std::uint64_t, std::uint64_t, std::size_t) override { return nullptr; }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    if (chunk.offset() + bytes == chunk.total()) order.push_back(stream.sequence);
    for (std::size_t i = 0; i < bytes; i += 1000) wrong += chunk.data()[i] != std::byte{1};
  }
  std::vector<std::uint64_t> order;
  std::size_t wrong = 0;
};

// Nothing is read, so every rail is as full as it gets.
TEST(Rails, SmallMessagesDoNotWaitBehindLargeOnes) {
  auto [a, b] = two_ends(3);
  const Bytes body(64 << 20, std::byte{1});
  a.send({1, 1}, 9, {}, body, nullptr);
  EXPECT_FALSE(a.flush());
  a.send({1, 2}, 0, Bytes(100, std::byte{1}));
  a.flush();
  Counting sink;
  EXPECT_TRUE(b.receive(0, sink));
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{2}));
}

// One rail is read only when the others have nothing more.
TEST(Rails, ARailThatIsStuckHoldsLittle) {
  auto [a, b] = two_ends(4);
  const Bytes body(32 << 20, std::byte{1});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  a.send({1, 1}, 0, {}, body, released);
  Counting sink;
  for (std::uint64_t before = 1; before != b.bytes_received();) {
    before = b.bytes_received();
    for (int rail = 0; rail < 3; ++rail) {
      a.writable(rail);
      a.flush();
      b.receive(rail, sink);
    }
  }
  EXPECT_GT(b.bytes_received(), 30u << 20);
  EXPECT_FALSE(*released);
  EXPECT_TRUE(sink.order.empty());
  EXPECT_FALSE(b.complete());
  for (const Deadline end = soon(); !b.complete() && !end.passed();) {
    a.writable(3);
    a.flush();
    for (int rail = 0; rail < 4; ++rail) b.receive(rail, sink);
  }
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_TRUE(*released);
  EXPECT_TRUE(a.idle());
}

// Whoever sends is told when a full socket has room again, and never about one that is not full.
TEST(Rails, ARailWithRoomHasWorkOrThereIsNone) {
  auto [a, b] = two_ends(2);
  const Bytes body(8 << 20, std::byte{1});
  a.send({1, 1}, 0, {}, body, nullptr);
  a.flush();
  Counting sink;
  for (const Deadline end = soon(); !a.idle() && !end.passed();) {
    ASSERT_TRUE(a.blocked(1));
    for (int rail = 0; rail < 2; ++rail) b.receive(rail, sink);
    a.writable(1);
    a.flush();
  }
  for (const Deadline end = soon(); !b.complete() && !end.passed();)
    for (int rail = 0; rail < 2; ++rail) b.receive(rail, sink);
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink.wrong, 0u);
}

TEST(Rails, PiecesThatAreUnderWayOnSeveralArriveWholeWhenAllIsDropped) {
  auto [a, b] = two_ends(4);
  Bytes body(16 << 20, std::byte{1});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  a.send({1, 1}, 0, {}, body, released);
  EXPECT_FALSE(a.flush());
  a.drop_all();
  EXPECT_TRUE(*released);
  body.assign(body.size(), std::byte{2});
  a.send({0, 7}, 0, Bytes(3, std::byte{1}));
  Counting sink;
  for (const Deadline end = soon(); !a.idle() && !end.passed();) {
    for (int rail = 0; rail < 4; ++rail) {
      a.writable(rail);
      b.receive(rail, sink);
    }
    a.flush();
  }
  for (int i = 0; i < 200; ++i)
    for (int rail = 0; rail < 4; ++rail) b.receive(rail, sink);
  EXPECT_EQ(b.bytes_received(), a.bytes_sent());
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{7}));
}

void send_bytes(const Descriptor& socket, const void* data, std::size_t bytes) {
  ASSERT_EQ(send(socket.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

/// A transport of rank 0 of 2 whose peer has three connections that the test writes.
class TransportWithThreeSockets : public testing::Test {
 protected:
  static constexpr std::uint32_t kConnection = 77;

  TransportWithThreeSockets() {
    auto connected = std::async(std::launch::async, [&] {
      StoreClient client(store_.endpoint(), "key", soon());
      address_ = parse_endpoint(client.wait("peers/world/0", soon()));
      for (const int rail : {0, 2, 1}) peer_[rail] = call(rail);
    });
    StoreClient client(store_.endpoint(), "key", soon());
    transport_.emplace(TcpTransport::Options{.key = "key", .silence = milliseconds(1000)}, client,
                       0, 2, soon());
    connected.get();
  }
  Descriptor call(int rail, int rails = 3, std::uint32_t connection = kConnection) {
    Descriptor socket = connect_to(address_, soon());
    const PeerHello hello{.rank = 1,
                          .size = 2,
                          .rail = static_cast<std::uint16_t>(rail),
                          .rails = static_cast<std::uint16_t>(rails),
                          .connection = connection};
    handshake_as_caller(socket.get(), "key", hello.encode(), soon());
    return socket;
  }
  void message(Stream stream, const Bytes& bytes) {
    const ChunkHeader header{.length = static_cast<std::uint32_t>(bytes.size()),
                             .stream = stream,
                             .total = bytes.size()};
    send_bytes(peer_[0], &header, sizeof header);
    if (!bytes.empty()) send_bytes(peer_[0], bytes.data(), bytes.size());
  }
  void announce(Stream stream, std::uint64_t total) {
    const ChunkHeader header{.length = 0, .stream = stream, .total = total};
    send_bytes(peer_[0], &header, sizeof header);
  }
  void piece(int rail, std::uint64_t number, std::uint64_t offset, std::uint64_t total) {
    const PieceHeader header{.length = kPiece, .message = number, .offset = offset, .total = total};
    send_bytes(peer_[rail], &header, sizeof header);
    const Bytes bytes(kPiece, std::byte{1});
    send_bytes(peer_[rail], bytes.data(), bytes.size());
  }
  /// Ends a connection so that its peer meets an error.
  void reset(int rail) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(peer_[rail].get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    peer_[rail] = Descriptor();
  }
  /// Waits for `done`, at most `longest`, while the transport moves bytes.
  template <class Done>
  bool within(Duration longest, Done&& done) {
    for (const Deadline end = Deadline::in(longest); !done();) {
      if (end.passed()) return false;
      transport_->wait_for_event(transport_->events(), milliseconds(5));
    }
    return true;
  }
  std::string failure() {
    try {
      transport_->check();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  StoreServer store_{"127.0.0.1", {0, 0}, "key"};
  Endpoint address_;
  std::optional<TcpTransport> transport_;
  Descriptor peer_[3];
};

TEST_F(TransportWithThreeSockets, StaleAndForeignRailsAreClosed) {
  EXPECT_EQ(transport_->rails(1), 3);
  for (const Descriptor& stranger : {call(1), call(0), call(2, 3, kConnection + 1), call(3),
                                     call(2, 4), call(1, 0), call(1, 65)}) {
    pollfd wait{stranger.get(), POLLIN, 0};
    ASSERT_EQ(poll(&wait, 1, 10000), 1);
    char byte = 0;
    EXPECT_EQ(recv(stranger.get(), &byte, 1, 0), 0);
  }
  EXPECT_EQ(failure(), "");
  message({1, 3}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
}

TEST_F(TransportWithThreeSockets, AGoodbyeThatOvertakesDataCountsWhenTheDataIsThere) {
  announce({1, 3}, 2 * kPiece);
  piece(2, 0, kPiece, 2 * kPiece);
  message({0, kGoodbye}, {});
  shutdown(peer_[0].get(), SHUT_WR);
  shutdown(peer_[2].get(), SHUT_WR);
  EXPECT_FALSE(within(milliseconds(100), [&] { return transport_->gone(1); }));
  piece(1, 0, 0, 2 * kPiece);
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->gone(1); }));
  const auto chunk = transport_->take(1, {1, 3});
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->bytes(), 2 * kPiece);
  shutdown(peer_[1].get(), SHUT_WR);
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->rails(1) == 0; }));
  EXPECT_EQ(failure(), "");
}

TEST_F(TransportWithThreeSockets, ARailThatBreaksIsALostPeer) {
  reset(2);
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: connection 2 of 3"));
}

TEST_F(TransportWithThreeSockets, ARailThatIsClosedIsALostPeerAfterTheTimeOfSilence) {
  const auto begin = Clock::now();
  shutdown(peer_[1].get(), SHUT_WR);
  const Bytes heartbeat;
  while (failure().empty() && Clock::now() - begin < seconds(10)) {
    message({0, kHeartbeat}, heartbeat);
    transport_->wait_for_event(transport_->events(), milliseconds(100));
  }
  EXPECT_THAT(failure(), HasSubstr("closed connection 1 of 3 and left no error report"));
  EXPECT_GE(Clock::now() - begin, milliseconds(950));
}

// A rank that fails and ends: its error may come later than the end of another rail.
TEST_F(TransportWithThreeSockets, TheCauseCountsThoughAnotherRailEndsBefore) {
  reset(1);
  EXPECT_FALSE(within(milliseconds(50), [&] { return !failure().empty(); }));
  message({0, kAbort}, encode(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 2)));
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("the shard is truncated"));
}

TEST_F(TransportWithThreeSockets, TheEndOfTheFirstIsTheEndOfThePeer) {
  const auto begin = Clock::now();
  peer_[0] = Descriptor();
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("rank 1 closed its connection"));
  EXPECT_LT(Clock::now() - begin, seconds(5));
}

TEST(Rails, OfTwoNumbersThatOfTheHigherRankCounts) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  const auto join = [&](int rank, int rails) {
    StoreClient client(store.endpoint(), "key", soon());
    return std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key", .rails = rails},
                                          client, rank, 3, soon());
  };
  auto one = std::async(std::launch::async, [&] { return join(1, 5); });
  auto two = std::async(std::launch::async, [&] { return join(2, 0); });
  const auto zero = join(0, 2);
  const auto first = one.get();
  const auto second = two.get();
  EXPECT_EQ(zero->rails(1), 5);
  EXPECT_EQ(first->rails(0), 5);
  EXPECT_EQ(zero->rails(2), 1) << "loopback is near";
  EXPECT_EQ(second->rails(1), 1);
}

TEST(Rails, MoreThanThereMayBeAreRefused) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  StoreClient client(store.endpoint(), "key", soon());
  for (const int rails : {-1, kMostRails + 1})
    EXPECT_THROW(TcpTransport({.key = "key", .rails = rails}, client, 0, 1, soon()), Error);
}

}  // namespace
}  // namespace shoal::wire::rails_test
