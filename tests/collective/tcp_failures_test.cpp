// Collectives over TCP on loopback by ranks that call another operation, die, fall silent, send
// wrong bytes or leave: every other rank ends, and names the cause.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "shoal/base/duration.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/tcp_ranks.h"
#include "tests/sanitized.h"

namespace shoal::collective::tcp_failures_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A connection to rank `to` from a caller that is `rank`, knows the key, and sends only what the
/// test sends.
wire::Link impostor(const wire::Endpoint& store, int rank, int size, int to = 0) {
  wire::StoreClient client(store, "key", soon());
  client.set(fmt::format("peers/world/{}", rank), "127.0.0.1:1", soon());
  wire::Descriptor socket = wire::connect_to(
      wire::parse_endpoint(client.wait(fmt::format("peers/world/{}", to), soon())), soon());
  const wire::PeerHello hello{.rank = rank, .size = size};
  wire::handshake_as_caller(socket.get(), "key", hello.encode(), soon());
  return wire::Link(std::move(socket));
}

TEST(TcpFailures, ADisagreementIsAnErrorOnAllRanksThatNamesBothCalls) {
  for (const Kind other : {Kind::kAllGather, Kind::kBroadcast, Kind::kBarrier, Kind::kAllReduce}) {
    const auto errors = on_tcp(4, [&](TcpCommunicator& c) {
      std::vector<float> in(8);
      std::vector<float> out(64);
      const bool odd = c.rank() == 2;
      c.run({.kind = odd ? other : Kind::kAllReduce,
             .type = ElementType::kF32,
             .buffer = {in.data(), out.data(), odd && other == Kind::kAllReduce ? 7u : 8u},
             .peer = odd && other == Kind::kBroadcast ? 2 : -1},
            soon());
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error) << name(other);
      EXPECT_EQ(error->kind(), ErrorKind::kMismatch);
      const std::string text = error->what();
      EXPECT_NE(text.find("calls all_reduce by sum of 8 x f32"), std::string::npos) << text;
      EXPECT_NE(text.find(fmt::format("calls {}", name(other))), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2 calls"), std::string::npos) << text;
    }
  }
}

TEST(TcpFailures, TimesOutNamingWhoIsAwaited) {
  const auto errors = on_tcp(2, [](TcpCommunicator& c) {
    int x = 0;
    if (c.rank() == 1) {  // never enters
      while (true) c.poll(milliseconds(5)), std::this_thread::sleep_for(milliseconds(5));
    }
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kI32,
           .buffer = {&x, &x, 1},
           .timeout = milliseconds(200)},
          soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error->peer(), 1);
  }
}

// A rank that does not come is asked for its status, and answers even while it is busy.
TEST(TcpFailures, ATimeoutSaysWhereEveryRankStands) {
  std::atomic<int> inside = 0;
  const auto errors = on_tcp(4, [&](TcpCommunicator& c) {
    int x = 0;
    const auto all_reduce = [&] {
      return c.start({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}});
    };
    for (int i = 0; i < 70; ++i) c.wait(all_reduce(), soon());
    if (c.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(1500));
      for (;;) c.poll(milliseconds(5));
    }
    const Handle handle = all_reduce();
    for (++inside; inside < 3;) c.poll(milliseconds(1));
    c.poll(milliseconds(50));  // what the other two have said is here
    c.wait(handle, Deadline::in(milliseconds(300)));
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error->message(),
                ::testing::HasSubstr(
                    "rank 3 never entered #71 (its last was #70, all_reduce by sum of 1 x i32"));
    EXPECT_THAT(error->message(), ::testing::ContainsRegex("rank [012] is inside #71, all_reduce"));
  }
}

TEST(FlightRecorder, KnowsWhatIsCompleteInWhateverOrderItEnds) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.entries(0).empty());
  EXPECT_EQ(recorder.standing().against(1), "never entered #1 (nor any before)");
  const TcpCall barrier = TcpCall::of({.kind = Kind::kBarrier}, Algorithm::kDirect);
  for (std::uint64_t s = 1; s <= 200; ++s) recorder.enter(s, barrier);
  for (const std::uint64_t s : {200, 198, 199, 137}) recorder.leave(s);
  EXPECT_EQ(recorder.standing().left, 137u);  // what has been forgotten counts as complete
  const auto heard = Standing::unpack(recorder.standing().pack());
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->entered, 200u);
  EXPECT_EQ(heard->left, 137u);
  EXPECT_EQ(heard->last, barrier);
  EXPECT_THAT(heard->against(138),
              ::testing::StartsWith("is inside #138 and has begun #200, barrier"));
  EXPECT_EQ(heard->against(137), "has left #137");
  EXPECT_THAT(heard->against(201),
              ::testing::StartsWith("never entered #201 (its last was #200, barrier"));
  const auto entries = recorder.entries(0);
  ASSERT_EQ(entries.size(), 64u);
  EXPECT_EQ(entries.front().sequence, 137u);
  EXPECT_THAT(entries.front().call, ::testing::StartsWith("barrier"));
  EXPECT_FALSE(Standing::unpack(std::vector<std::byte>(Standing::kBytes - 1)));
}

TEST(TcpFailures, AbortEndsEveryRankWithTheFirstCause) {
  const auto errors = on_tcp(3, [](TcpCommunicator& c) {
    if (c.rank() == 1) {
      std::thread other([&] {
        c.abort(Error(ErrorKind::kNonFinite, "train", "the loss is not a number").at(1, 3));
        c.abort(Error(ErrorKind::kInternal, "train", "a later cause"));
      });
      other.join();
    }
    c.run({.kind = Kind::kBarrier}, soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kNonFinite);
    EXPECT_EQ(error->message(), "the loss is not a number");
    EXPECT_EQ(error->rank(), 1);
  }
}

// Rank 2 sends the cause to rank 0 alone: rank 0 passes it on to rank 1, whatever becomes of
// rank 2.
TEST(TcpFailures, ARankThatReceivesACausePassesItOn) {
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  std::vector<std::thread> members;
  for (int rank = 0; rank < 2; ++rank) {
    members.emplace_back([&, rank] {
      try {
        TcpCommunicator c(join(store.endpoint(), rank, 3), {});
        c.run({.kind = Kind::kBarrier}, soon());
        ADD_FAILURE() << "rank " << rank;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kNonFinite) << error.what();
        EXPECT_EQ(error.message(), "the loss is not a number");
        EXPECT_EQ(error.rank(), 2);
      }
    });
  }
  wire::Link told = impostor(store.endpoint(), 2, 3, 0);
  wire::Link not_told = impostor(store.endpoint(), 2, 3, 1);
  told.send(
      {0, 2}, 0,
      wire::encode(Error(ErrorKind::kNonFinite, "train", "the loss is not a number").at(2, 3)));
  told.flush();
  for (std::thread& member : members) member.join();
}

/// Connects one rank as a job does where its user says nothing.
std::shared_ptr<wire::TcpTransport> join_as_jobs_do(const wire::Endpoint& store, int rank,
                                                    int size) {
  wire::StoreClient client(store, "key", soon());
  return std::make_shared<wire::TcpTransport>(wire::TcpTransport::Options{.key = "key"}, client,
                                              rank, size, soon());
}

/// Two ranks as threads and rank 2 as a process that does `signal` to itself in the middle of the
/// job. Returns what the two threw, and how long after the signal the later of them did.
std::pair<std::vector<std::optional<Error>>, Duration> beside_a_dying_rank(int signal) {
  int address[2];
  int moment[2];
  if (pipe(address) != 0 || pipe(moment) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    std::uint16_t port = 0;
    if (read(address[0], &port, sizeof port) != sizeof port) _exit(1);
    TcpCommunicator c(join_as_jobs_do({"127.0.0.1", port}, 2, 3), {});
    int x = 0;
    c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}}, soon());
    const Clock::time_point now = Clock::now();
    if (write(moment[1], &now, sizeof now) != sizeof now) _exit(1);
    kill(getpid(), signal);
    _exit(0);
  }
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  const std::uint16_t port = store.endpoint().port;
  EXPECT_EQ(write(address[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  std::vector<std::optional<Error>> errors(2);
  std::vector<Clock::time_point> noticed(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      // It ends, which may take a second, when the time has been taken.
      std::optional<TcpCommunicator> c;
      try {
        c.emplace(join_as_jobs_do(store.endpoint(), rank, 3), TcpCommunicator::Options{});
        int x = 0;
        for (int i = 0; i < 2; ++i) {
          c->run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}},
                 soon());
        }
      } catch (const Error& error) {
        errors[at] = error;
        noticed[at] = Clock::now();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(moment[1]);
  Clock::time_point begin;
  EXPECT_EQ(read(moment[0], &begin, sizeof begin), static_cast<ssize_t>(sizeof begin));
  close(address[0]), close(address[1]), close(moment[0]);
  return {errors, std::max(noticed[0], noticed[1]) - begin};
}

// Rank 2 never comes. Rank 1 gives up and reports it to rank 0, which would wait for longer.
TEST(TcpFailures, ConnectingEndsWithTheCauseThatOneRankReports) {
  const Deadline patience = Deadline::in(seconds(40));
  const auto errors = on_network(2, [&](const wire::Endpoint& store, int rank) {
    join(store, rank, 3, seconds(60), rank == 0 ? patience : Deadline::in(seconds(2)));
  });
  EXPECT_FALSE(patience.passed());
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error->what(), ::testing::HasSubstr("these ranks did not come: 2"));
  }
}

// A stopped rank is named 2 to 3 seconds later, a killed one at once. Where the machine is busy it
// may be tried again.
TEST(TcpFailures, SurvivorsNameTheRankThatWasKilledOrStopped) {
  constexpr Duration kMost = seconds(kSanitized ? 10 : 3);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    Duration taken = kMost;
    for (int tries = 0; tries < 4 && taken >= kMost && !HasFailure(); ++tries) {
      const auto [errors, after] = beside_a_dying_rank(signal);
      for (const auto& error : errors) {
        ASSERT_TRUE(error);
        EXPECT_EQ(error->kind(), ErrorKind::kPeerLost);
        EXPECT_EQ(error->peer(), 2) << error->what();
      }
      taken = after;
    }
    EXPECT_LT(taken, kMost);
    RecordProperty(signal == SIGKILL ? "killed_s" : "stopped_s",
                   fmt::format("{}", to_seconds(taken)));
  }
}

TEST(TcpFailures, ARankThatLeavesIsNamed) {
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  std::thread leaver([&] { TcpCommunicator c(join(store.endpoint(), 1, 2), {}); });
  TcpCommunicator c(join(store.endpoint(), 0, 2), {});
  leaver.join();
  try {
    c.run({.kind = Kind::kBarrier}, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.peer(), 1);
  }
}

// Rank 1 knows the key and then sends wrong bytes: rank 0 gets an error that names it, whatever the
// bytes.
TEST(TcpFailures, ALyingPeerIsAnError) {
  for (int lie = 0; lie < 4; ++lie) {
    wire::StoreServer store("127.0.0.1", {0, 0}, "key");
    std::thread liar([&] {
      wire::Link link = impostor(store.endpoint(), 1, 2);
      if (lie == 0) link.send({1, 1}, 0, wire::Bytes(3));  // too short to name its call
      if (lie == 1)
        link.send({1, 1}, 0, wire::Bytes(500, std::byte{255}));  // a call that there is not
      if (lie == 2)
        link.send({0, 2}, 0, wire::Bytes(40, std::byte{255}));  // an abort that cannot be read
      if (lie == 3)
        link.send({1, (std::uint64_t{1} << 62) | 1}, 0, wire::Bytes(0));  // an empty announcement
      link.flush();
      while (link.receive([](wire::Stream, wire::Bytes) {}))
        std::this_thread::sleep_for(milliseconds(5));
    });
    try {
      TcpCommunicator c(join(store.endpoint(), 0, 2), {});
      int x = 0;
      c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}}, soon());
      ADD_FAILURE() << "lie " << lie;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), lie == 2 ? ErrorKind::kAborted : ErrorKind::kMismatch)
          << error.what();
    }
    liar.join();
  }
}

// A member sends seeded messages that no rank expects: the operation ends with its result, with an
// error, or at its deadline, and nothing else happens.
TEST(TcpFailures, SurvivesAMemberThatSendsNoise) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    wire::StoreServer store("127.0.0.1", {0, 0}, "key");
    std::thread liar([&] {
      std::mt19937_64 random(seed);
      wire::Link link = impostor(store.endpoint(), 1, 2);
      for (int i = 0; i < 12; ++i) {
        const std::uint64_t sequences[] = {1, 2, (std::uint64_t{1} << 62) | 1, random()};
        wire::Bytes message(random() % 3 ? 32 + random() % 100 : random() % 400000);
        for (std::size_t k = 0; k < std::min<std::size_t>(message.size(), 40); ++k)
          message[k] = static_cast<std::byte>(random() % (k < 8 ? 4 : 256));
        if (random() % 2 && message.size() >= 32) {
          TcpCall::of({.kind = Kind::kAllReduce,
                       .type = ElementType::kI32,
                       .buffer = {nullptr, nullptr, 100000}},
                      Algorithm::kDirect)
              .write(message.data());
        }
        link.send({random() % 8 ? 1u : random() % 3, sequences[random() % 4]}, 0,
                  std::move(message));
      }
      try {
        link.flush();
      } catch (const Error&) {  // it has been shown out
      }
      std::this_thread::sleep_for(milliseconds(20));
    });
    std::vector<int> x(100000);
    try {
      TcpCommunicator c(join(store.endpoint(), 0, 2), {.algorithms = "all_reduce=direct"});
      c.run({.kind = Kind::kAllReduce,
             .type = ElementType::kI32,
             .buffer = {x.data(), x.data(), x.size()},
             .timeout = milliseconds(100)},
            soon());
    } catch (const Error&) {
    }
    liar.join();
  }
}

TEST(ErrorBytes, ErrorsTravelWholeAndMutatedOnesAreSurvived) {
  const Error error = Error(ErrorKind::kTimeout, "op", "what")
                          .at(1, 3)
                          .from(2)
                          .in(9)
                          .awaiting("rank 2")
                          .hint("look");
  const wire::Bytes bytes = wire::encode(error);
  EXPECT_STREQ(wire::decode_error(bytes).what(), error.what());
  std::uint64_t random = 1;
  for (int i = 0; i < 20000; ++i) {
    wire::Bytes wrong = bytes;
    random = random * 6364136223846793005u + 1442695040888963407u;
    wrong[(random >> 33) % wrong.size()] = static_cast<std::byte>(random >> 20);
    if (i % 4 == 0) wrong.resize((random >> 40) % wrong.size());
    wire::decode_error(wrong);
  }
}

}  // namespace
}  // namespace shoal::collective::tcp_failures_test
