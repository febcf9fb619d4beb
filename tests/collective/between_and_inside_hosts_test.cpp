// What a hierarchy of hosts does with types that round once, with parts and messages that stay on a
// host, and when the order of ranks is asked for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "shoal/base/narrow_float.h"
#include "shoal/collective/fold/fold.h"
#include "tests/collective/on_hosts.h"
#include "tests/sanitized.h"

namespace shoal::collective::between_and_inside_hosts_test {
namespace {

using std::chrono::milliseconds;

const std::vector<std::vector<int>> kArrangements = {
    {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1}, {7, 3, 3, 3}};

struct Narrow {
  ElementType type;
  float step;  ///< 1 + k * step is a value of the type for k of 0 to 3
};
constexpr Narrow kNarrow[] = {{ElementType::kBF16, 1 / 128.0f},
                              {ElementType::kF16, 1 / 1024.0f},
                              {ElementType::kF8E4M3, 1 / 8.0f},
                              {ElementType::kF8E5M2, 1 / 4.0f}};

/// A small number of the type: sums of up to 9 of them are exact in fp32, and rarely in the type.
float number(const Narrow& narrow, int rank, std::size_t i) {
  return (1 + static_cast<float>((static_cast<std::size_t>(rank) * 7 + i * 3) % 4) * narrow.step) *
         (i % 5 == 4 ? -1.0f : 1.0f);
}

std::vector<std::byte> as_narrow(ElementType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  narrow(type, values.data(), bytes.data(), values.size());
  return bytes;
}

std::vector<float> as_float(ElementType type, const std::byte* bytes, std::size_t count) {
  std::vector<float> values(count);
  widen(type, bytes, values.data(), count);
  return values;
}

TEST(Convert, GivesTheElementByElementConversions) {
  std::vector<float> values;
  for (int i = 0; i < 3000; ++i) {
    values.push_back(std::ldexp(1 + static_cast<float>(i * 37 % 1000) / 1000, i % 40 - 20) *
                     (i % 2 ? -1.0f : 1.0f));
  }
  values.insert(values.end(), {0.0f, -0.0f, INFINITY, -INFINITY, 1e30f, 1e-30f});
  const auto bf16 = as_narrow(ElementType::kBF16, values);
  const auto half = as_narrow(ElementType::kF16, values);
  const auto e4 = as_narrow(ElementType::kF8E4M3, values);
  const auto e5 = as_narrow(ElementType::kF8E5M2, values);
  const auto wide_bf16 = as_float(ElementType::kBF16, bf16.data(), values.size());
  const auto wide_half = as_float(ElementType::kF16, half.data(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    BFloat16 b;
    Float16 h;
    std::memcpy(&b, &bf16[2 * i], 2), std::memcpy(&h, &half[2 * i], 2);
    ASSERT_EQ(b.bits, narrow_bf16(values[i]).bits) << values[i];
    ASSERT_EQ(h.bits, narrow_f16(values[i]).bits) << values[i];
    ASSERT_EQ(static_cast<std::uint8_t>(e4[i]), narrow_e4m3(values[i]).bits) << values[i];
    ASSERT_EQ(static_cast<std::uint8_t>(e5[i]), narrow_e5m2(values[i]).bits) << values[i];
    ASSERT_EQ(wide_bf16[i], widen(b));
    ASSERT_EQ(wide_half[i], widen(h));
  }
}

/// What the reduction of element `i` is, exactly.
double expected(const Narrow& narrow, Reduction reduction, int ranks, std::size_t i) {
  double result = number(narrow, 0, i);
  for (int r = 1; r < ranks; ++r) {
    const double x = number(narrow, r, i);
    result = reduction == Reduction::kMin   ? std::min(result, x)
             : reduction == Reduction::kMax ? std::max(result, x)
                                            : result + x;
  }
  return reduction == Reduction::kAverage     ? result / ranks
         : reduction == Reduction::kPremulSum ? result * 0.5
                                              : result;
}

// Every partial sum is exact in fp32, so rounding once gives the type's nearest to the exact sum,
// and rounding on each host would not: the test counts where. An average is scaled in fp32 first
// and may come out one place of fp32 beside a tie, so it may be the type's next number.
void check_narrow(HierarchicalCommunicator& c, const Narrow& t, Kind kind, Reduction reduction,
                  std::size_t count, int root) {
  const int ranks = c.size();
  const int rank = c.rank();
  const std::size_t parts = kind == Kind::kReduceScatter ? static_cast<std::size_t>(ranks) : 1;
  std::vector<float> values(count * parts);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(t, rank, i);
  auto in = as_narrow(t.type, values);
  std::vector<std::byte> out(count * size_of(t.type));
  void* to =
      kind == Kind::kAllReduce && count % 2 == 0 ? in.data() : out.data();  // in place, or not
  c.run({.kind = kind,
         .type = t.type,
         .reduction = reduction,
         .buffer = {in.data(), to, count},
         .peer = root,
         .scale = 0.5},
        soon());
  if (kind == Kind::kReduce && rank != root) return;
  const auto got = as_float(t.type, static_cast<const std::byte*>(to), count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at =
        kind == Kind::kReduceScatter ? static_cast<std::size_t>(rank) * count + i : i;
    const auto exact = static_cast<float>(expected(t, reduction, ranks, at));
    const float want = as_float(t.type, as_narrow(t.type, {exact}).data(), 1)[0];
    const float slack = reduction == Reduction::kAverage ? 2 * t.step * std::abs(want) : 0;
    ASSERT_NEAR(got[i], want, slack)
        << fmt::format("{} of {} by {}, element {} of {}, {} hosts", name(kind), name(t.type),
                       name(reduction), i, count, c.layout().hosts());
  }
}

TEST(NarrowTypes, AreSummedInFp32AndRoundedOnceOverHosts) {
  for (const auto& hosts : kArrangements) {
    expect_none(on_hosts(hosts, [](HierarchicalCommunicator& c) {
      for (const Narrow& t : kNarrow) {
        for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
          for (const Reduction reduction :
               {Reduction::kSum, Reduction::kAverage, Reduction::kPremulSum, Reduction::kMin,
                Reduction::kMax}) {
            // All reductions run the same threads over the same buffers: sanitizers, under which
            // all of them take a minute, look at one.
            if (kSanitized && reduction != Reduction::kPremulSum) continue;
            for (const std::size_t count : {0, 1, 6, 17, 12'000, 12'001})
              check_narrow(c, t, kind, reduction, count, c.size() - 1);
          }
        }
      }
    }));
  }
}

// The numbers above tell rounding once from rounding on every host.
TEST(NarrowTypes, RoundingTwiceWouldShow) {
  const auto rounded = [](const Narrow& t, float x) {
    return as_float(t.type, as_narrow(t.type, {x}).data(), 1)[0];
  };
  for (const Narrow& t : kNarrow) {
    int differ = 0;
    for (std::size_t i = 0; i < 100; ++i) {
      for (const int ranks : {2, 3}) {  // of the first host; three more are on the second
        float a = 0;
        float b = 0;
        for (int r = 0; r < ranks + 3; ++r) (r < ranks ? a : b) += number(t, r, i);
        differ += rounded(t, a + b) != rounded(t, rounded(t, a) + rounded(t, b));
      }
    }
    EXPECT_GT(differ, 0) << name(t.type);
  }
}

// As fp32 on the way to whoever sums, in the type itself on the way back: (h - 1) / h of 4 + 2
// bytes an element and host.
TEST(NarrowTypes, CrossBetweenHostsAsPromised) {
  std::vector<int> hosts(16);
  for (int r = 0; r < 16; ++r) hosts[r] = r / 4;
  std::mutex mutex;
  double sent = 0;
  constexpr std::size_t kCount = 1 << 17;
  expect_none(on_hosts(hosts, [&](HierarchicalCommunicator& c) {
    std::vector<std::uint16_t> x(kCount, narrow_bf16(1).bits);
    const auto before = c.bytes_between_hosts();
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kBF16,
           .buffer = {x.data(), x.data(), kCount}},
          soon());
    EXPECT_EQ(x[kCount / 3], narrow_bf16(16).bits);
    const std::lock_guard lock(mutex);
    sent += static_cast<double>(c.bytes_between_hosts() - before);
  }));
  const double promised = 4 * 0.75 * 6 * kCount;
  EXPECT_GE(sent, promised);
  EXPECT_LE(sent, 1.05 * promised);
}

/// What this rank has sent to others of its host over TCP.
std::uint64_t tcp_bytes_on_host(const HierarchicalCommunicator& c,
                                const wire::TcpTransport& peers) {
  std::uint64_t bytes = 0;
  for (const int mate : c.layout().members[static_cast<std::size_t>(c.layout().host)])
    if (mate != c.rank()) bytes += peers.bytes_sent(mate);
  return bytes;
}

// Parts of different sizes, one of them empty, large ones among them: everything arrives, and what
// stays on a host does not pass through TCP.
TEST(OnOneHost, PartsGoThroughSharedMemory) {
  for (const auto& hosts : kArrangements) {
    expect_none(on_hosts(
        hosts,
        [](HierarchicalCommunicator& c, const wire::TcpTransport& peers) {
          const auto n = static_cast<std::size_t>(c.size());
          const auto me = static_cast<std::size_t>(c.rank());
          const auto elements = [](std::size_t from, std::size_t to) {
            return (from + 2 * to) % 4 == 0 ? 0 : (from * 3 + to) * 40'000 + 1;
          };
          const auto element = [](std::size_t from, std::size_t to, std::size_t i) {
            return static_cast<float>((from * 31 + to * 7 + i) % 1009);
          };
          std::vector<std::size_t> send(n);
          std::vector<std::size_t> receive(n);
          for (std::size_t r = 0; r < n; ++r)
            send[r] = elements(me, r), receive[r] = elements(r, me);
          std::vector<float> in;
          std::vector<float> out(std::accumulate(receive.begin(), receive.end(), std::size_t{0}));
          for (std::size_t r = 0; r < n; ++r)
            for (std::size_t i = 0; i < send[r]; ++i) in.push_back(element(me, r, i));
          const auto before = tcp_bytes_on_host(c, peers);
          c.run({.kind = Kind::kAllToAll,
                 .type = ElementType::kF32,
                 .buffer = {in.data(), out.data(), 0},
                 .send_counts = send,
                 .receive_counts = receive},
                soon());
          std::size_t at = 0;
          for (std::size_t r = 0; r < n; ++r)
            for (std::size_t i = 0; i < receive[r]; ++i) ASSERT_EQ(out[at++], element(r, me, i));
          constexpr std::size_t kCount = 50'000;
          std::vector<float> part(kCount, static_cast<float>(me));
          std::vector<float> whole(n * kCount);
          for (const int root : {0, c.size() - 1}) {
            c.run({.kind = Kind::kGather,
                   .type = ElementType::kF32,
                   .buffer = {part.data(), whole.data(), kCount},
                   .peer = root},
                  soon());
            for (std::size_t r = 0; r < n && c.rank() == root; ++r)
              ASSERT_EQ(whole[(r + 1) * kCount - 1], static_cast<float>(r));
            for (std::size_t i = 0; i < whole.size(); ++i)
              whole[i] = static_cast<float>(i / kCount);
            c.run({.kind = Kind::kScatter,
                   .type = ElementType::kF32,
                   .buffer = {whole.data(), part.data(), kCount},
                   .peer = root},
                  soon());
            ASSERT_EQ(part[0] + part[kCount - 1], 2 * static_cast<float>(me));
          }
          EXPECT_LT(tcp_bytes_on_host(c, peers) - before, 10'000u)
              << "calls and heartbeats, not the data";
        },
        false));
  }
}

TEST(OnOneHost, MessagesGoThroughSharedMemoryAndKeepTheirOrder) {
  for (const auto& hosts : kArrangements) {
    expect_none(on_hosts(
        hosts,
        [](HierarchicalCommunicator& c, const wire::TcpTransport& peers) {
          constexpr std::size_t kCount = 100'000;
          const int n = c.size();
          const int me = c.rank();
          const auto before = tcp_bytes_on_host(c, peers);
          // Everyone to everyone, two of each tag: those of one sender and tag arrive in order.
          std::vector<std::vector<std::int32_t>> out;
          std::vector<std::vector<std::int32_t>> in;
          std::vector<Handle> handles;
          for (int d = 1; d < n; ++d) {
            for (const int k : {0, 1, 2, 3}) {
              const int to = (me + d) % n;
              const int from = (me + n - d) % n;
              const auto tag = static_cast<std::uint32_t>(k % 2);
              out.emplace_back(kCount, me * 1000 + to * 10 + k), in.emplace_back(kCount, -1);
              handles.push_back(c.start({.kind = Kind::kReceive,
                                         .type = ElementType::kI32,
                                         .buffer = {nullptr, in.back().data(), kCount},
                                         .peer = from,
                                         .tag = tag}));
              handles.push_back(c.start({.kind = Kind::kSend,
                                         .type = ElementType::kI32,
                                         .buffer = {out.back().data(), nullptr, kCount},
                                         .peer = to,
                                         .tag = tag}));
            }
          }
          for (const Handle handle : handles) c.wait(handle, soon());
          std::size_t at = 0;
          for (int d = 1; d < n; ++d) {
            for (const int k : {0, 1, 2, 3})
              ASSERT_EQ(in[at++][kCount - 1], (me + n - d) % n * 1000 + me * 10 + k);
          }
          EXPECT_LT(tcp_bytes_on_host(c, peers) - before, 10'000u);
        },
        false));
  }
}

// Rank 0 takes whatever comes first, from its own host and from others, and then what it asks for
// by name.
TEST(OnOneHost, AnySourceHearsBothWays) {
  for (const auto& hosts : kArrangements) {
    expect_none(on_hosts(hosts, [](HierarchicalCommunicator& c) {
      constexpr int kRounds = 20;
      const int n = c.size();
      if (c.rank() > 0) {
        for (int i = 0; i < kRounds; ++i) {
          const int x = c.rank() * 100 + i;
          c.run({.kind = Kind::kSend,
                 .type = ElementType::kI32,
                 .buffer = {&x, nullptr, 1},
                 .peer = 0,
                 .tag = 5},
                soon());
        }
        const int last = -c.rank();
        c.run({.kind = Kind::kSend,
               .type = ElementType::kI32,
               .buffer = {&last, nullptr, 1},
               .peer = 0,
               .tag = 6},
              soon());
        return;
      }
      std::vector<int> received(static_cast<std::size_t>(kRounds * (n - 1)));
      std::vector<int> named(static_cast<std::size_t>(n));
      std::vector<int> next(static_cast<std::size_t>(n));
      std::vector<Handle> handles;
      for (int& x : received) {
        handles.push_back(c.start({.kind = Kind::kReceive,
                                   .type = ElementType::kI32,
                                   .buffer = {nullptr, &x, 1},
                                   .peer = -1,
                                   .tag = 5}));
      }
      for (int r = n - 1; r > 0; --r) {
        c.run({.kind = Kind::kReceive,
               .type = ElementType::kI32,
               .buffer = {nullptr, &named[r], 1},
               .peer = r,
               .tag = 6},
              soon());
      }
      for (const Handle handle : handles) c.wait(handle, soon());
      for (const int x : received) EXPECT_EQ(x % 100, next[x / 100]++) << "of one rank in order";
      for (int r = 1; r < n; ++r) {
        EXPECT_EQ(next[r], kRounds);
        EXPECT_EQ(named[r], -r);
      }
    }));
  }
}

// Messages of nothing are messages, too.
void receive_from_any_rank(Communicator& c) {
  for (const std::size_t count : {0, 1, 3000, 40000}) {
    std::vector<int> x(count, c.rank());
    if (c.rank() > 0) {
      c.run({.kind = Kind::kSend,
             .type = ElementType::kI32,
             .buffer = {x.data(), nullptr, count},
             .peer = 0,
             .tag = 8},
            soon());
    } else {
      std::set<int> received;
      for (int i = 1; i < c.size(); ++i) {
        const Handle handle = c.start({.kind = Kind::kReceive,
                                       .type = ElementType::kI32,
                                       .buffer = {nullptr, x.data(), count},
                                       .peer = -1,
                                       .tag = 8});
        c.wait(handle, soon());
        const int source = c.take_source(handle);
        EXPECT_TRUE(received.insert(source).second) << source;
        EXPECT_EQ(x, std::vector<int>(count, source));
        EXPECT_EQ(c.take_source(handle), -1) << "to be asked once";
      }
      EXPECT_EQ(*received.begin(), 1);
      EXPECT_EQ(*received.rbegin(), c.size() - 1);
    }
    c.run({.kind = Kind::kBarrier}, soon());
  }
}

void wait_briefly_for_others(Communicator& c) {
  const auto go = [&](int peer, Kind kind) {
    c.run({.kind = kind, .type = ElementType::kI32, .peer = peer, .tag = 9}, soon());
  };
  int x = 1;
  const Operation sum{.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&x, &x, 1}};
  const auto before = c.sequence();
  if (c.rank() > 0) go(0, Kind::kReceive);
  const Handle handle = c.start(sum);
  if (c.rank() == 0) {
    EXPECT_FALSE(c.wait_briefly(handle, milliseconds(1))) << "nobody else has begun";
    EXPECT_FALSE(c.idle());
    for (int r = 1; r < c.size(); ++r) go(r, Kind::kSend);
  }
  for (const Deadline end = soon(); !c.wait_briefly(handle, milliseconds(1)) && !end.passed();) {
  }
  EXPECT_TRUE(c.idle());
  EXPECT_EQ(x, c.size());
  EXPECT_EQ(c.sequence(), before + 1);
}

TEST(OnSeveralHosts, AReceiveSaysWhomItHeardAndAWaitMayBeBrief) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {0, 1, 1}}) {
    expect_none(on_hosts(hosts, [](HierarchicalCommunicator& c) {
      receive_from_any_rank(c);
      wait_briefly_for_others(c);
    }));
  }
  expect_none(on_network(3, [](const wire::Endpoint& store, int rank) {
    wire::StoreClient client(store, "key", soon());
    TcpCommunicator c(std::make_shared<wire::TcpTransport>(
                          wire::TcpTransport::Options{.key = "key"}, client, rank, 3, soon()),
                      {});
    receive_from_any_rank(c);
    wait_briefly_for_others(c);
    c.run({.kind = Kind::kBarrier}, soon());
  }));
}

TEST(OnOneHost, AReceiveThatNobodyAnswersTimesOut) {
  for (const int peer : {-1, 1, 2}) {
    const auto errors = on_hosts({0, 0, 1, 1}, [&](HierarchicalCommunicator& c) {
      int x = 0;
      if (c.rank() > 0)
        while (true) c.poll(milliseconds(5));
      c.run({.kind = Kind::kReceive,
             .type = ElementType::kI32,
             .buffer = {nullptr, &x, 1},
             .peer = peer,
             .tag = 5,
             .timeout = milliseconds(200)},
            soon());
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kTimeout) << error->what();
    }
  }
}

// On request the same bits as of a plain fold in the order of ranks: however ranks lie on hosts,
// and by TCP alone.
TEST(InRankOrder, EveryArrangementGivesTheBitsOfOneFold) {
  constexpr std::size_t kCount = 5001;
  const auto number = [](int rank, std::size_t i) {
    return 1.0f / static_cast<float>(1 + rank * 131 + static_cast<int>(i) * 17);
  };
  const auto run = [&](Communicator& c, Reduction reduction, Kind kind) {
    const auto n = static_cast<std::size_t>(c.size());
    std::vector<std::vector<float>> all(n, std::vector<float>(kCount * n));
    std::vector<const void*> sources;
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < all[r].size(); ++i) all[r][i] = number(static_cast<int>(r), i);
      sources.push_back(all[r].data());
    }
    std::vector<float> want(kCount * n);
    std::vector<float> got(kCount);
    void* target = want.data();
    fold(ElementType::kF32, reduction, sources.data(), c.size(), &target, 1, want.size(), 0.3);
    c.run({.kind = kind,
           .type = ElementType::kF32,
           .reduction = reduction,
           .buffer = {all[c.rank()].data(), got.data(), kCount},
           .scale = 0.3},
          soon());
    const float* own =
        want.data() +
        (kind == Kind::kReduceScatter ? static_cast<std::size_t>(c.rank()) * kCount : 0);
    EXPECT_EQ(std::memcmp(got.data(), own, kCount * sizeof(float)), 0)
        << name(kind) << " by " << name(reduction) << " on " << n;
  };
  const auto run_all = [&](Communicator& c) {
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kAverage, Reduction::kProduct, Reduction::kPremulSum})
      for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter}) run(c, reduction, kind);
  };
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 0, 1}, {0, 0, 0, 0, 1, 2}}) {
    expect_none(on_hosts(
        hosts, [&](HierarchicalCommunicator& c, const wire::TcpTransport&) { run_all(c); }, true));
  }
  for (const char* algorithm : {"", "all_reduce=ring", "all_reduce=one_shot,reduce_scatter=ring"}) {
    expect_none(on_network(6, [&](const wire::Endpoint& store, int rank) {
      wire::StoreClient client(store, "key", soon());
      const auto peers = std::make_shared<wire::TcpTransport>(
          wire::TcpTransport::Options{.key = "key"}, client, rank, 6, soon());
      TcpCommunicator c(peers, {.algorithms = algorithm, .in_rank_order = true});
      run_all(c);
      c.run({.kind = Kind::kBarrier}, soon());
    }));
  }
}

}  // namespace
}  // namespace shoal::collective::between_and_inside_hosts_test
