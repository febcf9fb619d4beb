// Several connections between two ranks: which of them are admitted, what the loss of one means,
// and words that overtake data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/chunk_header.h"
#include "shoal/wire/error_bytes.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/error_of.h"
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

// The kernel refuses to write without the socket becoming readable: a full queue of a device, a
// firewall, or as here an end that takes nothing more.
TEST(Rails, OneThatCannotBeWrittenIsFoundByWhoeverReadsIt) {
  auto [a, b] = two_ends(3);
  ASSERT_EQ(shutdown(b.fd(1), SHUT_RD), 0);
  pollfd wait{a.fd(1), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 0), 0);
  const Bytes body(1 << 20, std::byte{1});
  a.send({1, 1}, 0, {}, body, nullptr);
  a.flush();
  EXPECT_TRUE(a.broken(1));
  EXPECT_FALSE(a.broken(2));
  EXPECT_EQ(poll(&wait, 1, 0), 1);
  Counting sink;
  EXPECT_FALSE(a.receive(1, sink)) << "the end of the connection";
}

/// Names memory of its own for each stream.
struct Placing final : ChunkSink {
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    Bytes& to = memory[stream.sequence];
    if (to.empty()) to.assign(total, std::byte{7});
    return to.data() + offset;
  }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    if (chunk.offset() + bytes != chunk.total()) return;
    order.push_back(stream.sequence);
    own_memory[stream.sequence] = chunk.data() != nullptr;
  }
  std::map<std::uint64_t, Bytes> memory;
  std::map<std::uint64_t, bool> own_memory;
  std::vector<std::uint64_t> order;
};

// Two rails are in the middle of a piece each, of different messages.
TEST(Rails, ForgottenPlacesAreThoseOfTheStreamOnWhicheverRail) {
  auto [a, b] = two_ends(3);
  const int little = 4096;
  for (const int rail : {1, 2})
    setsockopt(a.fd(rail), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  const Bytes first(kPiece, std::byte{1});
  const Bytes second(kPiece, std::byte{1});
  a.send({1, 1}, 0, {}, first, nullptr);
  a.send({1, 2}, 0, {}, second, nullptr);
  a.flush();
  Placing sink;
  for (int rail = 0; rail < 3; ++rail) b.receive(rail, sink);
  ASSERT_EQ(sink.memory.size(), 2u) << "both are being received";
  ASSERT_TRUE(sink.order.empty()) << "and not complete";
  b.forget_places(Stream{1, 1});
  const Bytes before = sink.memory[1];
  EXPECT_EQ(before.front(), std::byte{1}) << "a part was written";
  EXPECT_EQ(before.back(), std::byte{7});
  for (const Deadline end = soon(); sink.order.size() < 2 && !end.passed();) {
    for (int rail = 0; rail < 3; ++rail) {
      a.writable(rail);
      b.receive(rail, sink);
    }
    a.flush();
  }
  EXPECT_EQ(sink.order.size(), 2u);
  EXPECT_EQ(sink.memory[1], before) << "forgotten memory is not written";
  EXPECT_TRUE(sink.own_memory[1]);
  EXPECT_EQ(sink.memory[2], second);
  EXPECT_FALSE(sink.own_memory[2]);
}

void send_bytes(const Descriptor& socket, const void* data, std::size_t bytes) {
  ASSERT_EQ(send(socket.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

constexpr std::uint32_t kConnection = 77;

/// Connects to rank 0 of 2 as a rail of rank 1.
Descriptor call_rank_0(const Endpoint& address, int rail, int rails = 3,
                       std::uint32_t connection = kConnection) {
  Descriptor socket = connect_to(address, soon());
  const PeerHello hello{.rank = 1,
                        .size = 2,
                        .rail = static_cast<std::uint16_t>(rail),
                        .rails = static_cast<std::uint16_t>(rails),
                        .connection = connection};
  handshake_as_caller(socket.get(), "key", hello.encode(), soon());
  return socket;
}

/// A message of one chunk with its header.
Bytes message_bytes(Stream stream, const Bytes& bytes) {
  const ChunkHeader header{
      .length = static_cast<std::uint32_t>(bytes.size()), .stream = stream, .total = bytes.size()};
  Bytes all(sizeof header);
  std::memcpy(all.data(), &header, sizeof header);
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

/// Returns true when the other end closes the connection without a byte.
bool is_closed(const Descriptor& socket) {
  pollfd wait{socket.get(), POLLIN, 0};
  char byte = 0;
  return poll(&wait, 1, 10000) == 1 && recv(socket.get(), &byte, 1, 0) == 0;
}

/// A transport of rank 0 of 2 whose peer has three connections that the test writes.
class TransportWithThreeSockets : public testing::Test {
 protected:
  explicit TransportWithThreeSockets(Duration heartbeat = seconds(1)) {
    auto connected = std::async(std::launch::async, [&] {
      StoreClient client(store_.endpoint(), "key", soon());
      address_ = parse_endpoint(client.wait("peers/world/0", soon()));
      for (const int rail : {0, 2, 1}) peer_[rail] = call_rank_0(address_, rail);
    });
    StoreClient client(store_.endpoint(), "key", soon());
    transport_.emplace(
        TcpTransport::Options{.key = "key", .heartbeat = heartbeat, .silence = milliseconds(1000)},
        client, 0, 2, soon());
    connected.get();
  }
  void message(Stream stream, const Bytes& bytes) {
    const Bytes all = message_bytes(stream, bytes);
    send_bytes(peer_[0], all.data(), all.size());
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

TEST_F(TransportWithThreeSockets, RailsThatAreThereAlreadyAreClosed) {
  EXPECT_EQ(transport_->rails(1), 3);
  for (const int rail : {0, 1, 2}) EXPECT_TRUE(is_closed(call_rank_0(address_, rail))) << rail;
  EXPECT_EQ(failure(), "");
  message({1, 3}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
}

// Every caller differs in one thing from the one that is awaited.
TEST(Rails, StaleAndForeignOnesDoNotTakeThePlaceOfOneThatIsMissing) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto zero = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    return std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key"}, client, 0, 2,
                                          soon());
  });
  StoreClient client(store.endpoint(), "key", soon());
  const Endpoint address = parse_endpoint(client.wait("peers/world/0", soon()));
  EXPECT_TRUE(is_closed(call_rank_0(address, 1))) << "before rail 0";
  EXPECT_TRUE(is_closed(call_rank_0(address, 0, 0))) << "of none";
  EXPECT_TRUE(is_closed(call_rank_0(address, 0, kMostRails + 1))) << "of too many";
  const Descriptor rail_0 = call_rank_0(address, 0);
  const Descriptor rail_1 = call_rank_0(address, 1);
  EXPECT_TRUE(is_closed(call_rank_0(address, 2, 3, kConnection + 1))) << "of an earlier attempt";
  EXPECT_TRUE(is_closed(call_rank_0(address, 2, 4))) << "of more than rail 0 has said";
  EXPECT_TRUE(is_closed(call_rank_0(address, 3))) << "there are three, from 0 on";
  EXPECT_TRUE(is_closed(call_rank_0(address, 1))) << "it is there";
  const Descriptor rail_2 = call_rank_0(address, 2);
  const auto transport = zero.get();
  EXPECT_EQ(transport->rails(1), 3);
  EXPECT_NO_THROW(transport->check());
}

// A peer that fails while it connects leaves rails behind that never came.
TEST(Rails, OnesThatNeverCameDelayNoEnd) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto zero = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    TcpTransport({.key = "key", .heartbeat = milliseconds(20)}, client, 0, 2, soon());
  });
  StoreClient client(store.endpoint(), "key", soon());
  const Endpoint address = parse_endpoint(client.wait("peers/world/0", soon()));
  Clock::time_point end;
  {
    const Descriptor rail_0 = call_rank_0(address, 0);
    const Descriptor rail_2 = call_rank_0(address, 2);
    // Its heartbeats are never read: the end of the socket resets the connection.
    std::this_thread::sleep_for(milliseconds(100));
    const Bytes cause = message_bytes(
        {0, kAbort}, encode(Error(ErrorKind::kResource, "connect", "no more").at(1, 2)));
    send_bytes(rail_0, cause.data(), cause.size());
    end = Clock::now();
  }
  const Error error = error_of([&] { zero.get(); });
  EXPECT_THAT(error.what(), HasSubstr("no more"));
  EXPECT_LT(Clock::now() - end, milliseconds(900));
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

// Nobody will ever bring what is missing, and the goodbye was the peer's last word.
TEST_F(TransportWithThreeSockets, ARailThatBreaksBehindAGoodbyeIsALostPeerAtOnce) {
  announce({1, 3}, 2 * kPiece);
  piece(2, 0, kPiece, 2 * kPiece);
  message({0, kGoodbye}, {});
  ASSERT_FALSE(within(milliseconds(50), [&] { return !failure().empty(); }));
  const auto begin = Clock::now();
  reset(1);
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("connection 1 of 3"));
  EXPECT_LT(Clock::now() - begin, milliseconds(900));
}

TEST_F(TransportWithThreeSockets, SoIsOneThatBreaksBeforeTheGoodbyeIsHeard) {
  announce({1, 3}, 2 * kPiece);
  piece(2, 0, kPiece, 2 * kPiece);
  reset(1);
  ASSERT_FALSE(within(milliseconds(50), [&] { return !failure().empty(); }));
  const auto begin = Clock::now();
  message({0, kGoodbye}, {});
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("connection 1 of 3"));
  EXPECT_LT(Clock::now() - begin, milliseconds(800));
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

/// The same with a heartbeat twenty times in the time of silence.
class TransportWithStuckRails : public TransportWithThreeSockets {
 protected:
  TransportWithStuckRails() : TransportWithThreeSockets(milliseconds(50)) {
    transport_->send(1, {1, 1}, 0, {}, body_, released_);
    transport_->flush();
  }
  ~TransportWithStuckRails() override {
    // It may still read `body_`, and need not wait for a peer that does nothing more.
    for (Descriptor& socket : peer_) socket = Descriptor();
    transport_.reset();
  }
  /// The peer says that it lives, and reads all that there is on a rail.
  void beat() { message({0, kHeartbeat}, {}); }
  void read_all(int rail) {
    Bytes buffer(1 << 20);
    while (recv(peer_[rail].get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
    }
  }

  const Bytes body_ = Bytes(24 << 20, std::byte{1});  ///< more than two sockets take
  const Released released_ = std::make_shared<std::atomic<bool>>(false);
};

TEST_F(TransportWithStuckRails, OneOnWhichNothingGetsThroughIsALostPeer) {
  const auto begin = Clock::now();
  within(seconds(10), [&] {
    beat();
    read_all(2);
    return !failure().empty();
  });
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: connection 1 of 3: nothing that was sent"));
  EXPECT_GE(Clock::now() - begin, milliseconds(1000));
}

// A job that is suspended and goes on: neither end has read or acknowledged anything meanwhile.
TEST_F(TransportWithStuckRails, TimeInWhichThisRankWasHeldUpHardlyCounts) {
  std::atomic<bool> held_up{false};
  transport_->answer_for(7, [&] {
    held_up = true;
    std::this_thread::sleep_for(milliseconds(2500));
    return Bytes(1);
  });
  const std::uint64_t group = 7;
  const auto* bytes = reinterpret_cast<const std::byte*>(&group);
  ASSERT_FALSE(within(milliseconds(200), [&] { return !failure().empty(); })) << failure();
  message({0, kQuestion}, Bytes(bytes, bytes + sizeof group));
  within(seconds(10), [&] {
    beat();
    if (held_up) {
      read_all(1);
      read_all(2);
    }
    return *released_ || !failure().empty();
  });
  EXPECT_EQ(failure(), "");
  EXPECT_TRUE(*released_);
}

TEST_F(TransportWithThreeSockets, TheEndOfTheFirstIsTheEndOfThePeer) {
  const auto begin = Clock::now();
  peer_[0] = Descriptor();
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("rank 1 closed its connection"));
  EXPECT_LT(Clock::now() - begin, seconds(5));
}

/// Takes a caller at `listener` and completes its handshake, or closes it in the middle.
std::pair<Descriptor, PeerHello> take_caller(const Descriptor& listener, bool in_the_middle) {
  pollfd wait{listener.get(), POLLIN, 0};
  if (poll(&wait, 1, 10000) != 1) return {Descriptor(), PeerHello()};
  Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ListenerHandshake handshake("key");
  const Bytes greeting = handshake.greeting();
  send(caller.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (in_the_middle) return {Descriptor(), PeerHello()};
  while (!handshake.done()) {
    std::byte bytes[256];
    const ssize_t n = recv(caller.get(), bytes, std::min(sizeof bytes, handshake.wanted()), 0);
    if (n <= 0 || !handshake.feed(std::span(bytes, static_cast<std::size_t>(n))))
      return {Descriptor(), PeerHello()};
  }
  const Bytes proof = handshake.proof();
  send(caller.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
  return {std::move(caller), PeerHello::decode(handshake.hello())};
}

// A rank that has too many callers at a time closes some of them, and so may anything on the way.
TEST(Rails, AHandshakeThatBreaksIsTriedAgain) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  const Descriptor listener = listen_on("127.0.0.1", {0, 0});
  StoreClient zero(store.endpoint(), "key", soon());
  zero.set("peers/world/0", local_endpoint(listener.get()).text(), soon());
  auto one = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    return std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key", .rails = 3}, client,
                                          1, 2, soon());
  });
  std::vector<Descriptor> sockets;
  std::vector<int> rails;
  for (const bool breaks : {false, true, true, false, true, false}) {
    auto [socket, hello] = take_caller(listener, breaks);
    EXPECT_EQ(socket.get() < 0, breaks);
    if (socket.get() < 0) continue;
    sockets.push_back(std::move(socket));
    rails.push_back(hello.rail);
  }
  std::unique_ptr<TcpTransport> transport;
  EXPECT_NO_THROW(transport = one.get());
  EXPECT_THAT(rails, testing::UnorderedElementsAre(0, 1, 2));
  ASSERT_TRUE(transport);
  EXPECT_EQ(transport->rails(0), 3);
  sockets.clear();  // else it would wait a second for their end
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
