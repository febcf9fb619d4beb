// A transport and a peer that is only a socket, so that the test decides which bytes come when.
#include "shoal/wire/tcp_transport.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "shoal/wire/chunk_header.h"
#include "shoal/wire/store.h"

namespace shoal::wire {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

/// Connects to rank 0 of the world of `store` as rank 1 of 2.
Descriptor connect_as_rank_1(const Endpoint& store) {
  StoreClient client(store, "key", soon());
  const std::string address = client.wait("peers/world/0", soon());
  Descriptor socket = connect_to(parse_endpoint(address), soon());
  const std::int32_t fields[4] = {1, 2, 0, 0};
  Hello hello;
  std::memcpy(hello.data(), fields, sizeof fields);
  handshake_as_caller(socket.get(), "key", hello, soon());
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
}  // namespace shoal::wire
