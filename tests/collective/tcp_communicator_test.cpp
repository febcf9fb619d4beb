// Collectives over TCP on loopback, ranks as threads: every kind, several types, every algorithm,
// odd sizes, against plain loops; and ranks that call another operation, die, fall silent, send
// wrong bytes or leave.
#include "shoal/collective/tcp/tcp_communicator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "shoal/wire/tcp_transport.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/network_ranks.h"
#include "tests/support/fold_plain.h"

namespace shoal::collective::tcp_communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Connects one rank to the world of a store.
std::shared_ptr<wire::TcpTransport> join(const wire::Endpoint& store, int rank, int size,
                                         Duration silence = seconds(60),
                                         Deadline deadline = soon()) {
  wire::StoreClient client(store, "key", soon());
  return std::make_shared<wire::TcpTransport>(
      wire::TcpTransport::Options{.key = "key", .heartbeat = milliseconds(100), .silence = silence},
      client, rank, size, deadline);
}

/// Runs `body` on `ranks` threads that are connected over loopback. Returns what each threw, empty
/// where it threw nothing.
std::vector<std::optional<Error>> on_tcp(int ranks,
                                         const std::function<void(TcpCommunicator&)>& body,
                                         const TcpCommunicator::Options& options = {}) {
  return on_network(ranks, [&](const wire::Endpoint& store, int rank) {
    TcpCommunicator c(join(store, rank, ranks), options);
    body(c);
    c.run({.kind = Kind::kBarrier}, soon());
  });
}

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

TEST(TcpCommunicator, EveryKindEqualsItsDefinitionByEveryAlgorithm) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int round = 0; round < 7; ++round) {
      std::string overrides;
      for (const Kind kind : kKinds) {
        const auto all = algorithms_for(kind);
        overrides += fmt::format("{}{}={}", overrides.empty() ? "" : ",", name(kind),
                                 name(all[round % all.size()]));
      }
      const TcpCommunicator::Options options{.hosts = std::vector<int>{0, 1, 0, 0, 1},
                                             .algorithms = overrides};
      expect_none(on_tcp(
          ranks,
          [&](TcpCommunicator& c) {
            for (const Kind kind : kKinds) {
              for (const std::size_t count : {0, 1, 3, 17, 1001, 70001}) {
                if (count == 70001 && round % 3 != 0) continue;
                EXPECT_EQ(check<float>(c, kind, ElementType::kF32, count, ranks - 1), "")
                    << overrides;
                EXPECT_EQ(check<std::int64_t>(c, kind, ElementType::kI64, count, 0), "")
                    << overrides;
                EXPECT_EQ(check<std::uint8_t>(c, kind, ElementType::kU8, count, ranks / 2), "")
                    << overrides;
              }
            }
          },
          options));
    }
  }
}

// The sum of these values depends on the order: every algorithm must give all ranks the same bits.
// bf16 must have the bits of one fold over all ranks, rounded once.
TEST(TcpCommunicator, AllRanksGetTheSameBits) {
  const int ranks = 5;
  for (const Algorithm algorithm : algorithms_for(Kind::kAllReduce)) {
    std::mutex mutex;
    std::vector<std::vector<float>> results;
    const auto number = [](int rank, std::size_t i) {
      return 1.0f / static_cast<float>(1 + rank * 131 + static_cast<int>(i) * 17);
    };
    expect_none(on_tcp(
        ranks,
        [&](TcpCommunicator& c) {
          std::vector<float> x(999);
          for (std::size_t i = 0; i < x.size(); ++i) x[i] = number(c.rank(), i);
          c.run({.kind = Kind::kAllReduce,
                 .type = ElementType::kF32,
                 .buffer = {x.data(), x.data(), x.size()}},
                soon());
          std::vector<std::vector<std::uint16_t>> all(ranks, std::vector<std::uint16_t>(500));
          for (int r = 0; r < ranks; ++r) {
            for (std::size_t i = 0; i < 500; ++i) {
              const float f = number(r, i);
              std::uint32_t bits;
              std::memcpy(&bits, &f, 4);
              all[r][i] = static_cast<std::uint16_t>(bits >> 16);
            }
          }
          for (const Reduction reduction :
               {Reduction::kSum, Reduction::kAverage, Reduction::kPremulSum}) {
            std::vector<const void*> sources;
            for (auto& one : all) sources.push_back(one.data());
            std::vector<std::uint16_t> got(500);
            std::vector<std::uint16_t> want(500);
            void* target = want.data();
            fold_plain(ElementType::kBF16, reduction, sources.data(), ranks, &target, 1, 500,
                       0.5);  // exact: fused or not
            c.run({.kind = Kind::kAllReduce,
                   .type = ElementType::kBF16,
                   .reduction = reduction,
                   .buffer = {sources[c.rank()], got.data(), 500},
                   .scale = 0.5},
                  soon());
            EXPECT_EQ(got, want) << name(reduction);
          }
          const std::lock_guard lock(mutex);
          results.push_back(x);
        },
        {.hosts = {0, 0, 1, 1, 1}, .algorithms = fmt::format("all_reduce={}", name(algorithm))}));
    ASSERT_EQ(results.size(), 5u);
    for (const auto& result : results) {
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * 4), 0)
          << name(algorithm);
      for (std::size_t i = 0; i < result.size(); ++i) {
        double sum = 0;
        for (int r = 0; r < ranks; ++r) sum += number(r, i);
        ASSERT_NEAR(result[i], sum, 5 * 6e-8 * sum);  // four additions in fp32
      }
    }
  }
}

TEST(TcpCommunicator, KeepsManyInFlightInSeveralGroupsAndAnyOrder) {
  expect_none(on_tcp(4, [](TcpCommunicator& c) {
    const auto half = c.split(c.rank() % 2, -c.rank());
    ASSERT_EQ(half->size(), 2);
    EXPECT_EQ(half->rank(), c.rank() < 2 ? 1 : 0);  // ordered by descending rank
    EXPECT_EQ(c.split(c.rank() == 0 ? -1 : 0, 0) == nullptr, c.rank() == 0);
    std::vector<std::vector<float>> data(200, std::vector<float>(300, 1));
    std::vector<std::pair<Communicator*, Handle>> handles;
    for (int i = 0; i < 200; ++i) {
      // Ranks start the operations of the two groups in different orders.
      const bool whole = (i % 2 == 0) != (c.rank() == 3);
      Communicator* g = whole ? static_cast<Communicator*>(&c) : half.get();
      handles.emplace_back(g, g->start({.kind = Kind::kAllReduce,
                                        .type = ElementType::kF32,
                                        .buffer = {data[i].data(), data[i].data(), 300},
                                        .priority = i % 3}));
    }
    for (int i = 199; i >= 0; --i) {
      handles[i].first->wait(handles[i].second, soon());
      for (const float x : data[i]) ASSERT_EQ(x, handles[i].first->size());
    }
  }));
}

TEST(TcpCommunicator, CoalescesExchangesUnevenlyAndSends) {
  expect_none(on_tcp(3, [](TcpCommunicator& c) {
    const int me = c.rank();
    std::vector<std::vector<double>> data(9, std::vector<double>(50, me));
    std::vector<Buffer> buffers;
    for (auto& d : data) buffers.push_back({d.data(), d.data(), d.size()});
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kF64,
           .buffer = buffers[0],
           .more = std::span(buffers).subspan(1)},
          soon());
    for (const auto& d : data) EXPECT_EQ(d, std::vector<double>(50, 3));

    // Rank r sends r + to elements to rank `to`.
    std::vector<std::size_t> counts;
    std::vector<int> in;
    std::vector<int> out;
    std::vector<int> want;
    for (int r = 0; r < 3; ++r) {
      counts.push_back(static_cast<std::size_t>(me + r));
      in.insert(in.end(), counts.back(), 10 * me + r),
          want.insert(want.end(), counts.back(), 10 * r + me);
    }
    out.resize(want.size());
    c.run({.kind = Kind::kAllToAll,
           .type = ElementType::kI32,
           .buffer = {in.data(), out.data(), 0},
           .send_counts = counts,
           .receive_counts = counts},
          soon());
    EXPECT_EQ(out, want);

    int x = me;
    int y = -1;
    if (me > 0) {
      c.run({.kind = Kind::kSend,
             .type = ElementType::kI32,
             .buffer = {&x, nullptr, 1},
             .peer = 0,
             .tag = 7},
            soon());
    }
    if (me == 0) {
      int sum = 0;
      for (int i = 0; i < 2; ++i) {
        c.run({.kind = Kind::kReceive,
               .type = ElementType::kI32,
               .buffer = {nullptr, &y, 1},
               .tag = 7},
              soon()),
            sum += y;
      }
      EXPECT_EQ(sum, 3);  // from any source
    }
  }));
}

// A rank that waits for nothing still serves the others: the thread moves what was started.
TEST(TcpCommunicator, BytesMoveWhileNobodyWaits) {
  std::atomic<bool> received = false;
  expect_none(on_tcp(2, [&](TcpCommunicator& c) {
    std::vector<int> x(4 << 20, 5);
    const std::size_t count = x.size();
    if (c.rank() == 0) {
      const Handle sent = c.start({.kind = Kind::kSend,
                                   .type = ElementType::kI32,
                                   .buffer = {x.data(), nullptr, count},
                                   .peer = 1});
      for (const Deadline end = soon(); !received && !end.passed();)
        std::this_thread::sleep_for(milliseconds(5));
      EXPECT_TRUE(received);
      c.wait(sent, soon());
    } else {
      std::vector<int> y(count);
      c.run({.kind = Kind::kReceive,
             .type = ElementType::kI32,
             .buffer = {nullptr, y.data(), count},
             .peer = 0},
            soon());
      EXPECT_EQ(x, y);
      received = true;
    }
  }));
}

// Large messages of two senders with one tag: each receive gets one of them whole, those of one
// sender in order.
TEST(TcpCommunicator, ReceivesFromAnySourceDoNotMix) {
  expect_none(on_tcp(3, [&](TcpCommunicator& c) {
    const std::size_t count = 300000;
    std::vector<std::vector<int>> data(4, std::vector<int>(count));
    std::vector<Handle> handles;
    const bool sends = c.rank() > 0;
    for (int i = 0; i < (sends ? 2 : 4); ++i) {
      if (sends) data[i].assign(count, 10 * c.rank() + i);
      handles.push_back(c.start({.kind = sends ? Kind::kSend : Kind::kReceive,
                                 .type = ElementType::kI32,
                                 .buffer = {data[i].data(), data[i].data(), count},
                                 .peer = sends ? 0 : -1,
                                 .tag = 3}));
    }
    for (const Handle handle : handles) c.wait(handle, soon());
    if (sends) return;
    std::vector<int> first;
    for (const auto& one : data) {
      EXPECT_EQ(one, std::vector<int>(count, one[0]));
      first.push_back(one[0]);
    }
    const auto at = [&](int value) {
      return std::find(first.begin(), first.end(), value) - first.begin();
    };
    EXPECT_LT(at(10), at(11));
    EXPECT_LT(at(11), 4);
    EXPECT_LT(at(20), at(21));
    EXPECT_LT(at(21), 4);
  }));
}

// A communicator that is destroyed while messages are in flight leaves nothing behind that reads or
// writes the caller's memory; the sender's message arrives.
TEST(TcpCommunicator, LeavesNothingBehind) {
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  const std::size_t count = 6 << 20;
  std::thread sender([&] {
    const auto peers = join(store.endpoint(), 1, 2);
    {
      std::vector<int> x(count, 7);
      TcpCommunicator c(peers, {});
      c.start({.kind = Kind::kSend,
               .type = ElementType::kI32,
               .buffer = {x.data(), nullptr, count},
               .peer = 0});
    }
    TcpCommunicator again(peers, {});
    int done = 0;
    again.run({.kind = Kind::kReceive,
               .type = ElementType::kI32,
               .buffer = {nullptr, &done, 1},
               .peer = 0,
               .tag = 9},
              soon());
  });
  const auto peers = join(store.endpoint(), 0, 2);
  std::vector<int> y(count);
  TcpCommunicator c(peers, {});
  std::this_thread::sleep_for(milliseconds(50));  // a part arrives before it is asked for
  c.run({.kind = Kind::kReceive,
         .type = ElementType::kI32,
         .buffer = {nullptr, y.data(), count},
         .peer = 1},
        soon());
  EXPECT_EQ(y, std::vector<int>(count, 7));
  int done = 1;
  c.run({.kind = Kind::kSend,
         .type = ElementType::kI32,
         .buffer = {&done, nullptr, 1},
         .peer = 1,
         .tag = 9},
        soon());
  sender.join();
}

TEST(TcpCommunicator, ADisagreementIsAnErrorOnAllRanksThatNamesBothCalls) {
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

TEST(TcpCommunicator, TimesOutNamingWhoIsAwaited) {
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
TEST(TcpCommunicator, ATimeoutSaysWhereEveryRankStands) {
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

TEST(TcpCommunicator, AbortEndsEveryRankWithTheFirstCause) {
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
TEST(TcpCommunicator, ARankThatReceivesACausePassesItOn) {
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

/// Two ranks as threads and rank 2 as a process that does `signal` to itself in the middle of the
/// job. Returns what the two threw.
std::vector<std::optional<Error>> beside_a_dying_rank(int signal) {
  int address[2];
  if (pipe(address) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    std::uint16_t port = 0;
    if (read(address[0], &port, sizeof port) != sizeof port) _exit(1);
    TcpCommunicator c(join({"127.0.0.1", port}, 2, 3), {});
    int x = 0;
    c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}}, soon());
    kill(getpid(), signal);
    _exit(0);
  }
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  const std::uint16_t port = store.endpoint().port;
  EXPECT_EQ(write(address[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  std::vector<std::optional<Error>> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        TcpCommunicator c(join(store.endpoint(), rank, 3, seconds(4)), {});
        int x = 0;
        for (int i = 0; i < 2; ++i) {
          c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}},
                soon());
        }
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(address[0]), close(address[1]);
  return errors;
}

// Rank 2 never comes. Rank 1 gives up and reports it to rank 0, which would wait for longer.
TEST(TcpCommunicator, ConnectingEndsWithTheCauseThatOneRankReports) {
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

TEST(TcpCommunicator, SurvivorsNameTheRankThatWasKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const auto before = Clock::now();
    for (const auto& error : beside_a_dying_rank(signal)) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kPeerLost);
      EXPECT_EQ(error->peer(), 2) << error->what();
    }
    EXPECT_LT(Clock::now() - before, seconds(30));
  }
}

TEST(TcpCommunicator, ARankThatLeavesIsNamed) {
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
TEST(TcpCommunicator, ALyingPeerIsAnError) {
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
TEST(TcpCommunicator, SurvivesAMemberThatSendsNoise) {
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

TEST(TcpCommunicator, CountsBytesPerLink) {
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  std::thread other([&] {
    TcpCommunicator c(join(store.endpoint(), 1, 2), {});
    std::vector<float> x(1 << 20);
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kF32,
           .buffer = {x.data(), x.data(), x.size()}},
          soon());
    c.run({.kind = Kind::kBarrier}, soon());
  });
  const auto peers = join(store.endpoint(), 0, 2);
  TcpCommunicator c(peers, {.algorithms = ""});
  std::vector<float> x(1 << 20);
  c.run({.kind = Kind::kAllReduce,
         .type = ElementType::kF32,
         .buffer = {x.data(), x.data(), x.size()}},
        soon());
  const auto sent = peers->bytes_sent(1);
  EXPECT_GE(sent, 4u << 20);  // 2 (p - 1) / p of 4 MiB
  EXPECT_LT(sent, (4u << 20) + (64u << 10));
  c.run({.kind = Kind::kBarrier}, soon());
  other.join();
}

}  // namespace
}  // namespace shoal::collective::tcp_communicator_test
