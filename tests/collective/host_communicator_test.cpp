#include "shoal/collective/shared_memory/host_communicator.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "tests/collective/host_calls.h"
#include "tests/collective/host_ranks.h"

namespace shoal::collective::host_communicator_test {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kCounts[] = {0, 1, 3, 16, 17, 500, 1023, 1025, 5000, 300001};

TEST(HostCommunicator, EveryKindEqualsItsDefinitionOnThreads) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    on_threads(ranks, [&](HostCommunicator& c, int) {
      std::vector<std::vector<float>> memory;
      const auto take = [&](std::size_t count) {
        memory.emplace_back(count);
        return memory.back().data();
      };
      for (const Kind kind : kKinds) {
        for (const std::size_t count : kCounts) {
          EXPECT_EQ(check(c, {.kind = kind, .count = count, .root = ranks - 1}, take), "");
          c.wait(c.start({.kind = Kind::kBarrier}));
          memory.clear();
        }
      }
    });
  }
}

// Arena memory goes the direct way, vectors the staged one, and with ranks of both the staged one
// must be taken by all.
TEST(HostCommunicator, EveryKindEqualsItsDefinitionOnProcesses) {
  for (const int ranks : {2, 3}) {
    const auto codes = on_processes(ranks, [&](HostCommunicator& c, wire::Arena& arena, int rank) {
      for (int mode = 0; mode < 3; ++mode) {
        for (const Kind kind : kKinds) {
          for (const std::size_t count : kCounts) {
            std::vector<std::vector<float>> vectors;
            std::vector<void*> blocks;
            const bool foreign = mode == 1 || (mode == 2 && rank == 0);
            const auto take = [&](std::size_t n) {
              if (!foreign)
                return static_cast<float*>(blocks.emplace_back(arena.allocate(n * sizeof(float))));
              vectors.emplace_back(n);
              return vectors.back().data();
            };
            const std::string wrong = check(c, {.kind = kind, .count = count}, take);
            if (!wrong.empty()) return std::fprintf(stderr, "%s\n", wrong.c_str()), 1;
            for (void* block : blocks) arena.free(block);
          }
        }
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(ranks, 0));
  }
}

// A rank begins with a staged operation before others have announced it, and goes on while they are
// still inside: many in flight, of one and of several chunks, between small ones and direct ones.
TEST(HostCommunicator, StagedOperationsFollowEachOther) {
  for (const int ranks : {2, 3}) {
    const auto codes = on_processes(ranks, [&](HostCommunicator& c, wire::Arena& arena, int rank) {
      constexpr std::size_t kElements[] = {5000, 300001, 40, 140001, 1};
      for (int round = 0; round < 4; ++round) {
        std::vector<std::vector<float>> vectors;
        std::vector<void*> blocks;
        std::vector<Started> all;
        for (int i = 0; i < 16; ++i) {
          const bool foreign = i % 5 < 3 || (i % 5 == 3 && rank == 0);
          all.push_back(begin(c,
                              {.kind = kKinds[(round + i) % 8],
                               .count = kElements[i * (round + 1) % 5],
                               .root = i % ranks},
                              [&](std::size_t n) {
                                if (!foreign) {
                                  return static_cast<float*>(
                                      blocks.emplace_back(arena.allocate(n * sizeof(float))));
                                }
                                return vectors.emplace_back(n).data();
                              }));
        }
        c.wait(all.back().handle);
        for (const Started& one : all) {
          if (const std::string wrong = compare(c, one); !wrong.empty())
            return std::fprintf(stderr, "%s\n", wrong.c_str()), 1;
        }
        for (void* block : blocks) arena.free(block);
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(ranks, 0));
  }
}

TEST(HostCommunicator, ManyTensorsInOneCall) {
  for (const std::size_t tensors : {2, 30, 1024, 1025, 2500}) {
    on_threads(3, [&](HostCommunicator& c, int rank) {
      std::vector<std::vector<double>> data;
      for (std::size_t t = 0; t < tensors; ++t)
        data.emplace_back(t % 97 * (tensors == 30 ? 100 : 1), rank + 0.5);
      std::vector<Buffer> buffers;
      for (auto& d : data) buffers.push_back({d.data(), d.data(), d.size()});
      const std::uint64_t before = c.sequence();
      c.wait(c.start({.kind = Kind::kAllReduce,
                      .type = ElementType::kF64,
                      .buffer = buffers[0],
                      .more = std::span(buffers).subspan(1)}));
      EXPECT_EQ(c.sequence() - before, (tensors + kListEntries - 1) / kListEntries);
      for (const auto& d : data)
        for (const double x : d) ASSERT_EQ(x, 0.5 + 1.5 + 2.5);
    });
  }
}

TEST(HostCommunicator, ExchangesPartsOfDifferentSizes) {
  for (const std::size_t unit : {1, 200000}) {
    on_threads(3, [&](HostCommunicator& c, int rank) {
      // Rank r sends (r + to) * unit elements to rank `to`; each is 10 * sender + receiver.
      std::vector<std::size_t> send;
      std::vector<std::size_t> receive;
      std::vector<float> in;
      for (int r = 0; r < 3; ++r) {
        send.push_back((rank + r) * unit), receive.push_back((rank + r) * unit);
        in.insert(in.end(), send.back(), static_cast<float>(10 * rank + r));
      }
      std::vector<float> out(in.size(), -1);
      c.wait(c.start({.kind = Kind::kAllToAll,
                      .type = ElementType::kF32,
                      .buffer = {in.data(), out.data(), 0},
                      .send_counts = send,
                      .receive_counts = receive}));
      std::size_t at = 0;
      for (int r = 0; r < 3; ++r)
        for (std::size_t i = 0; i < receive[r]; ++i) ASSERT_EQ(out[at++], 10 * r + rank);
    });
  }
}

TEST(HostCommunicator, KeepsManyOperationsInFlight) {
  on_threads(2, [](HostCommunicator& c, int rank) {
    constexpr int kOperations = 300;
    std::vector<std::vector<float>> data;
    for (int i = 0; i < kOperations; ++i)
      data.emplace_back(i % 3 == 0 ? 4 : 2000, static_cast<float>(rank + i));
    std::vector<Handle> handles;
    for (auto& d : data) {
      handles.push_back(c.start({.kind = Kind::kAllReduce,
                                 .type = ElementType::kF32,
                                 .buffer = {d.data(), d.data(), d.size()}}));
      if (rank == 1 && handles.size() % 50 == 0) std::this_thread::sleep_for(milliseconds(2));
    }
    c.wait(handles.back());
    for (int i = 0; i < kOperations; ++i) {
      ASSERT_TRUE(c.test(handles[i]));
      for (const float x : data[i]) ASSERT_EQ(x, 2 * i + 1);
    }
  });
}

TEST(HostCommunicator, SplitsIntoGroups) {
  on_threads(4, [](HostCommunicator& c, int rank) {
    // Evens and odds, in reverse order; rank 3 stays outside.
    const auto group = c.split(rank == 3 ? -1 : rank % 2, -rank);
    EXPECT_EQ(group == nullptr, rank == 3);
    if (group) {
      EXPECT_EQ(group->size(), rank % 2 == 0 ? 2 : 1);
      EXPECT_EQ(group->rank(), rank == 0 ? 1 : 0);
      std::vector<int> sum(5000, rank);
      group->wait(group->start({.kind = Kind::kAllReduce,
                                .type = ElementType::kI32,
                                .buffer = {sum.data(), sum.data(), sum.size()}}),
                  Deadline::in(std::chrono::seconds(60)));
      EXPECT_EQ(sum[4999], rank % 2 == 0 ? 2 : 1);
    }
    c.wait(c.start({.kind = Kind::kBarrier}));
  });
}

TEST(HostCommunicator, ADisagreementNamesBothCallsOnEveryRank) {
  std::mutex mutex;
  std::vector<std::string> words;
  EXPECT_THROW(on_threads(3,
                          [&](HostCommunicator& c, int rank) {
                            std::vector<float> data(rank == 2 ? 7 : 8);
                            try {
                              c.wait(c.start({.kind = Kind::kAllReduce,
                                              .type = ElementType::kF32,
                                              .buffer = {data.data(), data.data(), data.size()}}));
                            } catch (const Error& error) {
                              EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
                              const std::lock_guard lock(mutex);
                              words.push_back(error.what());
                              throw;
                            }
                          }),
               Error);
  ASSERT_EQ(words.size(), 3u);
  for (const auto& w : words) {
    EXPECT_NE(w.find("7 x f32"), std::string::npos) << w;
    EXPECT_NE(w.find("8 x f32"), std::string::npos) << w;
  }
}

// The root of a small broadcast need not wait for anybody, and a rank that gives to a small gather
// neither.
TEST(HostCommunicator, WhoOnlyGivesGoesOn) {
  constexpr int kBroadcasts = 12;  // fewer than there are places for what nobody has read yet
  std::atomic<bool> gone_on{false};
  on_threads(3, [&](HostCommunicator& c, int rank) {
    if (rank != 0)
      while (!gone_on) std::this_thread::sleep_for(milliseconds(1));
    for (int i = 0; i < kBroadcasts; ++i) {
      std::vector<int> data(64, rank == 0 ? 100 + i : -1);
      c.wait(c.start({.kind = Kind::kBroadcast,
                      .type = ElementType::kI32,
                      .buffer = {data.data(), data.data(), data.size()},
                      .peer = 0}));
      ASSERT_EQ(data, std::vector<int>(64, 100 + i));
    }
    std::array<int, 3> all{};
    c.wait(c.start({.kind = Kind::kGather,
                    .type = ElementType::kI32,
                    .buffer = {&rank, all.data(), 1},
                    .peer = 2}));
    EXPECT_EQ(all, (rank == 2 ? std::array{0, 1, 2} : std::array{0, 0, 0}));
    gone_on = true;
    // Far more than places: the giver waits for readers, and nothing is lost.
    for (int i = 0; i < 200; ++i) {
      std::array<int, 2> data{rank == 1 ? i : -1, rank};
      if (rank == 0 && i % 40 == 0) std::this_thread::sleep_for(milliseconds(3));
      c.wait(c.start({.kind = Kind::kBroadcast,
                      .type = ElementType::kI32,
                      .buffer = {data.data(), data.data(), 2},
                      .peer = 1}));
      ASSERT_EQ(data, (std::array<int, 2>{i, 1}));
    }
    c.wait(c.start({.kind = Kind::kBarrier}));
  });
}

// Each believes in another root and gets what it asked for; the next call finds out.
TEST(HostCommunicator, WhoHasGoneOnMeetsTheDisagreementAtTheNextCall) {
  std::atomic<int> met{0};
  EXPECT_THROW(
      on_threads(4,
                 [&](HostCommunicator& c, int rank) {
                   try {
                     float x = 0;
                     c.wait(c.start({.kind = Kind::kBroadcast,
                                     .type = ElementType::kF32,
                                     .buffer = {&x, &x, 1},
                                     .peer = rank % 2}));
                     c.wait(c.start({.kind = Kind::kBarrier}));
                   } catch (const Error& error) {
                     EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
                     EXPECT_NE(std::string(error.what()).find("with root 0"), std::string::npos)
                         << error.what();
                     EXPECT_NE(std::string(error.what()).find("with root 1"), std::string::npos)
                         << error.what();
                     ++met;
                     throw;
                   }
                 }),
      Error);
  EXPECT_EQ(met, 4);
}

// The root has gone on from as many small broadcasts as may be under way, and has started as much
// behind them as it may, before anyone has entered the first: what it keeps of each is still there
// when the others do.
TEST(HostCommunicator, WhoGoesOnKeepsWhatItHasStillToCompare) {
  std::atomic<bool> root_has_started{false};
  on_threads(2, [&](HostCommunicator& c, int rank) {
    while (rank == 1 && !root_has_started) std::this_thread::yield();
    const std::vector<std::size_t> counts{3, 3};
    std::vector<int> in(6);
    std::vector<int> out(6 * kSlots, -1);
    std::vector<int> received(kPayloads, -1);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 100 * rank + static_cast<int>(i);
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < kPayloads; ++i) {
      if (rank == 0) received[i] = static_cast<int>(i);
      handles.push_back(c.start({.kind = Kind::kBroadcast,
                                 .type = ElementType::kI32,
                                 .buffer = {&received[i], &received[i], 1},
                                 .peer = 0}));
    }
    for (std::size_t i = 0; i < kSlots; ++i) {
      handles.push_back(c.start({.kind = Kind::kAllToAll,
                                 .type = ElementType::kI32,
                                 .buffer = {in.data(), out.data() + 6 * i, 0},
                                 .send_counts = counts,
                                 .receive_counts = counts}));
    }
    if (rank == 0) root_has_started = true;
    for (const Handle handle : handles) c.wait(handle);
    for (std::size_t i = 0; i < kPayloads; ++i) EXPECT_EQ(received[i], static_cast<int>(i));
    for (std::size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(out[i], 100 * static_cast<int>(i % 6 / 3) + 3 * rank + static_cast<int>(i % 3));
  });
}

// Equal pointers, whatever the rank: results then lie over parts that others read.
TEST(HostCommunicator, ResultsMayBeginWhereInputsDo) {
  const auto codes = on_processes(3, [](HostCommunicator& c, wire::Arena& arena, int rank) {
    for (const std::size_t count : {std::size_t{100}, std::size_t{5000}, std::size_t{300000}}) {
      auto* data = static_cast<int*>(arena.allocate(3 * count * sizeof(int)));
      const auto mine = [&](int r, std::size_t i) { return r * 1000000 + static_cast<int>(i); };
      for (std::size_t i = 0; i < count; ++i) data[i] = mine(rank, i);
      c.wait(c.start(
          {.kind = Kind::kAllGather, .type = ElementType::kI32, .buffer = {data, data, count}}));
      for (int r = 0; r < 3; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
          if (data[static_cast<std::size_t>(r) * count + i] != mine(r, i))
            return std::fprintf(stderr, "all_gather of %zu\n", count), 1;
        }
      }
      for (std::size_t i = 0; i < 3 * count; ++i) data[i] = mine(rank, i);
      c.wait(c.start({.kind = Kind::kReduceScatter,
                      .type = ElementType::kI32,
                      .buffer = {data, data, count}}));
      for (std::size_t i = 0; i < count; ++i) {
        if (data[i] != 3 * mine(1, static_cast<std::size_t>(rank) * count + i))
          return std::fprintf(stderr, "reduce_scatter of %zu\n", count), 1;
      }
      arena.free(data);
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(HostCommunicator, ATimeoutNamesTheRankThatNeverEntered) {
  on_threads(2, [](HostCommunicator& c, int rank) {
    c.wait(c.start({.kind = Kind::kBarrier}));
    if (rank == 1) return;
    float x = 0;
    try {
      c.wait(c.start({.kind = Kind::kAllReduce,
                      .type = ElementType::kF32,
                      .buffer = {&x, &x, 1},
                      .timeout = milliseconds(200)}));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      EXPECT_NE(std::string(error.what()).find("rank 1 never entered #2 (its last was #1 barrier"),
                std::string::npos)
          << error.what();
    }
    EXPECT_THROW(c.start({.kind = Kind::kBarrier}), Error) << "a failed group stays failed";
  });
}

/// Something that a rank tells the test, once.
class Signal {
 public:
  Signal() { EXPECT_EQ(pipe(ends_.data()), 0); }
  ~Signal() { close(ends_[0]), close(ends_[1]); }
  void give() { EXPECT_EQ(write(ends_[1], "!", 1), 1); }
  void await() {
    pollfd ready{.fd = ends_[0], .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&ready, 1, 60'000), 1);
  }

 private:
  std::array<int, 2> ends_{};
};

// The operations bring ten minutes each: what ends them sooner is that the loss is seen.
TEST(HostCommunicator, AKilledPeerIsNamedByAllSurvivorsSoon) {
  Signal at_work;
  Clock::time_point killed;
  const auto codes = on_processes(
      3,
      [&](HostCommunicator& c, wire::Arena& arena, int rank) {
        auto* data = static_cast<float*>(arena.allocate(4 << 20));
        std::memset(data, 0, 4 << 20);
        try {
          for (int i = 0;; ++i) {
            c.wait(c.start({.kind = Kind::kAllReduce,
                            .type = ElementType::kF32,
                            .buffer = {data, data, 1 << 20}}));
            if (i == 3 && rank == 1) at_work.give();
          }
        } catch (const Error& error) {
          const bool named = error.kind() == ErrorKind::kPeerLost && error.peer() == 1 &&
                             std::string(error.what()).find("rank 1 ended") != std::string::npos;
          if (!named) std::fprintf(stderr, "%s\n", error.what());
          return named ? 0 : 1;
        }
      },
      [&](const std::vector<int>& pids) {
        at_work.await();
        std::this_thread::sleep_for(milliseconds(50));
        killed = Clock::now();
        kill(pids[1], SIGKILL);
      },
      {.timeout = std::chrono::minutes(10)});
  EXPECT_EQ(codes, (std::vector<int>{0, 128 + SIGKILL, 0}));
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(60));
}

TEST(HostCommunicator, TheWordsOfARankThatFailsOutrankItsLoss) {
  const auto codes = on_processes(3, [](HostCommunicator& c, wire::Arena&, int rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(50));
      c.abort(Error(ErrorKind::kNonFinite, "step", "the loss is nan").at(2, 3));
      return 0;  // gone at once
    }
    float x = 0;
    try {
      c.wait(c.start({.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {&x, &x, 1}}));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kNonFinite &&
                     std::string(error.what()).find("rank 2 failed: the loss is nan") !=
                         std::string::npos
                 ? 0
                 : 1;
    }
    return 2;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(HostCommunicator, AStoppedPeerIsATimeout) {
  const auto codes = on_processes(
      2,
      [](HostCommunicator& c, wire::Arena&, int rank) {
        try {
          for (int i = 0; i < 5; ++i) c.wait(c.start({.kind = Kind::kBarrier}));
          if (rank == 1) kill(getpid(), SIGSTOP);
          c.wait(c.start({.kind = Kind::kBarrier, .timeout = milliseconds(300)}));
        } catch (const Error& error) {
          return rank == 0 && error.kind() == ErrorKind::kTimeout &&
                         std::string(error.what()).find("rank 1 never entered") != std::string::npos
                     ? 0
                     : 5;
        }
        return 6;
      },
      [](const std::vector<int>& pids) {
        siginfo_t ending{};
        waitid(P_PID, static_cast<id_t>(pids[0]), &ending, WEXITED | WNOWAIT);
        kill(pids[1], SIGKILL);
      });
  EXPECT_EQ(codes, (std::vector<int>{0, 128 + SIGKILL}));
}

// Random operations of random sizes from a seed that all ranks share, with random delays of their
// own.
TEST(HostCommunicator, ALongRandomScheduleStaysRight) {
  const auto codes = on_processes(4, [](HostCommunicator& c, wire::Arena& arena, int rank) {
    std::mt19937 common(17);
    std::mt19937 own(static_cast<unsigned>(rank));
    for (int i = 0; i < 1500; ++i) {
      const Kind kind = kKinds[common() % std::size(kKinds)];
      const std::size_t count = common() % (std::size_t{1} << (common() % 16));
      const int root = static_cast<int>(common() % 4);
      const bool foreign = common() % 4 == 0;
      if (own() % 64 == 0) std::this_thread::sleep_for(milliseconds(1));
      std::vector<std::vector<float>> vectors;
      std::vector<void*> blocks;
      const std::string wrong =
          check(c, {.kind = kind, .count = count, .root = root}, [&](std::size_t n) {
            if (!foreign)
              return static_cast<float*>(blocks.emplace_back(arena.allocate(n * sizeof(float))));
            vectors.emplace_back(n);
            return vectors.back().data();
          });
      if (!wrong.empty()) return std::fprintf(stderr, "operation %d: %s\n", i, wrong.c_str()), 1;
      for (void* block : blocks) arena.free(block);
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace shoal::collective::host_communicator_test
