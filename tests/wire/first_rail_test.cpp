// The first of several connections breaks: who may take its place, what comes again, and how a peer
// that has ended is told from one that has lost its connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "tests/wire/soon.h"
#include "tests/wire/three_sockets.h"

namespace shoal::wire::first_rail_test {
namespace {

using namespace three_sockets;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class FirstRail : public TransportWithThreeSockets {};

// Whether it listens somewhere is not known.
TEST_F(FirstRail, TheEndOfAllIsTheEndOfThePeer) {
  const auto begin = Clock::now();
  for (Descriptor& socket : peer_) socket = Descriptor();
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("rank 1 closed its connection"));
  EXPECT_LT(Clock::now() - begin, kSilence * 9 / 10) << "nobody waits for another one";
}

// The peer says that it has all but the last three messages, and one of these has come in part.
TEST_F(FirstRail, AFirstRailThatBreaksIsReplacedAndWhatWasLostComesAgainInOrder) {
  for (std::size_t i = 0; i < 5; ++i)
    transport_->send(1, {1, i % 2}, 0, Bytes(100 + i, static_cast<std::byte>(i)));
  transport_->flush();
  auto before = with_place(messages_until({1, 0}, 3));
  ASSERT_GE(before.size(), 5u);
  const Bytes half = message_bytes({2, 1}, Bytes(50, std::byte{9}));
  message({2, 1}, Bytes(10, std::byte{8}));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {2, 1}); }));
  send_bytes(peer_[0], half.data(), half.size() - 5);
  reset(0);
  const std::uint64_t has = before.size() - 3;
  call_again(1, has);
  message({2, 1}, Bytes(50, std::byte{9}));
  transport_->send(1, {1, 0}, 0, Bytes(7));
  transport_->flush();
  auto after = messages_until({1, 0}, 3);
  ASSERT_TRUE(first_report(after));
  EXPECT_EQ(first_report(after)->pieces, 1u) << "a part of a chunk is none";
  after = with_place(after);
  ASSERT_GE(after.size(), 4u);
  after.resize(3);
  EXPECT_EQ(after, Messages(before.end() - 3, before.end()));
  for (const std::size_t bytes : {10, 50}) {
    EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {2, 1}); }));
    const auto chunk = transport_->take(1, {2, 1});
    ASSERT_TRUE(chunk);
    EXPECT_EQ(chunk->bytes(), bytes);
  }
  EXPECT_EQ(failure(), "");
}

// The caller proves that it has the key, and says which process and which connection it goes on.
TEST_F(FirstRail, StrangersAndStaleCallersDoNotTakeThePlaceOfTheFirstRail) {
  const auto call_again_as = [&](int rails, std::uint32_t connection, int attempt) {
    return call_rank_0(address_, 0, rails, connection, attempt);
  };
  const auto refuse_all = [&] {
    EXPECT_TRUE(is_closed(call_again_as(3, kConnection + 1, 1))) << "another process";
    EXPECT_TRUE(is_closed(call_again_as(4, kConnection, 1))) << "of another number of rails";
    EXPECT_TRUE(is_closed(call_again_as(3, kConnection, 255))) << "an earlier one";
    EXPECT_TRUE(is_closed(call_again_as(3, kConnection, 0))) << "the very first one";
    const Descriptor stranger = connect_to(address_, soon());
    const PeerHello hello{
        .rank = 1, .size = 2, .attempt = 1, .rails = 3, .connection = kConnection};
    EXPECT_THROW(handshake_as_caller(stranger.get(), "a guess", hello.encode(), soon()), Error);
    const Descriptor other = connect_to(address_, soon());
    PeerHello tls = hello;
    tls.id.bytes[0] = std::byte{1};
    handshake_as_caller(other.get(), "key", tls.encode(), soon());
    EXPECT_TRUE(is_closed(other)) << "of another certificate";
  };
  refuse_all();
  message({1, 3}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
  reset(0);
  refuse_all();
  call_again(1, with_place(messages()).size());
  message({1, 4}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 4}); }));
  EXPECT_EQ(failure(), "");
}

// The peer has found that it is broken, and this rank has not.
TEST_F(FirstRail, ANewFirstRailTakesThePlaceOfOneThatIsThere) {
  message({1, 3}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
  const auto before = with_place(messages());
  const Descriptor old = std::move(peer_[0]);
  call_again(1, before.size());
  Bytes rest(1 << 16);
  EXPECT_TRUE(within(seconds(10),
                     [&] { return recv(old.get(), rest.data(), rest.size(), MSG_DONTWAIT) == 0; }));
  transport_->send(1, {1, 1}, 0, Bytes(100));
  transport_->flush();
  const auto after = messages_until({1, 1}, 1);
  ASSERT_TRUE(first_report(after));
  EXPECT_EQ(first_report(after)->pieces, 1u);
  EXPECT_EQ(failure(), "");
}

TEST_F(FirstRail, AFirstRailThatDoesNotComeAgainEndsThePeerWithItsCause) {
  const auto begin = Clock::now();
  reset(0);
  within(seconds(10), [&] {
    beat_on_others();
    transport_->wait_for_event(transport_->events(), milliseconds(50));
    return !failure().empty();
  });
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: the connection broke"));
  EXPECT_THAT(failure(), HasSubstr("the first connection could not be made again"));
  EXPECT_GE(Clock::now() - begin, kSilence * 19 / 20);
  EXPECT_LT(Clock::now() - begin, 6 * kSilence);
}

class FirstRailOfQuickBeats : public TransportWithThreeSockets {
 protected:
  FirstRailOfQuickBeats() : TransportWithThreeSockets(milliseconds(100)) {}
  void wait_for_failure(const std::function<void()>& meanwhile) {
    EXPECT_TRUE(within(seconds(10), [&] {
      meanwhile();
      beat_on_others();
      transport_->wait_for_event(transport_->events(), milliseconds(30));
      return !failure().empty();
    }));
    EXPECT_GE(Clock::now() - begin_, kSilence * 19 / 20);
    EXPECT_LT(Clock::now() - begin_, 6 * kSilence);
  }
  const Clock::time_point begin_ = Clock::now();
};

// Something on the way cuts each new one, at once or behind the first word on it, and lets the
// others be.
TEST_F(FirstRailOfQuickBeats, AFirstRailThatIsMadeAgainAndAgainForNothingEndsThePeerWithItsCause) {
  transport_->send(1, {1, 1}, 0, Bytes(100));
  transport_->flush();
  messages_until({1, 1}, 1);
  reset(0);
  int attempts = 0;
  wait_for_failure([&] {
    call_silently(++attempts);
    if (attempts % 2 == 0) {
      const Bytes none = message_bytes(FirstRailAccount::kReports, RailReport{}.encode());
      send(peer_[0].get(), none.data(), none.size(), MSG_NOSIGNAL);
      // The transport may give up at any moment, and then it says no more.
      within(seconds(10), [&] { return !messages().empty() || !failure().empty(); });
    }
    reset(0);
  });
  EXPECT_GT(attempts, 5);
  EXPECT_THAT(failure(), HasSubstr("rank 1 "));
  EXPECT_THAT(failure(), HasSubstr("nothing has got through"));
}

// One that carries a little each time is worth something.
TEST_F(FirstRailOfQuickBeats, AFirstRailThatIsCutAgainAndAgainAndGetsOnDoesNotEndThePeer) {
  std::uint64_t has = with_place(messages()).size();
  for (int attempt = 1; Clock::now() - begin_ < seconds(3) && failure().empty(); ++attempt) {
    transport_->send(1, {1, 1}, 0, Bytes(10));
    transport_->flush();
    reset(0);
    call_again(attempt, has);
    has += with_place(messages_until({1, 1}, 1)).size();
    beat_on_others();
    transport_->wait_for_event(transport_->events(), milliseconds(30));
  }
  EXPECT_EQ(failure(), "");
}

TEST_F(FirstRailOfQuickBeats, APeerThatReplacesItsFirstRailAndSaysNothingThereIsLost) {
  const Descriptor old = std::move(peer_[0]);
  call_silently(1);
  wait_for_failure([] {});
  EXPECT_THAT(failure(), HasSubstr("rank 1 has replaced its first connection"));
  EXPECT_THAT(failure(), HasSubstr("nothing has got through on"));
}

// The cause of a failure is not sent again, so it does not wait for what the peer has.
TEST_F(FirstRail, AFailureIsToldOnANewFirstRailBeforeThePeerHasSaidHowMuchItHas) {
  transport_->send(1, {1, 1}, 0, Bytes(100));
  transport_->flush();
  const std::uint64_t has = with_place(messages_until({1, 1}, 1)).size();
  reset(0);
  call_silently(1);
  EXPECT_EQ(messages_until(FirstRailAccount::kReports, 1).size(), 1u);
  transport_->abort(Error(ErrorKind::kUsage, "test", "enough"));
  EXPECT_EQ(messages_until({0, kAbort}, 1).size(), 1u);
  message(FirstRailAccount::kReports, RailReport{.pieces = has + 5}.encode());
  message({1, 3}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
  EXPECT_THAT(failure(), HasSubstr("enough"));
}

TEST_F(FirstRail, AFirstReportThatCannotBeIsAnErrorThatNamesThePeer) {
  message(FirstRailAccount::kReports, RailReport{.pieces = 1000}.encode());
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: a report of 1000 chunks on connection 0"));
}

/// The peer has a listener, of which it tells the transport.
class TransportWithAListener : public TransportWithThreeSockets {
 protected:
  TransportWithAListener() {
    const std::string text =
        local_endpoint(listener_.get()).text() + " " + local_endpoint(peer_[0].get()).text();
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    message({0, kListener}, Bytes(bytes, bytes + text.size()));
    // It is tried once.
    pollfd wait{listener_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&wait, 1, 10000), 1);
    EXPECT_TRUE(is_closed(Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))));
  }
  Descriptor listener_ = listen_on("127.0.0.1", {0, 0});
};

// All connections of a process are gone at a time, and it lives.
TEST_F(TransportWithAListener, APeerThatListensHasNotEndedThoughAllItsConnectionsHave) {
  const std::uint64_t chunks = with_place(messages()).size();
  for (const int rail : {0, 1, 2}) reset(rail);
  EXPECT_FALSE(within(milliseconds(300), [&] { return !failure().empty(); })) << failure();
  call_again(1, chunks);
  message({1, 4}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 4}); }));
  EXPECT_EQ(failure(), "");
}

TEST_F(TransportWithAListener, APeerThatListensNoMoreHasEnded) {
  for (const int rail : {0, 1, 2}) reset(rail);
  listener_ = Descriptor();
  const auto begin = Clock::now();
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_LT(Clock::now() - begin, milliseconds(500));
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: the connection broke"));
}

/// As above, but an address translator is on the way.
class TransportWithAListenerElsewhere : public TransportWithThreeSockets {
 protected:
  Descriptor listener_ = listen_on("127.0.0.1", {0, 0});
};

// What such a peer says of itself is of no use: somebody else may be there.
TEST_F(TransportWithAListenerElsewhere, OnlyWhoIsCalledDirectlyIsAsked) {
  const std::string text = local_endpoint(listener_.get()).text() + " 10.0.0.9:77";
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  message({0, kListener}, Bytes(bytes, bytes + text.size()));
  message({1, 3}, Bytes(1));
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
  const auto begin = Clock::now();
  for (const int rail : {0, 1, 2}) reset(rail);
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_LT(Clock::now() - begin, milliseconds(500));
}

}  // namespace
}  // namespace shoal::wire::first_rail_test
