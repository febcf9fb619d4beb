// A hierarchy of hosts, ranks as threads: those of one "host" share a control segment, all are
// connected over loopback. Every kind against plain loops, and the bytes that cross between hosts
// against the least possible.
#include "shoal/collective/hierarchy/hierarchical_communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <optional>

#include "tests/collective/kind_check.h"
#include "tests/collective/on_hosts.h"

namespace shoal::collective::hierarchical_communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<std::vector<int>> kArrangements = {{0, 0, 1, 1},    {0, 0, 0, 1, 1, 1, 2, 2, 2},
                                                     {0, 1, 0, 1},    {0, 0, 0, 1, 1},
                                                     {7, 3, 3, 3, 3}, {0, 0, 1, 2, 2, 2}};

TEST(HostLayout, CountsHostsAndRanks) {
  const HostLayout layout(std::vector<int>{9, 4, 9, 4, 4}, 3);
  EXPECT_EQ(layout.members, (std::vector<std::vector<int>>{{0, 2}, {1, 3, 4}}));
  EXPECT_EQ(layout.host, 1);
  EXPECT_EQ(layout.local, 1);
  EXPECT_EQ(layout.columns, 2);
  EXPECT_FALSE(layout.in_blocks);
  EXPECT_TRUE(HostLayout(std::vector<int>{5, 5, 2, 2}, 0).in_blocks);
  EXPECT_FALSE(HostLayout(std::vector<int>{5, 5, 2, 2, 2}, 0).in_blocks);
}

TEST(HierarchicalCommunicator, EveryKindEqualsItsDefinition) {
  for (const auto& hosts : kArrangements) {
    expect_none(on_hosts(hosts, [&](HierarchicalCommunicator& c) {
      for (const Kind kind : kKinds) {
        for (const std::size_t count : {0, 1, 3, 17, 3001, 18018}) {
          for (const int root : {0, c.size() - 1}) {
            if (root > 0 && !has_root(kind)) continue;
            EXPECT_EQ(check<float>(c, kind, ElementType::kF32, count, root), "")
                << fmt::format("{} hosts, {}", c.layout().hosts(), count);
            if (count < 3001) {
              EXPECT_EQ(check<std::int64_t>(c, kind, ElementType::kI64, count, root), "");
            }
            if (count == 17) {
              EXPECT_EQ(check<std::uint8_t>(c, kind, ElementType::kU8, count, root), "");
            }
          }
        }
      }
    }));
  }
}

// Sums that depend on the order: all ranks have the same bits, the same in every run, close to the
// exact sum; types that fold once those of one fold.
TEST(HierarchicalCommunicator, AllRanksGetTheSameBitsInEveryRun) {
  const std::vector<int> hosts = {0, 0, 0, 1, 1, 1};
  const auto number = [](int rank, std::size_t i) {
    return 1.0f / static_cast<float>(1 + rank * 131 + static_cast<int>(i) * 17);
  };
  std::mutex mutex;
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 2; ++run) {
    expect_none(on_hosts(hosts, [&](HierarchicalCommunicator& c) {
      std::vector<float> x(9999);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = number(c.rank(), i);
      c.run({.kind = Kind::kAllReduce,
             .type = ElementType::kF32,
             .buffer = {x.data(), x.data(), x.size()}},
            soon());
      std::vector<float> average(50);
      for (std::size_t i = 0; i < average.size(); ++i) average[i] = number(c.rank(), i);
      c.run({.kind = Kind::kAllReduce,
             .type = ElementType::kF32,
             .reduction = Reduction::kAverage,
             .buffer = {average.data(), average.data(), 50}},
            soon());
      for (std::size_t i = 0; i < average.size(); ++i) EXPECT_NEAR(average[i] * 6, x[i], 1e-6);
      const std::lock_guard lock(mutex);
      results.push_back(x);
    }));
  }
  ASSERT_EQ(results.size(), 12u);
  for (const auto& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * 4), 0);
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    double sum = 0;
    for (int r = 0; r < 6; ++r) sum += number(r, i);
    ASSERT_NEAR(results[0][i], sum, 6 * 6e-8 * sum);  // five additions in fp32
  }
}

// Scaled inside the hosts and summed between them: as many bytes as a sum, and every contribution
// is scaled once.
TEST(HierarchicalCommunicator, AveragesAndScaledSumsCrossAsSumsDo) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 1, 1, 2}}) {
    expect_none(on_hosts(hosts, [&](HierarchicalCommunicator& c) {
      const auto n = static_cast<std::size_t>(c.size());
      const auto rank = static_cast<std::size_t>(c.rank());
      const auto run = [&](Kind kind, Reduction reduction, std::size_t count,
                           const std::vector<double>& in) {
        std::vector<double> out(in.size());
        const auto before = c.bytes_between_hosts();
        c.run({.kind = kind,
               .type = ElementType::kF64,
               .reduction = reduction,
               .buffer = {in.data(), out.data(), count},
               .peer = 0,
               .scale = 0.3},
              soon());
        return std::pair(out, c.bytes_between_hosts() - before);
      };
      for (const std::size_t count : {5, 6000}) {
        for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
          const bool scatters = kind == Kind::kReduceScatter;
          std::vector<double> in(scatters ? n * count : count);
          for (std::size_t i = 0; i < in.size(); ++i)
            in[i] = static_cast<double>((rank + 1) * (1 + i % 13));
          const auto [sums, bytes] = run(kind, Reduction::kSum, count, in);
          for (const Reduction reduction : {Reduction::kAverage, Reduction::kPremulSum}) {
            const auto [got, sent] = run(kind, reduction, count, in);
            if (!scatters || c.layout().in_blocks) {
              EXPECT_EQ(sent, bytes) << name(kind) << " by " << name(reduction);
            }
            const double factor =
                reduction == Reduction::kAverage ? 1.0 / static_cast<double>(n) : 0.3;
            for (std::size_t i = 0; i < count && (kind != Kind::kReduce || rank == 0); ++i) {
              const auto at = static_cast<double>(1 + (scatters ? rank * count + i : i) % 13);
              const auto sum = at * static_cast<double>(n * (n + 1)) / 2;
              ASSERT_EQ(sums[i], sum);
              ASSERT_NEAR(got[i], sum * factor, 1e-14 * sum);  // a few roundings in fp64
            }
          }
        }
      }
    }));
  }
}

/// Bytes that each host sends to others during `operation` of `count` floats on 16 ranks, four on
/// each of four hosts.
std::vector<double> bytes_sent_by_hosts(Kind kind, std::size_t count, int root) {
  std::vector<int> hosts(16);
  for (int r = 0; r < 16; ++r) hosts[r] = r / 4;
  std::mutex mutex;
  std::vector<double> sent(4);
  expect_none(on_hosts(hosts, [&](HierarchicalCommunicator& c) {
    const bool wide =
        kind == Kind::kAllGather || kind == Kind::kReduceScatter || kind == Kind::kAllToAll;
    std::vector<float> in(count * (wide ? 16 : 1), 1);
    std::vector<float> out(in.size());
    const auto before = c.bytes_between_hosts();
    c.run({.kind = kind,
           .type = ElementType::kF32,
           .buffer = {in.data(), out.data(), count},
           .peer = root},
          soon());
    const std::lock_guard lock(mutex);
    sent[c.rank() / 4] += static_cast<double>(c.bytes_between_hosts() - before);
    if (kind == Kind::kAllReduce) {
      EXPECT_EQ(out[count / 2], 16);
    }
  }));
  return sent;
}

TEST(HierarchicalCommunicator, SixteenRanksOnFourHostsSendHardlyMoreThanTheLeastPossible) {
  const std::size_t count = 1 << 17;
  const double bytes = count * 4.0;
  struct Case {
    Kind kind;
    double least;  ///< sent by all hosts together
  };
  // All-reduce: 2 (h - 1) / h per host; a broadcast reaches every other host once, a reduction
  // leaves every other host once; of 16 ranks' parts each goes to (comes from) every other host
  // once; of the pairs in an all-to-all 16 x 12 lie on two hosts.
  for (const Case& c : {Case{Kind::kAllReduce, 4 * 2 * 0.75 * bytes},
                        {Kind::kBroadcast, 3 * bytes},
                        {Kind::kReduce, 3 * bytes},
                        {Kind::kAllGather, 16 * 3 * bytes},
                        {Kind::kReduceScatter, 16 * 3 * bytes},
                        {Kind::kAllToAll, 16 * 12 * bytes / 16}}) {
    const std::size_t n = c.kind == Kind::kAllToAll ? count / 16
                          : c.kind == Kind::kAllGather || c.kind == Kind::kReduceScatter ? count / 8
                                                                                         : count;
    const double scale =
        c.kind == Kind::kAllToAll ? 1 : static_cast<double>(n) / static_cast<double>(count);
    double sum = 0;
    double most = 0;
    for (const double host : bytes_sent_by_hosts(c.kind, n, 5))
      sum += host, most = std::max(most, host);
    EXPECT_LE(sum, 1.05 * c.least * scale) << name(c.kind);
    EXPECT_GE(sum, c.least * scale) << name(c.kind);
    if (c.kind == Kind::kAllReduce) {
      EXPECT_LE(most, 1.05 * 2 * 0.75 * bytes);
    }
  }
}

// One output a host: it is written when none of its ranks reads what was there, and once.
TEST(HierarchicalCommunicator, GathersIntoOneOutputPerHost) {
  constexpr std::size_t kCount = 30000;
  const std::vector<int> hosts{0, 0, 0, 1, 1, 1};
  std::vector<std::vector<float>> outputs(2, std::vector<float>(6 * kCount));
  std::mutex mutex;
  std::uint64_t sent = 0;
  expect_none(on_hosts(hosts, [&](HierarchicalCommunicator& c) {
    std::vector<float>& output = outputs[static_cast<std::size_t>(c.rank() / 3)];
    std::vector<float> own(kCount);
    const auto before = c.bytes_between_hosts();
    for (int round = 0; round < 4; ++round) {
      std::fill(own.begin(), own.end(), static_cast<float>(10 * round + c.rank()));
      // In the last round what this rank contributes lies in its place.
      float* const place = output.data() + static_cast<std::size_t>(c.rank()) * kCount;
      const bool in_place = round == 3;
      if (in_place) {
        c.run({.kind = Kind::kBarrier}, soon());
        std::copy(own.begin(), own.end(), place);
      }
      const Handle handle =
          c.start({.kind = Kind::kAllGather,
                   .type = ElementType::kF32,
                   .buffer = {in_place ? place : own.data(), output.data(), kCount},
                   .tag = 5,
                   .shared_output = true});
      c.wait(handle, soon());
      // Others have begun the next round while this one still reads.
      if (c.rank() % 3 == 2) std::this_thread::sleep_for(milliseconds(30));
      for (std::size_t i = 0; i < output.size(); ++i)
        ASSERT_EQ(output[i], static_cast<float>(10 * round) + static_cast<float>(i / kCount));
    }
    const std::lock_guard lock(mutex);
    sent += c.bytes_between_hosts() - before;
  }));
  const double least = 4 * 6 * kCount * 4.0;
  EXPECT_GE(static_cast<double>(sent), least);
  EXPECT_LE(static_cast<double>(sent), 1.05 * least);
  for (const auto& error : on_hosts({0, 1, 0, 1}, [](HierarchicalCommunicator& c) {
         std::vector<float> x(4 * 8);
         c.start({.kind = Kind::kAllGather,
                  .type = ElementType::kF32,
                  .buffer = {x.data(), x.data(), 8},
                  .shared_output = true});
       })) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kUsage) << error->what();
  }
}

// Calls of one shape and another label, by shared memory, by TCP, and by both.
TEST(HierarchicalCommunicator, LabelsTellCallsApart) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1}}) {
    for (const auto& error : on_hosts(hosts, [&](HierarchicalCommunicator& c) {
           std::vector<float> in(5000);
           std::vector<float> out(20000);
           const Operation o{.kind = Kind::kAllGather,
                             .type = ElementType::kF32,
                             .buffer = {in.data(), out.data(), 5000},
                             .tag = c.rank() == 1 ? 8u : 7u,
                             .shared_output = c.layout().in_blocks};
           c.run(o, soon());
         })) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kMismatch) << error->what();
      EXPECT_NE(std::string(error->what()).find("label"), std::string::npos) << error->what();
    }
  }
}

TEST(HierarchicalCommunicator, KeepsManyInFlightOfSeveralKindsAndGroups) {
  expect_none(on_hosts({0, 0, 1, 1}, [](HierarchicalCommunicator& c) {
    const auto odd = c.split(c.rank() % 2, 0);
    const auto host = c.split(c.rank() / 2, 0);
    const auto three = c.split(c.rank() < 3 ? 0 : -1, -c.rank());
    EXPECT_NE(dynamic_cast<TcpCommunicator*>(odd.get()), nullptr);
    EXPECT_NE(dynamic_cast<HostCommunicator*>(host.get()), nullptr);
    EXPECT_EQ(dynamic_cast<HierarchicalCommunicator*>(three.get()) != nullptr, c.rank() < 3);
    EXPECT_EQ(three ? three->rank() : 3, c.rank() < 3 ? 2 - c.rank() : 3);  // by descending rank
    std::vector<std::vector<float>> data(60, std::vector<float>(5000, 1));
    std::vector<std::vector<float>> gathered(60, std::vector<float>(4 * 5000));
    std::vector<Handle> handles;
    for (int i = 0; i < 60; ++i) {
      Operation o{.kind = i % 3 == 0   ? Kind::kAllReduce
                          : i % 3 == 1 ? Kind::kBroadcast
                                       : Kind::kAllGather,
                  .type = ElementType::kF32};
      o.buffer = {data[i].data(), i % 3 == 2 ? gathered[i].data() : data[i].data(),
                  static_cast<std::size_t>(i % 2 ? 5000 : 100)};
      o.peer = i % 3 == 1 ? i % 4 : -1;
      o.priority = i / 3 % 4;
      handles.push_back(c.start(o));
    }
    for (int i = 59; i >= 0; i -= 2) c.wait(handles[i], soon());
    for (int i = 0; i < 60; i += 2)
      while (!c.test(handles[i])) c.poll(milliseconds(1));
    for (int i = 0; i < 60; ++i) {
      EXPECT_EQ(data[i][50], i % 3 == 0 ? 4 : 1);
      if (i % 3 == 2) {
        EXPECT_EQ(gathered[i][(i % 2 ? 5000 : 100) * 4 - 1], 1);
      }
    }
    // Coalesced, and messages.
    std::vector<Buffer> buffers;
    for (int i = 0; i < 3; ++i) buffers.push_back({data[i].data(), gathered[i].data(), 4000});
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kF32,
           .buffer = buffers[0],
           .more = std::span(buffers).subspan(1)},
          soon());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(gathered[i][0], i == 0 ? 16 : 4);
    int x = c.rank();
    int y = -1;
    const Handle sent = c.start({.kind = Kind::kSend,
                                 .type = ElementType::kI32,
                                 .buffer = {&x, nullptr, 1},
                                 .peer = (x + 1) % 4,
                                 .tag = 3});
    c.run({.kind = Kind::kReceive,
           .type = ElementType::kI32,
           .buffer = {nullptr, &y, 1},
           .peer = -1,
           .tag = 3},
          soon());
    c.wait(sent, soon());
    EXPECT_EQ(y, (x + 3) % 4);
    if (three) {
      EXPECT_EQ(check<float>(*three, Kind::kAllReduce, ElementType::kF32, 5001, 0), "");
    }
  }));
}

TEST(HierarchicalCommunicator, ADisagreementOnOneHostIsAnErrorOnAll) {
  for (const auto& error : on_hosts({0, 0, 1, 1}, [](HierarchicalCommunicator& c) {
         std::vector<float> x(5000);
         c.run({.kind = Kind::kAllReduce,
                .type = ElementType::kF32,
                .buffer = {x.data(), x.data(), c.rank() == 3 ? 4000u : 5000u}},
               soon());
       })) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kMismatch) << error->what();
  }
}

// The wait of the caller ends, and not the operation's own time, which is a minute.
TEST(HierarchicalCommunicator, AWaitEndsAtItsDeadline) {
  const auto errors = on_hosts({0, 0, 1, 1}, [&](HierarchicalCommunicator& c) {
    if (c.rank() == 3) {  // never enters
      for (const Deadline end = soon(); !end.passed();) c.poll(milliseconds(5));
      return;
    }
    std::vector<float> x(5000);
    const Handle handle = c.start({.kind = Kind::kAllReduce,
                                   .type = ElementType::kF32,
                                   .buffer = {x.data(), x.data(), 5000}});
    if (c.rank() == 0) c.wait(handle, Deadline::in(milliseconds(100)));
    c.wait(handle, soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout) << error->what();
    EXPECT_EQ(error->rank(), 0) << error->what();
    EXPECT_NE(std::string(error->what()).find("5000 x f32 did not complete in time"),
              std::string::npos)
        << error->what();
  }
}

TEST(HierarchicalCommunicator, WhatWasNeverStartedIsNotWaitedFor) {
  expect_none(on_hosts({0, 0, 1}, [](HierarchicalCommunicator& c) {
    const auto before = c.sequence();
    c.run({.kind = Kind::kBarrier}, soon());
    EXPECT_EQ(c.sequence(), before + 1);
    EXPECT_NO_THROW(c.wait(0, soon()));
    try {
      c.wait(1000, soon());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    }
  }));
}

TEST(HierarchicalCommunicator, TimesOutAndAbortsOnAllRanks) {
  for (const bool other_host : {false, true}) {
    const auto errors = on_hosts({0, 0, 1, 1}, [&](HierarchicalCommunicator& c) {
      std::vector<float> x(5000);
      if (c.rank() == 3 || (other_host && c.rank() == 2))  // never enters
        while (true) c.poll(milliseconds(5));
      c.run({.kind = Kind::kAllReduce,
             .type = ElementType::kF32,
             .buffer = {x.data(), x.data(), 5000},
             .timeout = milliseconds(300)},
            soon());
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::kTimeout) << error->what();
    }
  }
  for (const auto& error : on_hosts({0, 0, 1, 1}, [](HierarchicalCommunicator& c) {
         if (c.rank() == 2)
           c.abort(Error(ErrorKind::kNonFinite, "train", "the loss is not a number").at(2, 4));
         c.run({.kind = Kind::kBarrier}, soon());
       })) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kNonFinite) << error->what();
    EXPECT_EQ(error->rank(), 2) << error->what();
  }
}

}  // namespace
}  // namespace shoal::collective::hierarchical_communicator_test
