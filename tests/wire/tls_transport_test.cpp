// Ranks whose connections run TLS, and who stands between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/error_of.h"
#include "tests/wire/meddling_relay.h"
#include "tests/wire/soon.h"
#include "tests/wire/tls_ranks.h"

namespace shoal::wire::tls_transport_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using namespace tls_ranks;

/// Waits until a transport fails.
Error failure_of(TcpTransport& transport, Deadline end = soon()) {
  return error_of([&] {
    while (!end.passed()) {
      transport.check();
      transport.wait_for_event(transport.events(), milliseconds(5));
    }
  });
}

TEST(TlsTransport, RanksExchangeOverOneConnectionAndOverSeveral) {
  for (const int rails : {1, 3}) {
    Ranks ranks(3, [&](int) { return with_tls(rails); });
    expect_none(ranks.errors);
    expect_none(exchange(ranks, 1));
    for (int rank = 0; rank < 3; ++rank) {
      for (int peer = 0; peer < 3; ++peer)
        EXPECT_EQ(ranks.all[rank]->encrypted(peer), peer != rank);
    }
  }
}

// Rank 0 listens on one address of this host and is called from another one.
TEST(TlsTransport, OfItselfItIsForConnectionsWhoseEndsHaveDifferentAddresses) {
  const auto encrypted = [](const char* host, TlsMode tls) {
    Ranks ranks(2, [&](int rank) {
      TcpTransport::Options options = with_tls();
      options.tls = tls;
      if (rank == 0) options.host = host;
      return options;
    });
    expect_none(ranks.errors);
    expect_none(exchange(ranks, 1, {3000}));
    EXPECT_EQ(ranks.all[0]->encrypted(1), ranks.all[1]->encrypted(0));
    return ranks.all[1]->encrypted(0);
  };
  EXPECT_TRUE(encrypted("127.0.0.2", TlsMode::kAuto));
  EXPECT_FALSE(encrypted("127.0.0.1", TlsMode::kAuto));
  EXPECT_FALSE(encrypted("127.0.0.2", TlsMode::kOff));
  EXPECT_TRUE(encrypted("127.0.0.1", TlsMode::kOn));
}

TEST(TlsTransport, RanksThatDisagreeNameEachOther) {
  for (const auto& modes : {std::pair{TlsMode::kAuto, TlsMode::kOff},
                            {TlsMode::kOff, TlsMode::kOn},
                            {TlsMode::kOn, TlsMode::kAuto}}) {
    Ranks ranks(2, [&](int rank) {
      TcpTransport::Options options = with_tls();
      options.tls = rank == 0 ? modes.first : modes.second;
      return options;
    });
    for (int rank = 0; rank < 2; ++rank) {
      const auto& error = ranks.errors[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kUsage);
      // The first cause is that of either.
      const int other = 1 - error->rank();
      const auto mode = [&](int r) {
        return std::string(name(r == 0 ? modes.first : modes.second));
      };
      EXPECT_THAT(error->what(),
                  HasSubstr("rank " + std::to_string(other) + " has tls " + mode(other) +
                            ", this rank has tls " + mode(error->rank())));
      EXPECT_THAT(error->hint(), HasSubstr("parallelism.tls"));
    }
  }
}

constexpr const char* kSecret = "a text that stands out wherever it is to be seen";

/// What somebody on the way hears while rank 1 sends a secret to rank 0.
std::string overheard(TlsMode tls) {
  std::mutex mutex;
  std::string heard;
  Ranks ranks(
      2,
      [&](int) {
        TcpTransport::Options options = with_tls();
        options.tls = tls;
        return options;
      },
      [&](int, bool, std::uint64_t, std::span<std::byte> bytes) {
        const std::lock_guard lock(mutex);
        heard.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return true;
      });
  expect_none(ranks.errors);
  const std::string secret = kSecret;
  const auto* bytes = reinterpret_cast<const std::byte*>(secret.data());
  ranks.all[1]->send(0, {1, 1}, 0, Bytes(bytes, bytes + secret.size()));
  ranks.all[1]->flush();
  EXPECT_EQ(take_message(*ranks.all[0], 1, {1, 1}, secret.size()),
            Bytes(bytes, bytes + secret.size()));
  const std::lock_guard lock(mutex);
  return heard;
}

TEST(TlsTransport, WhoListensOnTheWayHearsNothing) {
  EXPECT_THAT(overheard(TlsMode::kOff), HasSubstr(kSecret));
  EXPECT_THAT(overheard(TlsMode::kOn), testing::Not(HasSubstr(kSecret)));
}

/// Bytes of a caller's and a listener's part until data may follow, the first handshake and TLS.
constexpr std::uint64_t kHandshakes = 3000;

// What arrives is right or an error on both ranks: `exchange` compares it. The rank whose words are
// not changed may have sent and received everything before it hears of the failure.
TEST(TlsTransport, AChangeOnTheOnlyConnectionEndsTheJobByName) {
  for (const bool from_caller : {true, false}) {
    for (const std::uint64_t at : {kHandshakes, std::uint64_t{60001}}) {
      Ranks ranks(
          2, [](int) { return with_tls(); },
          [=](int, bool caller, std::uint64_t offset, std::span<std::byte> bytes) {
            if (caller == from_caller && at >= offset && at - offset < bytes.size())
              bytes[at - offset] ^= std::byte{1};
            return true;
          });
      expect_none(ranks.errors);
      std::string all;
      const auto errors = exchange(ranks, 1);
      EXPECT_TRUE(errors[0] || errors[1]);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const Error error = errors[rank] ? *errors[rank] : failure_of(*ranks.all[rank]);
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
        EXPECT_EQ(error.peer(), 1 - error.rank());
        all += error.what();
      }
      // The rank that finds it says so. The other one may only see that the connection breaks.
      EXPECT_THAT(all, HasSubstr("what came is not what the other side sent"));
    }
  }
}

// Rails 1 and 2 are the connections 1 and 2 of rank 1. Six connections, those that replace
// others among them, are changed or cut once, in different places, and what follows them is not.
// One that is replaced before it comes to its place does not count.
TEST(TlsTransport, AChangeOrACutOnAnotherRailIsMendedAndNoBitIsWrong) {
  std::atomic<int> meddled{0};
  Ranks ranks(
      2, [](int) { return with_tls(3); },
      [&](int connection, bool from_caller, std::uint64_t offset, std::span<std::byte> bytes) {
        if (connection < 1 || meddled == 6 || from_caller != (connection % 2 == 0)) return true;
        const std::uint64_t at = kHandshakes + 10007 * static_cast<std::uint64_t>(connection);
        if (at < offset || at - offset >= bytes.size()) return true;
        ++meddled;
        if (connection % 3 == 0) return false;
        bytes[at - offset] ^= std::byte{0x80};
        return true;
      });
  expect_none(ranks.errors);
  for (std::uint64_t group = 1; group < 60 && meddled < 6; ++group)
    expect_none(exchange(ranks, group, {3000, 400000, 900000}));
  EXPECT_EQ(meddled, 6);
  expect_none(exchange(ranks, 100));
}

// Others stay: where all are gone at a time, and a relay is on the way, the peer counts as lost.
TEST(TlsTransport, AChangeOrACutOnTheFirstOfSeveralRailsIsMendedAndNoBitIsWrong) {
  for (const bool cut : {false, true}) {
    std::atomic<int> meddled{0};
    Ranks ranks(
        2, [](int) { return with_tls(3); },
        [&](int connection, bool from_caller, std::uint64_t offset, std::span<std::byte> bytes) {
          const std::uint64_t at = kHandshakes + 2000;
          if (connection > 0 || from_caller == cut || at < offset || at - offset >= bytes.size())
            return true;
          ++meddled;
          if (cut) return false;
          bytes[at - offset] ^= std::byte{0x80};
          return true;
        });
    expect_none(ranks.errors);
    for (std::uint64_t group = 1; group < 60 && meddled < 1; ++group)
      expect_none(exchange(ranks, group, {3000, 400000}));
    EXPECT_EQ(meddled, 1);
    expect_none(exchange(ranks, 100));
  }
}

// The caller speaks last, so it has a connection then that the listener does not have.
TEST(TlsTransport, ARailWhoseHandshakeIsCutAtItsLastWordIsMadeAgain) {
  constexpr std::uint64_t kFirstFlights = 108 + 100;  // its answer, and TLS's first words begun
  std::atomic<int> cut{0};
  Ranks ranks(
      2, [](int) { return with_tls(3); },
      [&](int connection, bool from_caller, std::uint64_t offset, std::span<std::byte>) {
        if (!from_caller || connection < 1 || connection > 3 || offset < kFirstFlights) return true;
        ++cut;
        return false;
      });
  expect_none(ranks.errors);
  EXPECT_EQ(cut, 3);
  for (std::uint64_t group = 1; group < 4; ++group) expect_none(exchange(ranks, group));
}

/// A rank that is only its end of a connection, which has proved that it knows the key.
struct Caller {
  explicit Caller(const Endpoint& to, const PeerId& shown, std::uint8_t encrypted = 1,
                  TlsMode tls = TlsMode::kOn)
      : socket(connect_to(to, soon())) {
    PeerHello hello{.rank = 1, .size = 2, .connection = 77};
    hello.tls = tls;
    hello.encrypted = encrypted;
    hello.id = shown;
    answer = PeerHello::decode(handshake_as_caller(socket.get(), "key", hello.encode(), soon()));
  }
  bool is_closed() const {
    pollfd wait{socket.get(), POLLIN, 0};
    char bytes[4096];
    while (poll(&wait, 1, 10000) == 1) {
      const ssize_t n = recv(socket.get(), bytes, sizeof bytes, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }
  Descriptor socket;
  PeerHello answer;
};

// Somebody relays the first handshake, which it cannot make itself, and goes on with a certificate
// of its own, to both sides.
TEST(TlsTransport, WhoRelaysTheHandshakeCannotTakeOverTheConnection) {
  const auto attacker = std::make_shared<TlsContext>();
  Ranks ranks(2, [](int) { return with_tls(); });
  // To the listener: a caller that names an id in its hello, and shows the certificate of another.
  const Endpoint rank_0 = ranks.address_of_rank_0();
  Caller caller(rank_0, TlsContext().id());
  EXPECT_EQ(caller.answer.rank, 0);
  TlsChannel channel(std::move(caller.socket), attacker, TlsChannel::Role::kCaller,
                     caller.answer.id);
  const auto failure = error_of([&] {
    for (const Deadline end = soon(); !end.passed();) {
      if (channel.handshake() == Channel::Handshake::kDone) {
        std::byte byte;
        const iovec to{&byte, 1};
        const auto n = channel.read({&to, 1});
        EXPECT_FALSE(n) << "it ends with an alert";
      }
      pollfd wait{channel.fd(), POLLIN, 0};
      poll(&wait, 1, 100);
    }
  });
  EXPECT_EQ(failure.kind(), ErrorKind::kPeerLost);
  // One that wants no TLS is closed, and so is one whose TLS is noise.
  EXPECT_TRUE(Caller(rank_0, {}, 0).is_closed());
  const Caller noise(rank_0, {});
  send(noise.socket.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  EXPECT_TRUE(noise.is_closed());
  expect_none(exchange(ranks, 1));
}

// Whoever is on the way stops what rank 1 says within a record, and lets its bytes through one at a
// time. None of them is rank 1's for sure.
TEST(TlsTransport, ARecordThatTricklesInIsNoSignOfLife) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto rank_0 = std::async(std::launch::async, [&store] {
    TcpTransport::Options options = with_tls();
    options.silence = milliseconds(300);
    StoreClient client(store.endpoint(), "key", soon());
    TcpTransport transport(options, client, 0, 2, soon());
    return failure_of(transport, Deadline::in(seconds(5)));
  });
  const Endpoint there =
      parse_endpoint(StoreClient(store.endpoint(), "key", soon()).wait("peers/world/0", soon()));
  const auto own = std::make_shared<TlsContext>();
  Caller caller(there, own->id());
  TlsChannel channel(std::move(caller.socket), own, TlsChannel::Role::kCaller, caller.answer.id);
  complete_handshake(channel, soon());
  std::string bytes("\x17\x03\x03\x40\x00", 5);
  while (rank_0.wait_for(milliseconds(20)) != std::future_status::ready) {
    send(channel.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    bytes = "x";
  }
  const Error error = rank_0.get();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 has been silent"));
}

// To the caller: a listener that is a rank of the job by its first handshake, and another process
// behind it.
TEST(TlsTransport, AListenerWithAnotherCertificateIsRefusedByName) {
  const TlsContext genuine;
  const auto attacker = std::make_shared<TlsContext>();
  EventLoop loop;
  Descriptor listener = listen_on("127.0.0.1", {0, 0});
  const Endpoint there = local_endpoint(listener.get());
  PeerHello own{.rank = 0, .size = 2};
  own.tls = TlsMode::kOn;
  own.id = genuine.id();
  Acceptor acceptor(
      loop, std::move(listener),
      {.key = "key",
       .hello = own.encode(),
       .make_channel = [&](Descriptor socket, const Hello& hello) -> std::unique_ptr<Channel> {
         return std::make_unique<TlsChannel>(
             std::move(socket), attacker, TlsChannel::Role::kListener, PeerHello::decode(hello).id);
       },
       .admit = [](std::unique_ptr<Channel>, const Hello&) { ADD_FAILURE(); }});
  StoreServer store("127.0.0.1", {0, 0}, "key");
  StoreClient(store.endpoint(), "key", soon()).set("peers/world/0", there.text(), soon());
  auto rank_1 = std::async(std::launch::async, [&] {
    return error_of([&] {
      StoreClient client(store.endpoint(), "key", soon());
      const TcpTransport transport(with_tls(), client, 1, 2, soon());
    });
  });
  while (rank_1.wait_for(seconds(0)) != std::future_status::ready) loop.run_once(milliseconds(5));
  const Error error = rank_1.get();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(error.peer(), 0);
  EXPECT_THAT(error.what(), HasSubstr("its certificate is not of the process"));
}

// A relay that names its own address to a caller may have it do without TLS: see leaves_host. The
// listener sees where the connection comes from.
TEST(TlsTransport, ACallerFromElsewhereCannotDoWithoutIt) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto rank_0 = std::async(std::launch::async, [&store] {
    TcpTransport::Options options = with_tls();
    options.host = "127.0.0.2";
    options.tls = TlsMode::kAuto;
    StoreClient client(store.endpoint(), "key", soon());
    return error_of([&] { TcpTransport(options, client, 0, 2, Deadline::in(milliseconds(500))); });
  });
  const Endpoint there =
      parse_endpoint(StoreClient(store.endpoint(), "key", soon()).wait("peers/world/0", soon()));
  EXPECT_TRUE(Caller(there, {}, 0, TlsMode::kAuto).is_closed());
  EXPECT_THAT(rank_0.get().what(), HasSubstr("these ranks did not come: 1"));
}

// The first two connections of rank 1 are closed as by a rank with too many callers.
TEST(TlsTransport, AFirstConnectionThatIsClosedInItsHandshakeIsMadeAgain) {
  Ranks ranks(
      2, [](int) { return with_tls(); },
      [](int connection, bool, std::uint64_t, std::span<std::byte>) { return connection >= 2; });
  expect_none(ranks.errors);
  expect_none(exchange(ranks, 1, {3000}));
}

// Somebody has recorded all that rank 1 said, and says it again.
TEST(TlsTransport, WhatWasRecordedIsOfNoUse) {
  std::mutex mutex;
  Bytes recorded;
  Ranks ranks(
      2, [](int) { return with_tls(); },
      [&](int, bool from_caller, std::uint64_t, std::span<std::byte> bytes) {
        const std::lock_guard lock(mutex);
        if (from_caller) recorded.insert(recorded.end(), bytes.begin(), bytes.end());
        return true;
      });
  expect_none(exchange(ranks, 1, {3000}));
  Bytes again;
  {
    const std::lock_guard lock(mutex);
    again = recorded;
  }
  const Descriptor socket = connect_to(ranks.address_of_rank_0(), soon());
  EXPECT_GT(send(socket.get(), again.data(), again.size(), MSG_NOSIGNAL), 0);
  pollfd wait{socket.get(), POLLIN, 0};
  char bytes[4096];
  ssize_t n = 1;
  std::size_t heard = 0;
  while (n > 0 && poll(&wait, 1, 10000) == 1) {
    n = recv(socket.get(), bytes, sizeof bytes, 0);
    if (n > 0) heard += static_cast<std::size_t>(n);
  }
  EXPECT_LE(n, 0) << "the connection is closed";
  EXPECT_EQ(heard, 40u) << "after the listener's challenge";
  expect_none(exchange(ranks, 2));
}

// Half of them say nothing at all, the others know the key and stop before TLS. At most 256 are
// served at a time, each for 3 seconds where there are so many.
TEST(TlsTransport, ThreeHundredSlowCallersDoNotKeepARankOutAndLeaveNothing) {
  const std::size_t before = open_descriptors();
  {
    StoreServer store("127.0.0.1", {0, 0}, "key");
    const auto join = [&](int rank) {
      StoreClient client(store.endpoint(), "key", soon());
      return std::make_unique<TcpTransport>(with_tls(), client, rank, 2, soon());
    };
    auto rank_0 = std::async(std::launch::async, join, 0);
    const Endpoint there =
        parse_endpoint(StoreClient(store.endpoint(), "key", soon()).wait("peers/world/0", soon()));
    std::vector<Caller> stalled;
    std::vector<Descriptor> silent;
    const PeerId id = TlsContext().id();
    for (int i = 0; i < 150; ++i) stalled.emplace_back(there, id);
    for (int i = 0; i < 150; ++i) silent.push_back(connect_to(there, soon()));
    const auto rank_1 = join(1);
    const auto other = rank_0.get();
    rank_1->send(0, {1, 1}, 0, message_of(1, 0, 1, 100000));
    rank_1->flush();
    EXPECT_EQ(take_message(*other, 1, {1, 1}, 100000), message_of(1, 0, 1, 100000));
    stalled.clear();
    silent.clear();
    // Both ranks' own, and those of this test.
    const Deadline end = soon();
    while (open_descriptors() > before + 40 && !end.passed())
      std::this_thread::sleep_for(milliseconds(10));
    EXPECT_LE(open_descriptors(), before + 40);
  }
  EXPECT_LE(open_descriptors(), before);
}

// What was sent before the end arrives, and the end is no failure.
TEST(TlsTransport, ARankThatLeavesHasSaidEverything) {
  for (const int rails : {1, 3}) {
    Ranks ranks(2, [&](int) { return with_tls(rails); });
    ranks.all[0]->send(1, {1, 1}, 0, message_of(0, 1, 1, 3000000));
    ranks.all[0].reset();
    EXPECT_EQ(take_message(*ranks.all[1], 0, {1, 1}, 3000000), message_of(0, 1, 1, 3000000));
    for (const Deadline end = soon(); !ranks.all[1]->gone(0) && !end.passed();)
      ranks.all[1]->wait_for_event(ranks.all[1]->events(), milliseconds(5));
    EXPECT_TRUE(ranks.all[1]->gone(0));
    EXPECT_NO_THROW(ranks.all[1]->check());
  }
}

TEST(TlsTransport, TheCauseOfAFailureArrives) {
  Ranks ranks(3, [](int) { return with_tls(); });
  ranks.all[2]->send(0, {1, 1}, 0, message_of(2, 0, 1, 3000000));
  ranks.all[2]->flush();
  ranks.all[2]->abort(Error(ErrorKind::kNonFinite, "loss", "the loss is not a number"));
  ranks.all[2].reset();
  for (const int rank : {0, 1}) {
    TcpTransport& transport = *ranks.all[static_cast<std::size_t>(rank)];
    const Error error = failure_of(transport);
    EXPECT_THAT(error.what(), HasSubstr("the loss is not a number"));
    EXPECT_EQ(error.rank(), 2);
  }
}

}  // namespace
}  // namespace shoal::wire::tls_transport_test
