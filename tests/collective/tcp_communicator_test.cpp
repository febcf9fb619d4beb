// Collectives over TCP on loopback, ranks as threads: every kind, several types, every algorithm, odd sizes, against plain loops; and ranks that call
// something else, die, fall silent, lie or leave.
#include "shoal/collective/tcp_communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "shoal/collective/fold.h"

namespace shoal::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() { return Deadline::in(seconds(60)); }

/// Joins the world of a store as one rank.
std::shared_ptr<wire::Peers> join(const wire::Endpoint& store, int rank, int size, Duration silence = seconds(60)) {
  wire::StoreClient client(store, "key", soon());
  return std::make_shared<wire::Peers>(wire::Peers::Settings{.key = "key", .heartbeat = milliseconds(100), .silence = silence}, client, rank, size,
                                       soon());
}

/// Runs `body` on `ranks` threads that are connected over loopback. Returns what each threw, empty where it threw nothing.
std::vector<std::optional<Error>> on_tcp(int ranks, const std::function<void(TcpCommunicator&)>& body,
                                         const TcpCommunicator::Settings& settings = {}) {
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        TcpCommunicator c(join(store.endpoint(), rank, ranks), settings);
        body(c);
        c.run({.kind = Kind::kBarrier}, soon());
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

void expect_none(const std::vector<std::optional<Error>>& errors) {
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

int value(int rank, std::size_t i) { return (rank + 1) * 3 + static_cast<int>(i % 11); }  // small: sums are exact in every type used

/// One operation on `T`; returns what is wrong, or nothing.
template <class T>
std::string check(Communicator& c, Kind kind, ElementType type, std::size_t count, int root) {
  const int n = c.size(), me = c.rank();
  const bool packed = kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter;
  const bool wide = kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kAllToAll;
  std::vector<T> in(count * (packed ? n : 1)), out(count * (wide ? n : 1), T(99));
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = T(value(me, i));
  c.run({.kind = kind, .type = type, .buffer = {in.data(), out.data(), count}, .peer = root}, soon());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t from = i / count, at = i % count;
    int want = 99, sum = 0;
    const std::size_t mine = static_cast<std::size_t>(me) * count + at;
    for (int r = 0; r < n; ++r) sum += value(r, kind == Kind::kReduceScatter ? mine : i);
    if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter || (kind == Kind::kReduce && me == root)) want = sum;
    if (kind == Kind::kBroadcast) want = value(root, i);
    if (kind == Kind::kScatter) want = value(root, mine);
    if (kind == Kind::kAllGather || (kind == Kind::kGather && me == root)) want = value(static_cast<int>(from), at);
    if (kind == Kind::kAllToAll) want = value(static_cast<int>(from), mine);
    if (out[i] != T(want) && !(kind == Kind::kReduce && me != root))
      return fmt::format("{} of {}: rank {} of {}, element {} of {}", name(kind), name(type), me, n, i, out.size());
  }
  return {};
}

constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kReduce,   Kind::kBroadcast, Kind::kAllGather,
                           Kind::kReduceScatter, Kind::kAllToAll, Kind::kGather,    Kind::kScatter};

TEST(TcpCommunicator, EveryKindEqualsItsDefinitionByEveryAlgorithm) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int round = 0; round < 7; ++round) {
      std::string overrides;
      for (const Kind kind : kKinds) {
        const auto all = algorithms_for(kind);
        overrides += fmt::format("{}{}={}", overrides.empty() ? "" : ",", name(kind), name(all[round % all.size()]));
      }
      const TcpCommunicator::Settings settings{.hosts = std::vector<int>{0, 1, 0, 0, 1}, .algorithms = overrides};
      expect_none(on_tcp(
          ranks,
          [&](TcpCommunicator& c) {
            for (const Kind kind : kKinds)
              for (const std::size_t count : {0, 1, 3, 17, 1001, 70001}) {
                if (count == 70001 && round % 3 != 0) continue;
                EXPECT_EQ(check<float>(c, kind, ElementType::kF32, count, ranks - 1), "") << overrides;
                EXPECT_EQ(check<std::int64_t>(c, kind, ElementType::kI64, count, 0), "") << overrides;
                EXPECT_EQ(check<std::uint8_t>(c, kind, ElementType::kU8, count, ranks / 2), "") << overrides;
              }
          },
          settings));
    }
}

// Values whose sum depends on the order: every algorithm must give all ranks the same bits; bf16 those of one fold over all ranks, rounded once.
TEST(TcpCommunicator, AllRanksGetTheSameBits) {
  const int ranks = 5;
  for (const Algorithm algorithm : algorithms_for(Kind::kAllReduce)) {
    std::mutex mutex;
    std::vector<std::vector<float>> results;
    const auto number = [](int rank, std::size_t i) { return 1.0f / static_cast<float>(1 + rank * 131 + static_cast<int>(i) * 17); };
    expect_none(on_tcp(ranks,
                       [&](TcpCommunicator& c) {
                         std::vector<float> x(999);
                         for (std::size_t i = 0; i < x.size(); ++i) x[i] = number(c.rank(), i);
                         c.run({.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {x.data(), x.data(), x.size()}}, soon());
                         std::vector<std::vector<std::uint16_t>> all(ranks, std::vector<std::uint16_t>(500));
                         for (int r = 0; r < ranks; ++r)
                           for (std::size_t i = 0; i < 500; ++i) {
                             const float f = number(r, i);
                             std::uint32_t bits;
                             std::memcpy(&bits, &f, 4);
                             all[r][i] = static_cast<std::uint16_t>(bits >> 16);
                           }
                         for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage, Reduction::kPremulSum}) {
                           std::vector<const void*> sources;
                           for (auto& one : all) sources.push_back(one.data());
                           std::vector<std::uint16_t> got(500), want(500);
                           void* target = want.data();
                           fold_plain(ElementType::kBF16, reduction, sources.data(), ranks, &target, 1, 500, 0.5);  // exact: fused or not
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
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * 4), 0) << name(algorithm);
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
      handles.emplace_back(
          g, g->start({.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {data[i].data(), data[i].data(), 300}, .priority = i % 3}));
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
    c.run({.kind = Kind::kAllReduce, .type = ElementType::kF64, .buffer = buffers[0], .more = std::span(buffers).subspan(1)}, soon());
    for (const auto& d : data) EXPECT_EQ(d, std::vector<double>(50, 3));

    // Rank r sends r + to elements to rank `to`.
    std::vector<std::size_t> counts;
    std::vector<int> in, out, want;
    for (int r = 0; r < 3; ++r) {
      counts.push_back(static_cast<std::size_t>(me + r));
      in.insert(in.end(), counts.back(), 10 * me + r), want.insert(want.end(), counts.back(), 10 * r + me);
    }
    out.resize(want.size());
    c.run({.kind = Kind::kAllToAll, .type = ElementType::kI32, .buffer = {in.data(), out.data(), 0}, .send_counts = counts, .receive_counts = counts},
          soon());
    EXPECT_EQ(out, want);

    int x = me, y = -1;
    if (me > 0) c.run({.kind = Kind::kSend, .type = ElementType::kI32, .buffer = {&x, nullptr, 1}, .peer = 0, .tag = 7}, soon());
    if (me == 0) {
      int sum = 0;
      for (int i = 0; i < 2; ++i) c.run({.kind = Kind::kReceive, .type = ElementType::kI32, .buffer = {nullptr, &y, 1}, .tag = 7}, soon()), sum += y;
      EXPECT_EQ(sum, 3);  // from any source
    }
  }));
}

TEST(TcpCommunicator, ADisagreementIsAnErrorOnAllRanksThatNamesBothCalls) {
  for (const Kind other : {Kind::kAllGather, Kind::kBroadcast, Kind::kBarrier, Kind::kAllReduce}) {
    const auto errors = on_tcp(4, [&](TcpCommunicator& c) {
      std::vector<float> in(8), out(64);
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
  const auto errors = on_tcp(3, [](TcpCommunicator& c) {
    int x = 0;
    if (c.rank() == 1) {  // never enters
      while (true) c.poll(milliseconds(5)), std::this_thread::sleep_for(milliseconds(5));
    }
    c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}, .timeout = milliseconds(200)}, soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error->peer(), 1);
  }
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

/// Two ranks as threads and rank 2 as a process that does `signal` to itself in the middle of the job. Returns what the two threw.
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
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        TcpCommunicator c(join(store.endpoint(), rank, 3, seconds(1)), {});
        int x = 0;
        for (int i = 0; i < 2; ++i) c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}}, soon());
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  for (auto& thread : threads) thread.join();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(address[0]), close(address[1]);
  return errors;
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

// Rank 1 knows the key and then sends nonsense: rank 0 gets an error that names it, whatever the nonsense.
TEST(TcpCommunicator, ALyingPeerIsAnError) {
  for (int lie = 0; lie < 4; ++lie) {
    wire::StoreServer store("127.0.0.1", {0, 0}, "key");
    std::thread liar([&] {
      wire::StoreClient client(store.endpoint(), "key", soon());
      client.set("peers/world/1", "127.0.0.1:1", soon());
      wire::Descriptor socket = wire::connect_to(wire::parse_endpoint(client.wait("peers/world/0", soon())), soon());
      wire::Hello hello{};
      hello[0] = std::byte{1}, hello[4] = std::byte{2};  // rank 1 of 2
      wire::introduce(socket.get(), "key", hello, soon());
      wire::Link link(std::move(socket));
      if (lie == 0) link.send({1, 1}, 0, wire::Bytes(3));                             // too short to name its call
      if (lie == 1) link.send({1, 1}, 0, wire::Bytes(500, std::byte{255}));           // a call that there is not
      if (lie == 2) link.send({0, 2}, 0, wire::Bytes(40, std::byte{255}));            // an abort that cannot be read
      if (lie == 3) link.send({1, (std::uint64_t{1} << 62) | 1}, 0, wire::Bytes(0));  // an empty announcement
      link.flush();
      while (link.receive([](wire::Stream, wire::Bytes) {})) std::this_thread::sleep_for(milliseconds(5));
    });
    try {
      TcpCommunicator c(join(store.endpoint(), 0, 2), {});
      int x = 0;
      c.run({.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}}, soon());
      ADD_FAILURE() << "lie " << lie;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), lie == 2 ? ErrorKind::kAborted : ErrorKind::kMismatch) << error.what();
    }
    liar.join();
  }
}

TEST(Peers, ErrorsTravelWholeAndMutatedOnesAreSurvived) {
  const Error error = Error(ErrorKind::kTimeout, "op", "what").at(1, 3).from(2).in(9).awaiting("rank 2").hint("look");
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
    c.run({.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {x.data(), x.data(), x.size()}}, soon());
    c.run({.kind = Kind::kBarrier}, soon());
  });
  const auto peers = join(store.endpoint(), 0, 2);
  TcpCommunicator c(peers, {.algorithms = ""});
  std::vector<float> x(1 << 20);
  c.run({.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {x.data(), x.data(), x.size()}}, soon());
  const auto sent = peers->bytes_sent(1);
  EXPECT_GE(sent, 4u << 20);  // 2 (p - 1) / p of 4 MiB
  EXPECT_LT(sent, (4u << 20) + (64u << 10));
  c.run({.kind = Kind::kBarrier}, soon());
  other.join();
}

}  // namespace
}  // namespace shoal::collective
