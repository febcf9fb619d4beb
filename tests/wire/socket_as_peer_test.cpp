// A transport and a peer that is only a socket, so that the test decides which bytes come when.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/wire/chunk_header.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/wire/soon.h"

namespace shoal::wire::socket_as_peer_test {
namespace {

/// Connects to rank 0 of the world of `store` as rank 1 of 2.
Descriptor connect_as_rank_1(const Endpoint& store) {
  StoreClient client(store, "key", soon());
  const std::string address = client.wait("peers/world/0", soon());
  Descriptor socket = connect_to(parse_endpoint(address), soon());
  handshake_as_caller(socket.get(), "key", PeerHello{.rank = 1, .size = 2}.encode(), soon());
  return socket;
}

void send_bytes(const Descriptor& socket, const void* data, std::size_t bytes) {
  ASSERT_EQ(send(socket.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

// Ranks that disagree about per-rank counts make the same call, so sizes are compared only when the
// message arrives. Its first chunk may be half here when the receive is posted.
TEST(TcpTransport, AReceivePostedForAnotherSizeWhileAChunkArrivesIsNotWritten) {
  constexpr std::size_t kSent = 1000;
  constexpr std::size_t kPosted = 100;
  constexpr std::size_t kFirst = 500;
  constexpr Stream kStream{1, 7};
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto connected =
      std::async(std::launch::async, [&] { return connect_as_rank_1(store.endpoint()); });
  StoreClient client(store.endpoint(), "key", soon());
  TcpTransport transport({.key = "key", .silence = std::chrono::seconds(60)}, client, 0, 2, soon());
  const Descriptor peer = connected.get();

  const ChunkHeader header{.length = kSent, .stream = kStream, .total = kSent};
  const Bytes payload(kSent, std::byte{1});
  send_bytes(peer, &header, sizeof header);
  send_bytes(peer, payload.data(), kFirst);
  while (transport.bytes_received(1) < sizeof header + kFirst)
    transport.wait_for_event(transport.events(), std::chrono::milliseconds(1));

  const Bytes untouched(2 * kSent, std::byte{7});
  Bytes memory = untouched;
  const auto receive = std::make_shared<PostedReceive>(memory.data(), kPosted);
  transport.post_receive(1, kStream, receive);
  send_bytes(peer, payload.data() + kFirst, kSent - kFirst);
  for (const Deadline end = soon(); !transport.has_arrived(1, kStream) && !end.passed();)
    transport.wait_for_event(transport.events(), std::chrono::milliseconds(1));

  EXPECT_EQ(receive->actual, kSent);
  EXPECT_EQ(receive->arrived, 0u);
  EXPECT_EQ(memory, untouched);
  const auto chunk = transport.take(1, kStream);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->total(), kSent);
}

/// A transport of rank 0 of 2 whose peer is a socket.
class TransportWithASocket : public testing::Test {
 protected:
  TransportWithASocket() {
    auto connected =
        std::async(std::launch::async, [&] { return connect_as_rank_1(store_.endpoint()); });
    StoreClient client(store_.endpoint(), "key", soon());
    transport_.emplace(TcpTransport::Options{.key = "key", .silence = std::chrono::minutes(10)},
                       client, 0, 2, soon());
    peer_ = connected.get();
  }

  /// The peer sends a message of one chunk.
  void deliver(Stream stream, const Bytes& message) {
    const ChunkHeader header{.length = static_cast<std::uint32_t>(message.size()),
                             .stream = stream,
                             .total = message.size()};
    send_bytes(peer_, &header, sizeof header);
    if (!message.empty()) send_bytes(peer_, message.data(), message.size());
  }
  void await_bytes(std::uint64_t bytes) {
    for (const Deadline end = soon(); transport_->bytes_received(1) < bytes && !end.passed();)
      transport_->wait_for_event(transport_->events(), std::chrono::milliseconds(1));
  }

  StoreServer store_{"127.0.0.1", {0, 0}, "key"};
  std::optional<TcpTransport> transport_;
  Descriptor peer_;
};

TEST_F(TransportWithASocket, AMessageThatWasEarlyIsTakenByALaterReceive) {
  deliver({1, 3}, Bytes(100, std::byte{5}));
  await_bytes(132);
  EXPECT_TRUE(transport_->has_arrived(1, {1, 3}));
  EXPECT_FALSE(transport_->has_arrived(1, {1, 4}));
  Bytes memory(100);
  const auto receive = std::make_shared<PostedReceive>(memory.data(), memory.size());
  transport_->post_receive(1, {1, 3}, receive);
  EXPECT_EQ(receive->arrived, 100u);
  EXPECT_EQ(memory, Bytes(100, std::byte{5}));
  EXPECT_FALSE(transport_->has_arrived(1, {1, 3}));
  EXPECT_FALSE(transport_->take(1, {1, 3}));
}

TEST_F(TransportWithASocket, AnEarlyMessageOfAnotherSizeStaysWhereItIs) {
  deliver({1, 3}, Bytes(100, std::byte{5}));
  await_bytes(132);
  Bytes memory(200, std::byte{7});
  const auto receive = std::make_shared<PostedReceive>(memory.data(), memory.size());
  transport_->post_receive(1, {1, 3}, receive);
  EXPECT_EQ(receive->actual, 100u);
  EXPECT_EQ(receive->arrived, 0u);
  EXPECT_EQ(memory, Bytes(200, std::byte{7}));
  ASSERT_TRUE(transport_->has_arrived(1, {1, 3}));
  EXPECT_EQ(transport_->take(1, {1, 3})->total(), 100u);
}

// The caller's memory may be gone: what comes afterwards is kept elsewhere.
TEST_F(TransportWithASocket, ReleasedBuffersAreNotWritten) {
  Bytes memory(100, std::byte{7});
  transport_->post_receive(1, {1, 3},
                           std::make_shared<PostedReceive>(memory.data(), memory.size()));
  transport_->release_buffers({1, 3});
  deliver({1, 3}, Bytes(100, std::byte{5}));
  await_bytes(132);
  EXPECT_EQ(memory, Bytes(100, std::byte{7}));
  EXPECT_TRUE(transport_->has_arrived(1, {1, 3}));
}

TEST_F(TransportWithASocket, APeerThatSaysNothingHasNoAnswer) {
  const auto before = Clock::now();
  const auto answers = transport_->ask(7, std::chrono::milliseconds(20));
  EXPECT_GE(Clock::now() - before, std::chrono::milliseconds(20));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_FALSE(answers[0]);
  EXPECT_FALSE(answers[1]);
}

// An answer is the number of the group and what the peer says of it.
TEST_F(TransportWithASocket, AnswersAreThoseToTheOpenQuestionAndOfBoundedSize) {
  const auto answer = [](std::uint64_t group, std::size_t bytes) {
    Bytes message(sizeof group + bytes, std::byte{3});
    std::memcpy(message.data(), &group, sizeof group);
    return message;
  };
  const auto asked = [&](const Bytes& message, Duration longest) {
    auto answers = std::async(std::launch::async, [&] { return transport_->ask(7, longest); });
    // The question has been sent: a header and eight bytes, between heartbeats.
    for (std::array<std::byte, 40> question{};;) {
      const ssize_t n = recv(peer_.get(), question.data(), 32, MSG_WAITALL);
      ChunkHeader header;
      if (n != 32) {
        std::this_thread::yield();
        continue;
      }
      std::memcpy(&header, question.data(), sizeof header);
      if (header.stream == Stream{0, 4}) break;
    }
    std::array<std::byte, 8> group{};
    while (recv(peer_.get(), group.data(), group.size(), 0) != 8) std::this_thread::yield();
    deliver({0, 5}, message);
    return answers.get()[1];
  };
  const Duration minute = std::chrono::minutes(1);
  const Duration briefly = std::chrono::milliseconds(50);
  EXPECT_EQ(asked(answer(7, 3), minute), Bytes(3, std::byte{3}));
  EXPECT_EQ(asked(answer(7, 4096), minute), Bytes(4096, std::byte{3}));
  EXPECT_EQ(asked(answer(7, 4097), briefly), std::nullopt) << "too long";
  EXPECT_EQ(asked(answer(8, 3), briefly), std::nullopt) << "of another group";
  EXPECT_EQ(asked(answer(7, 0), minute), std::nullopt) << "it does not know the group";
}

TEST_F(TransportWithASocket, AfterAFailureMemoryIsReleasedAndTheFirstCauseStays) {
  transport_->abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(0, 2));
  transport_->abort(Error(ErrorKind::kInternal, "read", "a later cause"));
  const Bytes body(1 << 20);
  const auto released = std::make_shared<std::atomic<bool>>(false);
  transport_->send(1, {1, 1}, 0, {}, body, released);
  EXPECT_TRUE(*released);
  try {
    transport_->check();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "the shard is truncated");
  }
}

/// True when the other end closes `socket`, perhaps after some bytes.
bool is_closed(const Descriptor& socket) {
  for (const Deadline end = soon(); !end.passed();) {
    char byte = 0;
    const ssize_t n = recv(socket.get(), &byte, 1, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return true;
    if (n < 0) std::this_thread::yield();
  }
  return false;
}

// Callers that know the key and claim to be what they cannot be are shown out, and rank 1 stays.
TEST_F(TransportWithASocket, CallersThatCannotBeRanksAreClosed) {
  StoreClient client(store_.endpoint(), "key", soon());
  const Endpoint address = parse_endpoint(client.wait("peers/world/0", soon()));
  const std::int32_t claims[][2] = {{1, 2}, {0, 2}, {2, 2}, {-1, 2}, {1, 3}, {1, 1}};
  for (const auto& [rank, size] : claims) {
    const Descriptor caller = connect_to(address, soon());
    handshake_as_caller(caller.get(), "key", PeerHello{.rank = rank, .size = size}.encode(),
                        soon());
    EXPECT_TRUE(is_closed(caller)) << rank << " of " << size;
  }
  EXPECT_NO_THROW(transport_->check());
  EXPECT_FALSE(transport_->gone(1));
  deliver({1, 3}, Bytes(1));
  await_bytes(33);
  EXPECT_TRUE(transport_->has_arrived(1, {1, 3}));
}

/// Connects to rank 0 as rank 1 of 2, from another address of this host, with a small receive
/// buffer: to rank 0 it is a peer on another host that takes little.
Descriptor connect_from_elsewhere(const Endpoint& to) {
  Descriptor peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int small = 64 << 10;
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, "127.0.0.2", &address.sin_addr), 1);
  EXPECT_EQ(bind(peer.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(inet_pton(AF_INET, to.host.c_str(), &address.sin_addr), 1);
  address.sin_port = htons(to.port);
  EXPECT_EQ(connect(peer.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const PeerHello hello{.rank = 1, .size = 2, .tls = TlsMode::kOff};
  handshake_as_caller(peer.get(), "key", hello.encode(), soon());
  return peer;
}

// A kernel takes 4 MiB of a large message for a peer that is slow. At 100 Mbit/s an urgent message,
// or the cause of a failure, would wait a third of a second behind them.
TEST(TcpTransport, AnUrgentMessageDoesNotWaitBehindMegabytesInTheKernel) {
  const Bytes body(16 << 20, std::byte{1});
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto connected = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    return connect_from_elsewhere(parse_endpoint(client.wait("peers/world/0", soon())));
  });
  StoreClient client(store.endpoint(), "key", soon());
  TcpTransport transport({.key = "key", .silence = std::chrono::minutes(10), .tls = TlsMode::kOff},
                         client, 0, 2, soon());
  const Descriptor peer = connected.get();
  transport.send(1, {1, 1}, 0, {}, body, std::make_shared<std::atomic<bool>>(false));
  transport.flush();
  // The transport goes on writing as long as the kernel takes anything.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  transport.send(1, {1, 2}, 9, Bytes(8, std::byte{2}));
  transport.flush();

  Assembler assembler;
  std::size_t before = 0;
  bool urgent = false;
  Bytes buffer(64 << 10);
  while (!urgent) {
    const ssize_t n = recv(peer.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(n, 0);
    before += static_cast<std::size_t>(n);
    assembler.feed(std::span(buffer).first(static_cast<std::size_t>(n)), [&](Stream stream, Bytes) {
      urgent = urgent || stream == Stream{1, 2};
    });
  }
  EXPECT_LT(before, 2u << 20);
}

// A transport that closed while its peer still sends would reset the connection, and with it lose
// what the peer has not read yet, such as the goodbye. It reads on for a second at most: the test
// is repeated where the machine took longer.
TEST(TcpTransport, OneThatLeavesReadsOnUntilItsPeerHasClosed) {
  const ChunkHeader heartbeat{.length = 0, .stream = {0, 1}, .total = 0};
  for (bool in_time = false; !in_time;) {
    StoreServer store("127.0.0.1", {0, 0}, "key");
    auto connected =
        std::async(std::launch::async, [&] { return connect_as_rank_1(store.endpoint()); });
    StoreClient client(store.endpoint(), "key", soon());
    auto transport =
        std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key"}, client, 0, 2, soon());
    Descriptor peer = connected.get();
    const auto begin = Clock::now();
    auto left = std::async(std::launch::async, [&] { transport.reset(); });
    Bytes received(1 << 16);
    for (ssize_t n = 1; n != 0; n = recv(peer.get(), received.data(), received.size(), 0)) {
      pollfd wait{peer.get(), POLLIN, 0};
      poll(&wait, 1, -1);
    }
    // The answer to the first would be the reset, which the second meets.
    for (int i = 0; i < 2; ++i) {
      const ssize_t sent = send(peer.get(), &heartbeat, sizeof heartbeat, MSG_NOSIGNAL);
      in_time = Clock::now() - begin < std::chrono::milliseconds(800);
      if (!in_time) break;
      EXPECT_EQ(sent, static_cast<ssize_t>(sizeof heartbeat)) << i;
    }
    peer = Descriptor();
    left.get();
  }
}

}  // namespace
}  // namespace shoal::wire::socket_as_peer_test
