// A rank that connects rails, at the start and again where one is lost. Its peer is a listener that
// the test serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/first_rail_account.h"
#include "shoal/wire/rail_report.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/wire/soon.h"
#include "tests/wire/three_sockets.h"

namespace shoal::wire::redial_test {
namespace {

/// Takes a caller at `listener` and completes its handshake, or closes it in the middle.
std::pair<Descriptor, PeerHello> take_caller(const Descriptor& listener, bool in_the_middle,
                                             PeerHello own = {.rank = 0, .size = 2},
                                             const std::function<void()>& before_proof = {}) {
  pollfd wait{listener.get(), POLLIN, 0};
  if (poll(&wait, 1, 20000) != 1) return {Descriptor(), PeerHello()};
  Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ListenerHandshake handshake("key", own.encode());
  const Bytes greeting = handshake.greeting();
  send(caller.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (in_the_middle) return {Descriptor(), PeerHello()};
  while (!handshake.done()) {
    std::byte bytes[256];
    const ssize_t n = recv(caller.get(), bytes, std::min(sizeof bytes, handshake.wanted()), 0);
    if (n <= 0 || !handshake.feed(std::span(bytes, static_cast<std::size_t>(n))))
      return {Descriptor(), PeerHello()};
  }
  if (before_proof) before_proof();
  const Bytes proof = handshake.proof();
  send(caller.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
  return {std::move(caller), PeerHello::decode(handshake.hello())};
}

/// Holds a rank that connects at a point between its last word of the handshake and the answer.
class HeldCaller {
 public:
  /// The rank calls it while it waits.
  void wait_here() {
    if (!hold_) return;
    held_ = true;
    for (const Deadline end = soon(); hold_ && !end.passed();) std::this_thread::yield();
  }
  /// Completes the handshake of a caller at `listener` and resets the connection before the caller
  /// has read that. Returns the rail.
  int take_and_reset(const Descriptor& listener) {
    held_ = false;
    auto [socket, hello] = take_caller(listener, false, {.rank = 0, .size = 2}, [this] {
      hold_ = true;
      for (const Deadline end = soon(); !held_ && !end.passed();) std::this_thread::yield();
    });
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    socket = Descriptor();
    hold_ = false;
    return hello.rail;
  }

 private:
  std::atomic<bool> hold_{false};
  std::atomic<bool> held_{false};
};

// Whether the rank finds that when it asks for the addresses of both ends or when it reads is the
// same to it.
TEST(Redial, AConnectionThatIsResetBehindItsHandshakeIsMadeAgain) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  Descriptor listener = listen_on("127.0.0.1", {0, 0});
  StoreClient zero(store.endpoint(), "key", soon());
  zero.set("peers/world/0", local_endpoint(listener.get()).text(), soon());
  HeldCaller caller;
  auto one = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    return std::make_unique<TcpTransport>(
        TcpTransport::Options{
            .key = "key", .rails = 2, .may_go_on = [&caller] { caller.wait_here(); }},
        client, 1, 2, soon());
  });
  Descriptor sockets[2];
  for (Descriptor& socket : sockets) {
    const int rail = static_cast<int>(&socket - sockets);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(caller.take_and_reset(listener), rail);
    socket = take_caller(listener, false).first;
  }
  std::unique_ptr<TcpTransport> transport;
  EXPECT_NO_THROW(transport = one.get());
  ASSERT_TRUE(transport);
  EXPECT_EQ(transport->rails(0), 2);
  for (Descriptor& socket : sockets) socket = Descriptor();  // it waits for nobody
  listener = Descriptor();
}

// A rank that has too many callers at a time closes some of them, and so may anything on the way.
TEST(Redial, AHandshakeThatBreaksIsTriedAgain) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  Descriptor listener = listen_on("127.0.0.1", {0, 0});
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
  sockets.clear();  // else it would wait for what they say
  listener = Descriptor();
}

Bytes report_bytes(const RailReport& report, Stream stream = {0, kRail}) {
  return three_sockets::message_bytes(stream, report.encode());
}

/// Rank 1 of 2 with three rails, whose rank 0 is a listener and the sockets that it has accepted.
class RedialOfARail : public testing::Test {
 protected:
  RedialOfARail() {
    StoreClient zero(store_.endpoint(), "key", soon());
    zero.set("peers/world/0", local_endpoint(listener_.get()).text(), soon());
    auto one = std::async(std::launch::async, [&] {
      StoreClient client(store_.endpoint(), "key", soon());
      return std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key", .rails = 3}, client,
                                            1, 2, soon());
    });
    for (int i = 0; i < 3; ++i) {
      auto [socket, hello] = take_caller(listener_, false);
      rails_[hello.rail] = std::move(socket);
    }
    transport_ = one.get();
  }
  ~RedialOfARail() override {
    // Nobody is there any more, so it waits for nobody.
    for (Descriptor& socket : rails_) socket = Descriptor();
    listener_ = Descriptor();
  }
  void say(const RailReport& report) {
    const Bytes all = report_bytes(report);
    ASSERT_EQ(send(rails_[0].get(), all.data(), all.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(all.size()));
  }
  /// Waits for the next report that the transport sends.
  std::optional<RailReport> next_report() {
    std::optional<RailReport> found;
    for (const Deadline end = soon(); !found && !end.passed();) {
      pollfd wait{rails_[0].get(), POLLIN, 0};
      if (poll(&wait, 1, 100) != 1) continue;
      Bytes buffer(1 << 12);
      const ssize_t n = recv(rails_[0].get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n <= 0) return std::nullopt;
      said_.feed(std::span(buffer).first(static_cast<std::size_t>(n)),
                 [&](Stream stream, Bytes bytes) {
                   if (stream == Stream{0, kRail}) found = RailReport::decode(bytes);
                 });
    }
    return found;
  }

  StoreServer store_{"127.0.0.1", {0, 0}, "key"};
  Descriptor listener_ = listen_on("127.0.0.1", {0, 0});
  Descriptor rails_[3];
  Assembler said_;
  std::unique_ptr<TcpTransport> transport_;
};

// It connects when both have said what they have, and not before.
TEST_F(RedialOfARail, ItsNextConnectionHasTheNextNumber) {
  rails_[2] = Descriptor();
  EXPECT_EQ(next_report(), (RailReport{.rail = 2, .connection = 0, .closed = 1, .pieces = 0}));
  pollfd wait{listener_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 100), 0) << "rank 0 has not said what it has";
  say({.rail = 2, .connection = 0, .closed = 1, .pieces = 0});
  const auto [socket, hello] = take_caller(listener_, false);
  EXPECT_EQ(hello.rail, 2);
  EXPECT_EQ(hello.rails, 3);
  EXPECT_EQ(hello.attempt, 1);
  EXPECT_NO_THROW(transport_->check());
}

// The handshake breaks behind the proof of rank 0, say, which has a connection then and loses it.
TEST_F(RedialOfARail, AConnectionThatOnlyOneSideHasHadIsCounted) {
  say({.rail = 1, .connection = 0, .closed = 1, .pieces = 0});
  EXPECT_EQ(next_report(), (RailReport{.rail = 1, .connection = 0, .closed = 1, .pieces = 0}))
      << "it closes what its peer has closed";
  take_caller(listener_, true);
  say({.rail = 1, .connection = 1, .closed = 1, .pieces = 0});
  EXPECT_EQ(next_report(), (RailReport{.rail = 1, .connection = 1, .closed = 1, .pieces = 0}));
  PeerHello hello;
  for (const Deadline end = soon(); hello.attempt < 2 && !end.passed();)
    hello = take_caller(listener_, false).second;
  EXPECT_EQ(hello.rail, 1);
  EXPECT_EQ(hello.attempt, 2);
  EXPECT_NO_THROW(transport_->check());
}

/// Messages that came on rail 0, the first of them on a new connection.
struct Said {
  std::size_t messages = 0;
  std::optional<RailReport> first;
};

/// Reads what has come on a connection of rail 0.
Said said_on(const Descriptor& socket, const std::function<bool(const Said&)>& enough) {
  Said said;
  Assembler assembler;
  for (const Deadline end = soon(); !enough(said) && !end.passed();) {
    Bytes buffer(1 << 12);
    pollfd wait{socket.get(), POLLIN, 0};
    if (poll(&wait, 1, 100) != 1) continue;
    const ssize_t n = recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n <= 0) break;
    assembler.feed(std::span(buffer).first(static_cast<std::size_t>(n)),
                   [&](Stream stream, Bytes bytes) {
                     if (said.messages++ == 0 && stream == FirstRailAccount::kReports)
                       said.first = RailReport::decode(bytes);
                   });
  }
  return said;
}

// It does not wait for a report, which only the new connection could bring.
TEST_F(RedialOfARail, TheFirstOneIsConnectedAgainAtOnceAndSaysFirstHowMuchHasCome) {
  const Bytes beat = report_bytes({.rail = 1}, {0, kHeartbeat});
  for (int i = 0; i < 3; ++i) send(rails_[0].get(), beat.data(), beat.size(), MSG_NOSIGNAL);
  const Said before = said_on(rails_[0], [](const Said& said) { return said.messages >= 1; });
  EXPECT_FALSE(before.first);
  while (transport_->bytes_received(0) < 3 * beat.size())
    transport_->wait_for_event(transport_->events(), std::chrono::milliseconds(1));
  const auto begin = Clock::now();
  rails_[0] = Descriptor();
  auto [socket, hello] = take_caller(listener_, false);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(900));
  EXPECT_EQ(hello.rail, 0);
  EXPECT_EQ(hello.rails, 3);
  EXPECT_EQ(hello.attempt, 1);
  const Said after = said_on(socket, [](const Said& said) { return said.messages >= 1; });
  ASSERT_TRUE(after.first);
  EXPECT_EQ(after.first->pieces, 3u);
  // Nothing follows before the peer has said the same.
  pollfd wait{socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 600), 0);
  const Bytes none = report_bytes({.rail = 0}, FirstRailAccount::kReports);
  send(socket.get(), none.data(), none.size(), MSG_NOSIGNAL);
  EXPECT_EQ(poll(&wait, 1, 10000), 1);
  EXPECT_NO_THROW(transport_->check());
  rails_[0] = std::move(socket);
}

// The peer closes what it has taken before the rank has read that.
TEST_F(RedialOfARail, ACallForTheFirstOneThatFailsIsMadeAgain) {
  rails_[0] = Descriptor();
  for (int i = 0; i < 3; ++i) take_caller(listener_, true);
  auto [socket, hello] = take_caller(listener_, false);
  EXPECT_EQ(hello.rail, 0);
  EXPECT_EQ(hello.attempt, 1) << "it is still the next one";
  rails_[0] = std::move(socket);
  EXPECT_NO_THROW(transport_->check());
}

TEST_F(RedialOfARail, APeerThatClosesAllAndListensNoMoreIsLostAtOnce) {
  const auto begin = Clock::now();
  listener_ = Descriptor();
  for (Descriptor& socket : rails_) socket = Descriptor();
  const auto failed = [&] {
    try {
      transport_->check();
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_EQ(error.peer(), 0);
      return true;
    }
  };
  for (const Deadline end = soon(); !failed() && !end.passed();)
    transport_->wait_for_event(transport_->events(), std::chrono::milliseconds(1));
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(500));
}

// The address of a process that has ended belongs to another one of the same job.
TEST_F(RedialOfARail, APeerInWhosePlaceAnotherProcessAnswersIsLostAtOnce) {
  for (Descriptor& socket : rails_) socket = Descriptor();
  PeerHello other{.rank = 0, .size = 2};
  other.id.bytes[0] = std::byte{1};
  const auto [socket, hello] = take_caller(listener_, false, other);
  EXPECT_EQ(hello.rail, 0);
  const auto begin = Clock::now();
  std::optional<Error> lost;
  while (!lost && Clock::now() - begin < std::chrono::seconds(5)) {
    try {
      transport_->check();
      transport_->wait_for_event(transport_->events(), std::chrono::milliseconds(1));
    } catch (const Error& error) {
      lost = error;
    }
  }
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(lost->peer(), 0);
  EXPECT_EQ(lost->operation(), "receive") << "the loss, and no silence since: " << lost->what();
}

/// A lower rank of 3, which the test plays, with five rails.
struct LowerRank {
  static constexpr int kRails = 5;
  explicit LowerRank(std::int32_t rank) : own{.rank = rank, .size = 3} {}
  void take_rails() {
    for (int i = 0; i < kRails; ++i) {
      auto [socket, hello] = take_caller(listener, false, own);
      rails[hello.rail] = std::move(socket);
    }
  }
  /// Loses all rails but the first.
  void lose_rails() {
    Bytes all;
    for (std::uint16_t rail = 1; rail < kRails; ++rail) {
      const Bytes report = report_bytes({.rail = rail, .connection = 0, .closed = 1, .pieces = 0});
      all.insert(all.end(), report.begin(), report.end());
      rails[rail] = Descriptor();
    }
    EXPECT_EQ(send(rails[0].get(), all.data(), all.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(all.size()));
  }

  Descriptor listener = listen_on("127.0.0.1", {0, 0});
  PeerHello own;
  Descriptor rails[kRails];
};

// A rank whose listener takes no caller is called for ten seconds, for each rail. Where calls were
// made one after the other, those to rank 1 came when forty seconds were over.
TEST(Redial, APeerThatDoesNotAnswerHoldsUpNoOther) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  LowerRank zero(0);
  LowerRank one(1);
  StoreClient client(store.endpoint(), "key", soon());
  client.set("peers/world/0", local_endpoint(zero.listener.get()).text(), soon());
  client.set("peers/world/1", local_endpoint(one.listener.get()).text(), soon());
  auto two = std::async(std::launch::async, [&] {
    StoreClient own(store.endpoint(), "key", soon());
    return std::make_unique<TcpTransport>(
        TcpTransport::Options{.key = "key", .silence = std::chrono::minutes(2), .rails = 5}, own, 2,
        3, soon());
  });
  zero.take_rails();
  one.take_rails();
  const auto transport = two.get();
  zero.lose_rails();
  pollfd called{zero.listener.get(), POLLIN, 0};
  EXPECT_EQ(poll(&called, 1, 20000), 1);
  one.lose_rails();
  std::vector<int> back;
  std::vector<Descriptor> sockets;
  for (int i = 1; i < LowerRank::kRails; ++i) {
    auto [socket, hello] = take_caller(one.listener, false, one.own);
    ASSERT_GE(socket.get(), 0) << "nobody calls rank 1";
    back.push_back(hello.rail);
    sockets.push_back(std::move(socket));
  }
  EXPECT_THAT(back, testing::UnorderedElementsAre(1, 2, 3, 4));
  EXPECT_NO_THROW(transport->check());
  for (LowerRank* rank : {&zero, &one}) *rank = LowerRank(0);  // nobody waits for their end
}

}  // namespace
}  // namespace shoal::wire::redial_test
