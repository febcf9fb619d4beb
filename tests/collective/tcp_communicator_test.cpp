// Collectives over TCP on loopback, ranks as threads: every kind, several types, every algorithm,
// odd sizes, against plain loops.
#include "shoal/collective/tcp/tcp_communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "tests/collective/kind_check.h"
#include "tests/collective/tcp_ranks.h"
#include "tests/support/fold_plain.h"

namespace shoal::collective::tcp_communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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

/// The last of so many ranks is late.
constexpr int kLateAndOthers = 3;
constexpr int kOperations = 6;
constexpr std::size_t kHeldCount = 3 << 20;  // 12 MiB, of which a rank folds a third
constexpr std::uint64_t kMostHeld = 1 << 20;
constexpr std::uint64_t kChunkBytes = 256 << 10;

float value_of(int rank, int operation, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank * 31 + operation)) % 1000);
}

std::size_t wrong_sums(const std::vector<float>& sums, int operation) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float want = 0;
    for (int r = 0; r < kLateAndOthers; ++r) want += value_of(r, operation, i);
    wrong += sums[i] != want ? 1 : 0;
  }
  return wrong;
}

// Reductions that wait for a late rank keep what the others have sent within one bound, however
// many are in flight, and go on when the rank comes.
TEST(TcpCommunicator, HoldsNoMoreForManyReductionsThanForOne) {
  std::atomic<int> full{0};
  const auto run = [&full](TcpCommunicator& c) {
    const bool late = c.rank() == kLateAndOthers - 1;
    for (const Deadline end = soon(); late && full < kLateAndOthers - 1 && !end.passed();)
      c.poll(std::chrono::milliseconds(1));
    std::vector<std::vector<float>> buffers(kOperations, std::vector<float>(kHeldCount));
    std::vector<Handle> handles;
    for (int k = 0; k < kOperations; ++k) {
      auto& x = buffers[static_cast<std::size_t>(k)];
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = value_of(c.rank(), k, i);
      handles.push_back(c.start({.kind = Kind::kAllReduce,
                                 .type = ElementType::kF32,
                                 .buffer = {x.data(), x.data(), x.size()}}));
    }
    std::uint64_t most = 0;
    const auto look = [&] {
      c.poll(std::chrono::milliseconds(1));
      most = std::max(most, c.held_bytes());
    };
    for (const Deadline end = soon(); !late && most < kMostHeld && !end.passed();) look();
    // What more has come by now stays with the connections.
    for (int i = 0; !late && i < 100; ++i) look();
    ++full;
    for (const Handle handle : handles)
      for (const Deadline end = soon(); !c.test(handle) && !end.passed();) look();
    for (int k = 0; k < kOperations; ++k)
      EXPECT_EQ(wrong_sums(buffers[static_cast<std::size_t>(k)], k), 0u) << k;
    if (!late) {
      EXPECT_GE(most, kMostHeld);
    }
    EXPECT_LE(most, kMostHeld + kLateAndOthers * kChunkBytes);
    EXPECT_EQ(c.held_bytes(), 0u);
  };
  expect_none(on_tcp(kLateAndOthers, run, {.in_rank_order = true, .most_held_bytes = kMostHeld}));
}

}  // namespace
}  // namespace shoal::collective::tcp_communicator_test
