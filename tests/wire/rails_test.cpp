// Several connections between two ranks: which of them are admitted, what the loss of one means,
// and words that overtake data. The peer of the transport is a few sockets.
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
#include "shoal/wire/rail_report.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_control.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/error_of.h"
#include "tests/wire/soon.h"
#include "tests/wire/three_sockets.h"

namespace shoal::wire::rails_test {
namespace {

using namespace three_sockets;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

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
  std::vector<Descriptor> rails;
  rails.push_back(call_rank_0(address, 0));
  rails.push_back(call_rank_0(address, 1));
  EXPECT_TRUE(is_closed(call_rank_0(address, 2, 3, kConnection + 1))) << "of an earlier attempt";
  EXPECT_TRUE(is_closed(call_rank_0(address, 2, 4))) << "of more than rail 0 has said";
  EXPECT_TRUE(is_closed(call_rank_0(address, 3))) << "there are three, from 0 on";
  EXPECT_TRUE(is_closed(call_rank_0(address, 1))) << "it is there";
  rails.push_back(call_rank_0(address, 2));
  const auto transport = zero.get();
  EXPECT_EQ(transport->rails(1), 3);
  EXPECT_NO_THROW(transport->check());
  rails.clear();  // else it would wait for what they say
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
  EXPECT_LT(Clock::now() - end, kSilence * 9 / 10);
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

// A rank that fails and ends: its error may come later than the end of another rail.
TEST_F(TransportWithThreeSockets, TheCauseCountsThoughAnotherRailEndsBefore) {
  reset(1);
  EXPECT_FALSE(within(milliseconds(50), [&] { return !failure().empty(); }));
  message({0, kAbort}, encode(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 2)));
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("the shard is truncated"));
}

// What has come whole is counted, and what has not comes again, on another rail or on the new one.
TEST_F(TransportWithThreeSockets, ARailThatBreaksIsReplaced) {
  announce({1, 3}, 3 * kPiece);
  piece(2, 0, kPiece, 3 * kPiece);
  const PieceHeader half{.length = kPiece, .message = 0, .offset = 0, .total = 3 * kPiece};
  send_bytes(peer_[2], &half, sizeof half);
  send_bytes(peer_[2], Bytes(1000).data(), 1000);
  shutdown(peer_[2].get(), SHUT_WR);
  EXPECT_EQ(final_report(2), (RailReport{.rail = 2, .connection = 0, .closed = 1, .pieces = 1}));
  EXPECT_TRUE(is_closed(call_rank_0(address_, 2, 3, kConnection, 1)))
      << "its number of pieces is not known yet";
  const std::uint64_t before = transport_->bytes_received(1);
  report({.rail = 2, .connection = 0, .closed = 1, .pieces = 0});
  ASSERT_TRUE(within(seconds(10), [&] { return transport_->bytes_received(1) > before; }));
  EXPECT_TRUE(is_closed(call_rank_0(address_, 2, 3, kConnection, 0))) << "that is the old one";
  EXPECT_TRUE(is_closed(call_rank_0(address_, 2, 3, kConnection, 2))) << "there was none between";
  peer_[2] = call_rank_0(address_, 2, 3, kConnection, 1);
  piece(2, 0, 0, 3 * kPiece);
  piece(1, 0, 2 * kPiece, 3 * kPiece);
  EXPECT_TRUE(within(seconds(10), [&] { return transport_->has_arrived(1, {1, 3}); }));
  const auto chunk = transport_->take(1, {1, 3});
  ASSERT_TRUE(chunk);
  EXPECT_EQ(Bytes(chunk->data(), chunk->data() + chunk->bytes()), Bytes(3 * kPiece, std::byte{1}));
  EXPECT_EQ(failure(), "");
}

TEST_F(TransportWithThreeSockets, APeerWithoutRailsButTheFirstIsLostAfterTheTimeOfSilence) {
  const auto begin = Clock::now();
  reset(1);
  reset(2);
  while (failure().empty() && Clock::now() - begin < seconds(10)) {
    message({0, kHeartbeat}, {});
    transport_->wait_for_event(transport_->events(), milliseconds(50));
  }
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: connection"));
  EXPECT_THAT(failure(), HasSubstr("no connection but the first could be made again"));
  EXPECT_GE(Clock::now() - begin, kSilence * 19 / 20);
}

// It has the key, so it may be a rank of the same job that was started a second time.
TEST_F(TransportWithThreeSockets, ALateCallerWithAnotherTlsModeIsRefusedAlone) {
  const Descriptor socket = connect_to(address_, soon());
  const PeerHello hello{
      .rank = 1, .size = 2, .rails = 3, .connection = kConnection + 1, .tls = TlsMode::kOff};
  const Hello answer = handshake_as_caller(socket.get(), "key", hello.encode(), soon());
  EXPECT_EQ(PeerHello::decode(answer).tls, TlsMode::kAuto) << "it learns why";
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ(failure(), "");
}

TEST_F(TransportWithThreeSockets, AnyRailTellsWhyThePeerHasFailed) {
  const Bytes words =
      encode(Error(ErrorKind::kUsage, "test", "enough").at(1, 2).hint("do something else"));
  announce({1, 3}, 3 * kPiece);
  piece(2, 0, 0, 3 * kPiece);
  const PieceHeader header{.length = static_cast<std::uint32_t>(words.size()),
                           .message = PieceHeader::kLastWords,
                           .total = words.size()};
  send_bytes(peer_[2], &header, sizeof header);
  send_bytes(peer_[2], words.data(), words.size());
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(), HasSubstr("enough"));
}

TEST_F(TransportWithThreeSockets, AFailureIsToldOnEveryRail) {
  transport_->abort(Error(ErrorKind::kUsage, "test", "enough"));
  for (const int rail : {1, 2}) {
    PieceHeader header;
    ASSERT_EQ(recv(peer_[rail].get(), &header, sizeof header, MSG_WAITALL),
              static_cast<ssize_t>(sizeof header));
    EXPECT_EQ(header.message, PieceHeader::kLastWords);
    ASSERT_LT(header.length, 1000u);
    Bytes words(header.length);
    ASSERT_EQ(recv(peer_[rail].get(), words.data(), words.size(), MSG_WAITALL),
              static_cast<ssize_t>(words.size()));
    const Error error = decode_error(words);
    EXPECT_EQ(error.message(), "enough");
    EXPECT_EQ(error.rank(), 0);
  }
}

// The kernel tells the reason once, and here whoever writes gets it.
TEST_F(TransportWithThreeSockets, ARankThatIsResetIsNotSaidToHaveEnded) {
  for (const int rail : {0, 1, 2}) reset(rail);
  EXPECT_TRUE(within(seconds(10), [&] {
    transport_->send(1, {1, 1}, 0, Bytes(100));
    transport_->flush();
    return !failure().empty();
  }));
  EXPECT_THAT(failure(), HasSubstr("rank 1 is lost: the connection broke: "));
  EXPECT_THAT(failure(), HasSubstr("or it lives"));
  EXPECT_THAT(failure(), testing::Not(HasSubstr("closed its connection")));
}

TEST(TransportWithOneSocket, APeerThatIsResetIsNotSaidToHaveEnded) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto connected = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    return call_rank_0(parse_endpoint(client.wait("peers/world/0", soon())), 0, 1);
  });
  StoreClient client(store.endpoint(), "key", soon());
  TcpTransport transport({.key = "key"}, client, 0, 2, soon());
  Descriptor peer = connected.get();
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  peer = Descriptor();
  const auto error = error_of([&] {
    for (const Deadline end = soon(); !end.passed();) {
      transport.send(1, {1, 1}, 0, Bytes(100));
      transport.flush();
      transport.check();
    }
  });
  EXPECT_THAT(error.what(), HasSubstr("rank 1 is lost: the connection broke: "));
  EXPECT_THAT(error.what(), HasSubstr("or it lives"));
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
  /// The peer says that it lives, and reads and reports all that there is on a rail.
  void beat() { message({0, kHeartbeat}, {}); }
  void read_all(int rail) {
    Bytes buffer(1 << 20);
    for (ssize_t n = 0;
         (n = recv(peer_[rail].get(), buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;)
      bytes_read_[rail] += static_cast<std::size_t>(n);
    report({.rail = static_cast<std::uint16_t>(rail),
            .pieces = bytes_read_[rail] / (kPiece + Assembler::kHeaderBytes)});
  }
  /// Reads all that there is on a rail and counts the signs of life.
  void read_beats(int rail) {
    Bytes& unread = unread_[rail];
    const std::size_t before = unread.size();
    unread.resize(before + (1 << 20));
    const ssize_t n = recv(peer_[rail].get(), unread.data() + before, 1 << 20, MSG_DONTWAIT);
    unread.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    std::size_t at = 0;
    for (PieceHeader header; at + sizeof header <= unread.size();) {
      std::memcpy(&header, unread.data() + at, sizeof header);
      if (at + sizeof header + header.length > unread.size()) break;
      if (header.message == PieceHeader::kBeat) ++beats_;
      at += sizeof header + header.length;
    }
    unread.erase(unread.begin(), unread.begin() + static_cast<std::ptrdiff_t>(at));
  }

  const Bytes body_ = Bytes(24 << 20, std::byte{1});  ///< more than two sockets take
  Bytes unread_[3];
  std::size_t beats_ = 0;
  std::size_t bytes_read_[3] = {};
  const Released released_ = std::make_shared<std::atomic<bool>>(false);
};

// It keeps no more than it must, whatever the peer does not say.
TEST_F(TransportWithStuckRails, OfWhatIsNotReportedNoMoreThanSixteenMegabytesAreWrittenToARail) {
  std::size_t read[3] = {};
  Bytes buffer(1 << 20);
  const auto read_without_report = [&](int rail) {
    for (ssize_t n = 0;
         (n = recv(peer_[rail].get(), buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;)
      read[rail] += static_cast<std::size_t>(n);
  };
  within(milliseconds(600), [&] {
    beat();
    for (const int rail : {1, 2}) read_without_report(rail);
    return false;
  });
  static const Bytes more(24 << 20, std::byte{1});
  transport_->send(1, {1, 2}, 0, {}, more, nullptr);
  transport_->flush();
  within(milliseconds(600), [&] {
    beat();
    for (const int rail : {1, 2}) read_without_report(rail);
    return false;
  });
  constexpr std::size_t kMost = RailAccount::kMostUnreported * (kPiece + Assembler::kHeaderBytes);
  for (const int rail : {1, 2}) {
    EXPECT_GE(read[rail], kMost);
    EXPECT_LT(read[rail], kMost + kPiece) << "beats may come beside the pieces, and no piece";
  }
  EXPECT_EQ(failure(), "");
}

// Nothing gets through on rail 0, and the peer lives: it is heard on the others, and hears there
// that this rank lives.
TEST_F(TransportWithStuckRails, AFirstRailOnWhichNothingGetsThroughIsGivenUpAndOthersTellOfLife) {
  const Bytes small(16 << 10, std::byte{1});
  std::uint64_t sequence = 0;
  EXPECT_TRUE(within(seconds(20), [&] {
    // What the peer does not read fills the socket.
    for (int i = 0; i < 16; ++i) transport_->send(1, {9, ++sequence}, 0, small);
    transport_->flush();
    beat_on_others();
    for (const int rail : {1, 2}) read_beats(rail);
    return !failure().empty();
  }));
  EXPECT_THAT(failure(), HasSubstr("connection 0 of 3: nothing that was sent there for"));
  EXPECT_THAT(failure(), HasSubstr("the first connection could not be made again"));
  EXPECT_GT(beats_, 10u);
}

TEST_F(TransportWithThreeSockets, AReportThatCannotBeIsAnErrorThatNamesThePeer) {
  report({.rail = 1, .connection = 0, .closed = 0, .pieces = 1});
  EXPECT_TRUE(within(seconds(10), [&] { return !failure().empty(); }));
  EXPECT_THAT(failure(),
              HasSubstr("a report of 1 pieces on connection 1, of which 0 were written"));
}

TEST_F(TransportWithStuckRails, OneOnWhichNothingGetsThroughIsGivenUpAndItsPiecesGoElsewhere) {
  const auto begin = Clock::now();
  std::optional<RailReport> last;
  within(seconds(10), [&] {
    beat();
    read_all(2);
    for (const RailReport& report : reports())
      if (report.closed != 0) last = report;
    return last.has_value();
  });
  EXPECT_EQ(last, (RailReport{.rail = 1, .connection = 0, .closed = 1, .pieces = 0}));
  EXPECT_GE(Clock::now() - begin, kSilence);
  // Of what was written to rail 1 it has nothing: all of that comes on rail 2.
  report({.rail = 1, .connection = 0, .closed = 1, .pieces = 0});
  within(seconds(10), [&] {
    beat();
    read_all(2);
    return released_->load();
  });
  EXPECT_TRUE(*released_);
  EXPECT_GE(bytes_read_[2], body_.size()) << "every piece has come on it";
  EXPECT_EQ(failure(), "");
}

// A job that is suspended and goes on: neither end has read or acknowledged anything meanwhile.
TEST_F(TransportWithStuckRails, TimeInWhichThisRankWasHeldUpHardlyCounts) {
  std::atomic<bool> held_up{false};
  transport_->answer_for(7, [&] {
    held_up = true;
    std::this_thread::sleep_for(kSilence * 5 / 2);
    return Bytes(1);
  });
  const std::uint64_t group = 7;
  const auto* bytes = reinterpret_cast<const std::byte*>(&group);
  ASSERT_FALSE(within(milliseconds(200), [&] { return !failure().empty(); })) << failure();
  message({0, kQuestion}, Bytes(bytes, bytes + sizeof group));
  within(12 * kSilence, [&] {
    beat();
    if (held_up) {
      read_all(1);
      read_all(2);
    }
    return *released_ || !failure().empty();
  });
  EXPECT_EQ(failure(), "");
  EXPECT_TRUE(*released_);
  for (const RailReport& report : reports()) EXPECT_EQ(report.closed, 0u);
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
