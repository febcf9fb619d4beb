// Addresses, the handshake, chunked links and the key-value store, over loopback; with strangers,
// noise and mutated bytes.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/wire/acceptor.h"
#include "shoal/wire/link.h"
#include "shoal/wire/store.h"
#include "tests/wire/soon.h"

namespace shoal::wire::tcp_test {
namespace {

TEST(Address, ReadsEndpointsAndPorts) {
  EXPECT_EQ(parse_endpoint("10.0.0.1:7000"), (Endpoint{"10.0.0.1", 7000}));
  EXPECT_EQ(parse_endpoint("[::1]:80"), (Endpoint{"::1", 80}));
  EXPECT_EQ(parse_endpoint("node-3.local:0").text(), "node-3.local:0");
  EXPECT_EQ(parse_endpoint("[::1]:80").text(), "[::1]:80");
  EXPECT_EQ(parse_port_range("7000-7100").last, 7100);
  for (const char* wrong : {"", ":", "host", "host:", ":80", "host:70000", "host:-1", "::1:80",
                            "[::1]", "[]:1", "a]:1", "host:8x"})
    EXPECT_THROW(parse_endpoint(wrong), Error) << wrong;
  for (const char* wrong : {"", "-", "7-", "9-8", "1-2-3", "x"})
    EXPECT_THROW(parse_port_range(wrong), Error) << wrong;
}

TEST(Address, FindsInterfacesByNameAndPrefix) {
  EXPECT_EQ(interface_address("lo"), "127.0.0.1");
  EXPECT_EQ(interface_address("127."), "127.0.0.1");
  try {
    interface_address("nothing-of-the-kind");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lo=127.0.0.1"), std::string::npos);
  }
}

TEST(Address, ListensInARangeAndConnectsByName) {
  const auto first = listen_on("127.0.0.1", {0, 0});
  const auto port = local_endpoint(first.get()).port;
  EXPECT_THROW(listen_on("127.0.0.1", {port, port}), Error);  // taken
  EXPECT_GE(connect_to({"localhost", port}, soon()).get(), 0);
  EXPECT_THROW(connect_to({"127.0.0.1", 1}, Deadline::in(std::chrono::milliseconds(50))), Error);
}

/// A store on loopback with a key.
struct Fixture {
  StoreServer server{"127.0.0.1", {0, 0}, "secret"};
  StoreClient client() { return {server.endpoint(), "secret", soon()}; }
};

TEST(Store, SetsGetsAddsAndWaits) {
  Fixture f;
  auto a = f.client();
  auto b = f.client();
  EXPECT_EQ(a.get("x", soon()), std::nullopt);
  a.set("x", "1", soon());
  EXPECT_EQ(b.get("x", soon()), "1");
  std::thread later([&] { EXPECT_EQ(a.wait("y", soon()), "late"); });
  b.set("y", "late", soon());
  later.join();
  std::vector<std::thread> adders;
  for (int i = 0; i < 4; ++i) {
    adders.emplace_back([&] {
      auto c = f.client();
      for (int k = 0; k < 100; ++k) c.add("sum", 3, soon());
    });
  }
  for (auto& adder : adders) adder.join();
  EXPECT_EQ(a.add("sum", 0, soon()), 1200);
  EXPECT_THROW(a.add("y", 1, soon()), Error);
  const std::string large(3 << 20, 'v');
  a.set("large", large, soon());
  EXPECT_EQ(b.get("large", soon()), large);
}

TEST(Store, GivesUpAtTheDeadlineAndStaysUsable) {
  Fixture f;
  auto a = f.client();
  try {
    a.wait("never", Deadline::in(std::chrono::milliseconds(30)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
  auto b = f.client();
  b.set("never", "after all", soon());  // answers a question that nobody asks any more
  a.set("x", "1", soon());
  EXPECT_EQ(a.get("x", soon()), "1");
}

TEST(Store, WaitsForManyKeysAtOnce) {
  Fixture f;
  auto a = f.client();
  auto b = f.client();
  std::thread later([&] {
    for (int i = 99; i >= 0; --i) b.set("key " + std::to_string(i), std::to_string(i), soon());
  });
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back("key " + std::to_string(i));
  const auto values = a.wait_all(keys, soon(), [] {});
  later.join();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], std::to_string(i));
  // What is missing at the deadline has no value, and what is there has.
  const auto some =
      a.wait_all({"key 3", "never"}, Deadline::in(std::chrono::milliseconds(30)), [] {});
  EXPECT_EQ(some[0], "3");
  EXPECT_FALSE(some[1]);
  const auto give_up = [] { throw Error(ErrorKind::kAborted, "test", "enough"); };
  EXPECT_THROW(a.wait_all({"never"}, soon(), give_up), Error);
  EXPECT_EQ(a.get("key 5", soon()), "5") << "late answers are told from others";
}

TEST(Store, NoticesTheServersEnd) {
  auto f = std::make_unique<Fixture>();
  auto a = f->client();
  f.reset();
  EXPECT_THROW(a.get("x", soon()), Error);
}

TEST(Store, TurnsStrangersAwayAndServesOn) {
  Fixture f;
  const Endpoint there = f.server.endpoint();
  try {
    StoreClient stranger(there, "wrong", soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  }
  std::mt19937 random(1);
  const std::vector<std::byte> greeting = ListenerHandshake("another key", Hello{}).greeting();
  std::vector<Descriptor> silent;
  for (int i = 0; i < 200; ++i) {
    Descriptor socket = connect_to(there, soon());
    std::vector<std::uint8_t> noise(random() % 400);
    for (auto& byte : noise) byte = static_cast<std::uint8_t>(random());
    if (i % 3 == 0 && noise.size() > 8)
      std::memcpy(noise.data(), greeting.data(), 8);  // the right beginning
    send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (i % 2) silent.push_back(std::move(socket));  // stays, and says no more
  }
  auto a = f.client();
  a.set("x", "1", soon());
  EXPECT_EQ(a.get("x", soon()), "1");
}

// More callers connect at once, from one address, than the acceptor has places for, and none has
// sent a byte when the last one connects. Those whose place was taken call again, as ranks do.
TEST(Store, AllRanksOfALargeJobMayComeTogether) {
  Fixture f;
  std::vector<Descriptor> ranks;
  for (int i = 0; i < 290; ++i) ranks.push_back(connect_to(f.server.endpoint(), soon()));
  for (Descriptor& rank : ranks) {
    const auto prove = [&] { handshake_as_caller(rank.get(), "secret", {}, soon()); };
    try {
      prove();
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kPeerLost);
      rank = connect_to(f.server.endpoint(), soon());
      prove();
    }
  }
  auto a = f.client();
  a.set("x", "1", soon());
  EXPECT_EQ(a.get("x", soon()), "1");
}

TEST(Store, SilentStrangersKeepNobodyOut) {
  Fixture f;
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(f.server.endpoint(), soon()));
  auto a = f.client();
  a.set("x", "1", soon());
  EXPECT_EQ(a.get("x", soon()), "1");
}

// A member that knows the key and sends wrong bytes is dropped; the others stay.
TEST(Store, SurvivesALyingMember) {
  Fixture f;
  auto honest = f.client();
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    Descriptor socket = connect_to(f.server.endpoint(), soon());
    handshake_as_caller(socket.get(), "secret", {}, soon());
    if (i % 2) {  // a well-formed message with nonsense in it
      Link link(std::move(socket));
      Bytes bytes(random() % 40);
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
      link.send({random(), random() % 6}, 0, bytes);
      link.flush();
    } else {
      std::vector<std::uint8_t> noise(100);
      for (auto& byte : noise) byte = static_cast<std::uint8_t>(random());
      send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    honest.set("i", std::to_string(i), soon());
  }
  EXPECT_EQ(honest.get("i", soon()), "99");
}

/// Two ends of a connection on loopback.
std::pair<Descriptor, Descriptor> pair_of_sockets() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

TEST(Link, ASmallMessageOvertakesALargeOne) {
  auto [left, right] = pair_of_sockets();
  Link a(std::move(left));
  Link b(std::move(right));
  a.send({1, 1}, 0, Bytes(64 << 20, std::byte{1}));
  a.send({1, 2}, 0, Bytes(100, std::byte{2}));
  a.send({1, 1}, 0, Bytes(3, std::byte{3}));  // of the same stream: in order
  a.send({1, 3}, 0, {});
  std::vector<std::uint64_t> order;
  std::vector<std::size_t> sizes;
  std::uint64_t small_ones_were_here = 0;
  while (order.size() < 4) {
    a.flush();
    ASSERT_TRUE(b.receive([&](Stream stream, Bytes bytes) {
      order.push_back(stream.sequence), sizes.push_back(bytes.size());
      if (order.size() == 2) small_ones_were_here = b.bytes_received();
    }));
  }
  EXPECT_LT(small_ones_were_here, 4u << 20);  // of 64 MiB
  EXPECT_EQ(order, (std::vector<std::uint64_t>{2, 3, 1, 1}));
  EXPECT_EQ(sizes[2], 64u << 20);
  EXPECT_TRUE(a.idle());
}

TEST(Link, PriorityGoesFirst) {
  auto [left, right] = pair_of_sockets();
  Link a(std::move(left));
  Link b(std::move(right));
  a.send({1, 1}, 0, Bytes(4 << 20));
  a.send({1, 2}, 1, Bytes(4 << 20));
  std::vector<std::uint64_t> order;
  while (order.size() < 2) {
    a.flush();
    b.receive([&](Stream stream, Bytes) { order.push_back(stream.sequence); });
  }
  EXPECT_EQ(order, (std::vector<std::uint64_t>{2, 1}));
}

// A body is read where it lies until it is released; adopted, it may change.
TEST(Link, BodiesAreReadUntilTheyAreReleased) {
  auto [left, right] = pair_of_sockets();
  Link a(std::move(left));
  Link b(std::move(right));
  Bytes body(3 << 20, std::byte{1});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const auto other = std::make_shared<std::atomic<bool>>(false);
  a.send({1, 1}, 0, Bytes(32, std::byte{9}), body, released);
  a.send({1, 2}, 0, {}, std::span(body).first(5), other);
  a.flush();
  EXPECT_FALSE(*released);
  a.adopt({1, 1});
  EXPECT_TRUE(*released);
  std::vector<std::size_t> sizes;
  std::vector<Bytes> messages;
  const auto receive = [&] {
    a.flush();
    ASSERT_TRUE(b.receive([&](Stream stream, Bytes bytes) {
      messages.push_back(std::move(bytes)), sizes.push_back(stream.sequence);
    }));
  };
  while (messages.empty()) receive();
  EXPECT_TRUE(*other);  // written
  body.assign(body.size(), std::byte{7});
  while (messages.size() < 2) receive();
  EXPECT_EQ(sizes, (std::vector<std::size_t>{2, 1}));
  Bytes want(32, std::byte{9});
  want.resize(32 + (3 << 20), std::byte{1});
  EXPECT_EQ(messages[1], want);
}

// After a failure no memory of the caller is read any more, and the message about the failure still
// arrives.
TEST(Link, DropsMessagesAndStillSendsControlMessages) {
  auto [left, right] = pair_of_sockets();
  Link a(std::move(left));
  Link b(std::move(right));
  const auto released = std::make_shared<std::atomic<bool>>(false);
  {
    const Bytes body(3 << 20, std::byte{1});
    a.send({1, 1}, 0, Bytes(32), body, released);
    a.send({1, 2}, 0, Bytes(100));
    EXPECT_FALSE(a.flush());
    a.drop_all();
    EXPECT_TRUE(*released);
  }
  a.send({0, 1}, 5, Bytes(10, std::byte{3}));
  std::vector<Stream> received;
  while (received.empty()) {
    a.flush();
    ASSERT_TRUE(b.receive([&](Stream stream, Bytes) { received.push_back(stream); }));
  }
  EXPECT_EQ(received, (std::vector<Stream>{{0, 1}}));
  EXPECT_TRUE(a.idle());
}

/// Returns the bytes that a link writes for a few messages.
Bytes recorded() {
  auto [left, right] = pair_of_sockets();
  Link a(std::move(left));
  a.send({1, 1}, 0, Bytes(1000, std::byte{7}));
  a.send({1, 2}, 0, {});
  a.send({2, 1}, 0, Bytes(10, std::byte{8}));
  EXPECT_TRUE(a.flush());
  Bytes bytes(4096);
  bytes.resize(static_cast<std::size_t>(recv(right.get(), bytes.data(), bytes.size(), 0)));
  return bytes;
}

TEST(Assembler, TakesAnyCutOfTheStream) {
  const Bytes bytes = recorded();
  for (std::size_t step = 1; step < 70; ++step) {
    Assembler assembler;
    std::size_t messages = 0;
    std::size_t total = 0;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      assembler.feed(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)),
                     [&](Stream, Bytes m) { ++messages, total += m.size(); });
    }
    EXPECT_EQ(messages, 3u);
    EXPECT_EQ(total, 1010u);
  }
}

TEST(Assembler, SurvivesMutatedBytes) {
  const Bytes bytes = recorded();
  std::mt19937_64 random(3);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes wrong = bytes;
    for (std::uint64_t k = 0, n = 1 + random() % 4; k < n; ++k)
      wrong[random() % wrong.size()] = static_cast<std::byte>(random());
    if (i % 5 == 0) wrong.resize(random() % wrong.size());
    Assembler assembler(1 << 20);
    std::size_t got = 0;
    try {
      assembler.feed(wrong, [&](Stream, Bytes m) { got += m.size(); });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      ++refused;
    }
    EXPECT_LE(got, wrong.size());
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace shoal::wire::tcp_test
