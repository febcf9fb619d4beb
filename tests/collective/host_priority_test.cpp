// Urgent operations overtake large ones in the memory of one host. Where a test says what is
// complete and what is not, ranks meet beforehand by other means, so that it does not depend on who
// is faster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <thread>

#include "tests/collective/host_calls.h"
#include "tests/collective/host_ranks.h"

namespace shoal::collective::host_priority_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::size_t kLarge =
    1 << 20;  // elements: several pieces and many chunks, whatever the kind, of up to five ranks
constexpr std::size_t kMedium = 20 << 10;  // is not carried out by `start`
constexpr std::size_t kSmall = 10;

/// Where ranks, threads or processes, wait for each other without their communicator.
class MeetingPoint {
 public:
  explicit MeetingPoint(int ranks) : ranks_(static_cast<unsigned>(ranks)) {
    void* page =
        mmap(nullptr, sizeof *arrived_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw Error(ErrorKind::kResource, "mmap", "no page");
    arrived_ = new (page) std::atomic<unsigned>(0);
  }
  ~MeetingPoint() { munmap(arrived_, sizeof *arrived_); }
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;

  /// Throws where somebody has failed and does not come.
  void meet() {
    const unsigned all = (arrived_->fetch_add(1) / ranks_ + 1) * ranks_;
    for (const Deadline end = Deadline::in(std::chrono::minutes(5)); *arrived_ < all;
         std::this_thread::yield())
      if (end.passed()) throw Error(ErrorKind::kTimeout, "test", "not all ranks have come");
  }

 private:
  unsigned ranks_;
  std::atomic<unsigned>* arrived_;
};

/// Memory of the test's own: where ranks are threads, peers may use it as long as any of them runs.
class Memory {
 public:
  float* operator()(std::size_t count) {
    return blocks_.emplace_back(std::make_unique_for_overwrite<float[]>(count)).get();
  }

 private:
  std::vector<std::unique_ptr<float[]>> blocks_;
};

using RankMemory = std::vector<Memory>;

/// Of the operation's own output: has nobody written to it?
bool untouched(const Started& one) {
  for (std::size_t i = 0; i < one.out_count; ++i)
    if (one.out[i] != -1) return false;
  return true;
}

TEST(HostPriority, ASmallOneOvertakesALargeOneThatLiesInVisibleMemory) {
  for (const int ranks : {2, 3}) {
    for (const Kind kind : kKinds) {
      MeetingPoint point(ranks);
      RankMemory memory(ranks);
      on_threads(ranks, [&](HostCommunicator& c, int rank) {
        const Take take = std::ref(memory[rank]);
        const Started large = begin(c, {.kind = kind, .count = kLarge / 4}, take);
        const Started small = begin(c, {.count = kSmall, .priority = 1, .salt = 5}, take);
        point.meet();
        c.wait(small.handle);
        EXPECT_EQ(compare(c, small), "");
        EXPECT_FALSE(c.complete(large.handle));
        EXPECT_TRUE(untouched(large)) << name(kind);
        EXPECT_EQ(c.in_flight(), 2u);
        EXPECT_FALSE(c.idle());
        point.meet();
        c.wait(large.handle);
        EXPECT_EQ(compare(c, large), "");
        EXPECT_TRUE(c.complete(small.handle));
        EXPECT_TRUE(c.idle());
      });
    }
  }
}

// Processes: what lies in their vectors only they see. The large one has begun on rank 0, which
// waits for the chunks of the others.
TEST(HostPriority, ASmallOneOvertakesALargeOneThatIsStaged) {
  for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kAllToAll}) {
    MeetingPoint point(3);
    const auto codes = on_processes(3, [&](HostCommunicator& c, wire::Arena& arena, int rank) {
      Memory memory;
      const Take take = std::ref(memory);
      const Take visible = [&](std::size_t count) {
        return static_cast<float*>(arena.allocate(count * sizeof(float)));
      };
      const Started large = begin(c, {.kind = kind, .count = kLarge}, take);
      point.meet();
      for (int i = 0; rank == 0 && i < 5; ++i) c.poll(Duration::zero());
      const Started small = begin(c, {.count = kSmall, .priority = 1, .salt = 5}, take);
      const Started direct =
          begin(c, {.kind = Kind::kAllGather, .count = kMedium, .priority = 1, .salt = 9}, visible);
      point.meet();
      c.wait(small.handle);
      c.wait(direct.handle);
      if (c.complete(large.handle)) return 1;
      point.meet();
      c.wait(large.handle);
      for (const Started& one : {small, direct, large}) {
        if (const std::string wrong = compare(c, one); !wrong.empty())
          return std::fprintf(stderr, "%s\n", wrong.c_str()), 2;
      }
      return c.idle() ? 0 : 3;
    });
    EXPECT_EQ(codes, std::vector<int>(3, 0)) << name(kind);
  }
}

// An operation that others must carry out too is complete when all have, though none is done with
// what it has overtaken.
TEST(HostPriority, ALargeOneOvertakesALargeOne) {
  for (const int ranks : {2, 4}) {
    MeetingPoint point(ranks);
    RankMemory memory(ranks);
    on_threads(ranks, [&](HostCommunicator& c, int rank) {
      const Take take = std::ref(memory[rank]);
      const Started first = begin(c, {.count = kLarge}, take);
      const Started urgent = begin(
          c, {.kind = Kind::kReduceScatter, .count = kLarge / 8, .priority = 2, .salt = 5}, take);
      const Started most =
          begin(c, {.kind = Kind::kAllGather, .count = kMedium, .priority = 3, .salt = 9}, take);
      const Started staged = begin(
          c,
          {.kind = Kind::kAllToAll, .count = kMedium, .priority = 1, .salt = 11, .counted = true},
          take);
      point.meet();
      c.wait(urgent.handle);
      EXPECT_EQ(compare(c, urgent), "");
      EXPECT_FALSE(c.complete(first.handle));
      point.meet();
      c.wait(most.handle);
      EXPECT_EQ(compare(c, most), "");
      c.wait(staged.handle);
      EXPECT_EQ(compare(c, staged), "");
      c.wait(first.handle);
      EXPECT_EQ(compare(c, first), "");
      EXPECT_TRUE(c.idle());
    });
  }
}

// Behind one as urgent nothing is complete before that is.
TEST(HostPriority, EqualOnesKeepTheOrderOfTheCalls) {
  MeetingPoint point(3);
  RankMemory memory(3);
  on_threads(3, [&](HostCommunicator& c, int rank) {
    const Take take = std::ref(memory[rank]);
    const Started last = begin(c, {.count = kLarge, .priority = -1}, take);
    std::vector<Started> equal;
    for (int i = 0; i < 12; ++i) {
      equal.push_back(begin(
          c, {.kind = kKinds[i % 8], .count = i % 3 == 2 ? kSmall : kMedium, .salt = i}, take));
    }
    point.meet();
    c.wait(equal.back().handle);
    for (const Started& one : equal) {
      EXPECT_TRUE(c.complete(one.handle)) << one.handle;
      EXPECT_EQ(compare(c, one), "");
    }
    point.meet();
    c.wait(last.handle);
    EXPECT_EQ(compare(c, last), "");

    // The same where no priorities differ, and where the urgent ones come first.
    const Started large = begin(c, {.count = kLarge}, take);
    const Started small = begin(c, {.count = kSmall}, take);
    c.wait(small.handle);
    EXPECT_TRUE(c.complete(large.handle));
    const Started urgent = begin(c, {.count = kSmall, .priority = 1}, take);
    const Started behind = begin(c, {.count = kLarge}, take);
    point.meet();
    c.wait(urgent.handle);
    EXPECT_FALSE(c.complete(behind.handle));
    EXPECT_TRUE(untouched(behind));
    point.meet();
    c.wait(behind.handle);
    for (const Started& one : {large, small, urgent, behind}) EXPECT_EQ(compare(c, one), "");
  });
}

// Several tensors in one call: the last of its operations stands for all.
TEST(HostPriority, ACallOfManyTensorsIsCompleteAsAWhole) {
  MeetingPoint point(2);
  RankMemory memory(2);
  on_threads(2, [&](HostCommunicator& c, int rank) {
    Memory& take = memory[rank];
    const Started large = begin(c, {.count = kLarge}, std::ref(take));
    constexpr std::size_t kTensors =
        8;  // the last is small, and would be complete long before the others
    std::vector<Buffer> buffers;
    for (std::size_t t = 0; t < kTensors; ++t) {
      const std::size_t count = t % 2 == 0 ? kMedium : kSmall;
      float* in = take(count);
      float* out = take(2 * count);
      std::fill_n(in, count, static_cast<float>(10 * rank + 1));
      buffers.push_back({in, out, count});
    }
    const Handle gathered = c.start({.kind = Kind::kAllGather,
                                     .type = ElementType::kF32,
                                     .buffer = buffers[0],
                                     .more = std::span(buffers).subspan(1),
                                     .priority = 1});
    point.meet();
    c.wait(gathered);
    EXPECT_FALSE(c.complete(large.handle));
    for (const Buffer& buffer : buffers) {
      for (std::size_t i = 0; i < 2 * buffer.count; ++i)
        ASSERT_EQ(static_cast<float*>(buffer.output)[i], i < buffer.count ? 1 : 11);
    }
    point.meet();
    c.wait(large.handle);
    EXPECT_EQ(compare(c, large), "");
  });
}

// Who only gives to an urgent small one is done at once, behind a large one too; the others find it
// when they come.
TEST(HostPriority, WhoOnlyGivesGoesOnBehindALargeOne) {
  constexpr int kGiven =
      10;  // with the large one fewer than there are places for what nobody has read yet
  MeetingPoint point(3);
  RankMemory memory(3);
  on_threads(3, [&](HostCommunicator& c, int rank) {
    const Take take = std::ref(memory[rank]);
    const Started large = begin(c, {.count = kLarge}, take);
    std::vector<Started> given;
    if (rank != 1) point.meet();
    for (int i = 0; i < kGiven; ++i) {
      given.push_back(
          begin(c, {.kind = Kind::kBroadcast, .count = kSmall, .root = 1, .priority = 1, .salt = i},
                take));
    }
    if (rank == 1) {
      c.wait(given.back().handle);
      EXPECT_FALSE(c.complete(large.handle));
      point.meet();
    }
    for (const Started& one : given) {
      c.wait(one.handle);
      EXPECT_EQ(compare(c, one), "");
    }
    c.wait(large.handle);
    EXPECT_EQ(compare(c, large), "");
    c.wait(c.start({.kind = Kind::kBarrier}));
  });
}

// More urgent ones than may be announced behind one that is not done: the large one is carried out
// first, and nothing stands still.
TEST(HostPriority, MoreThanMayBeUnderWayStillProceed) {
  RankMemory memory(2);
  on_threads(2, [&](HostCommunicator& c, int rank) {
    const Take take = std::ref(memory[rank]);
    const Started large = begin(c, {.count = kLarge}, take);
    std::vector<Started> urgent;
    for (int i = 0; i < 150; ++i) {
      urgent.push_back(
          begin(c, {.count = i % 10 == 0 ? kMedium : kSmall, .priority = 1 + i % 3, .salt = i % 50},
                take));
    }
    c.wait(urgent.back().handle);
    for (const Started& one : urgent) {
      c.wait(one.handle);
      EXPECT_EQ(compare(c, one), "");
    }
    c.wait(large.handle);
    EXPECT_EQ(compare(c, large), "");
    EXPECT_TRUE(c.idle());
  });
}

/// Operations of all kinds, sizes and priorities from a seed that all ranks share; each rank has
/// its own priorities for some, and its own order of waits, tests and polls. `take(foreign, count)`
/// gives memory that stays. Returns what is wrong.
std::string mixed_schedule(HostCommunicator& c, unsigned seed, int operations,
                           const std::function<float*(bool foreign, std::size_t count)>& take) {
  std::mt19937 common(seed);
  std::mt19937 own(seed * 100 + static_cast<unsigned>(c.rank()));
  std::vector<Started> open;
  const auto settle = [&](std::size_t i) {
    const std::string wrong = compare(c, open[i]);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    return wrong;
  };
  for (int started = 0; started < operations || !open.empty();) {
    std::string wrong;
    const auto what = own() % 16;
    const std::size_t i = open.empty() ? 0 : own() % open.size();
    if (started < operations && (what < 11 || open.empty())) {
      const auto kind = kKinds[common() % std::size(kKinds)];
      const std::size_t size = common() % 40;
      const std::size_t count = size == 0   ? 400'000 + common() % 200'000
                                : size < 12 ? common() % 30'000
                                            : common() % 100;
      const int root = static_cast<int>(common()) & 0xffff;
      const int priority = static_cast<int>(common() % 3);
      const bool counted = kind == Kind::kAllToAll && common() % 2 == 0;
      const bool foreign = common() % 4 == 0;
      const bool differs = common() % 8 == 0;
      const HostCall call{.kind = kind,
                          .count = count,
                          .root = root % c.size(),
                          .priority = differs ? static_cast<int>(own() % 5) - 1 : priority,
                          .salt = started % 50,
                          .counted = counted};
      open.push_back(
          begin(c, call, [&](std::size_t n) { return take(foreign || own() % 8 == 0, n); }));
      ++started;
    } else if (open.empty()) {
      continue;
    } else if (what < 14) {
      c.wait(open[i].handle);
      wrong = settle(i);
    } else if (what == 14) {
      if (c.test(open[i].handle)) wrong = settle(i);
    } else if (c.poll(Duration::zero()); c.complete(open[i].handle)) {
      wrong = settle(i);
    }
    if (!wrong.empty()) return fmt::format("seed {}: {}", seed, wrong);
  }
  c.wait(c.start({.kind = Kind::kBarrier}));
  return c.idle() ? "" : "something is in flight";
}

TEST(HostPriority, LongRandomSchedulesStayRightOnThreads) {
  for (const int ranks : {2, 3, 5}) {
    RankMemory memory(ranks);
    on_threads(ranks, [&](HostCommunicator& c, int rank) {
      const auto take = [&](bool, std::size_t count) { return memory[rank](count); };
      EXPECT_EQ(mixed_schedule(c, static_cast<unsigned>(ranks), 200, take), "");
    });
  }
}

TEST(HostPriority, LongRandomSchedulesStayRightOnProcesses) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const auto codes = on_processes(ranks, [&](HostCommunicator& c, wire::Arena& arena, int) {
      Memory memory;
      const auto take = [&](bool foreign, std::size_t count) {
        return foreign ? memory(count) : static_cast<float*>(arena.allocate(count * sizeof(float)));
      };
      const std::string wrong = mixed_schedule(c, static_cast<unsigned>(10 + ranks), 300, take);
      if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
      return wrong.empty() ? 0 : 1;
    });
    EXPECT_EQ(codes, std::vector<int>(ranks, 0));
  }
}

// Rank 1 gives up with operations of several priorities under way, some of them done: every rank
// ends with its words.
TEST(HostPriority, AnAbortInTheMiddleReachesAll) {
  for (int done = 0; done < 6; ++done) {
    RankMemory memory(3);
    std::atomic<int> met{0};
    EXPECT_THROW(
        on_threads(3,
                   [&](HostCommunicator& c, int rank) {
                     const Take take = std::ref(memory[rank]);
                     try {
                       std::vector<Started> all;
                       for (int i = 0; i < 12; ++i) {
                         all.push_back(begin(c,
                                             {.kind = kKinds[i % 8],
                                              .count = i % 3 == 0   ? kLarge / 8
                                                       : i % 3 == 1 ? kMedium
                                                                    : kSmall,
                                              .priority = i % 4,
                                              .counted = i % 8 == 5},
                                             take));
                       }
                       for (int i = 0; i < done; ++i) c.wait(all[11 - i].handle);
                       if (rank == 1)
                         c.abort(
                             Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 3));
                       for (const Started& one : all) c.wait(one.handle);
                       c.wait(c.start({.kind = Kind::kBarrier}));
                       ADD_FAILURE() << "rank 1 never comes there";
                     } catch (const Error& error) {
                       EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
                       EXPECT_THAT(error.what(), HasSubstr("the shard is truncated"));
                       ++met;
                       throw;
                     }
                   }),
        Error);
    EXPECT_EQ(met, 3);
  }
}

// The second call differs between ranks; the third has overtaken it, and is right.
TEST(HostPriority, ADisagreementBehindOneThatHasOvertakenIsMet) {
  MeetingPoint point(2);
  RankMemory memory(2);
  std::atomic<int> met{0};
  EXPECT_THROW(on_threads(2,
                          [&](HostCommunicator& c, int rank) {
                            const Take take = std::ref(memory[rank]);
                            begin(c, {.count = kLarge}, take);
                            const Started wrong =
                                begin(c, {.count = kMedium + static_cast<std::size_t>(rank)}, take);
                            const Started urgent = begin(c, {.count = kSmall, .priority = 1}, take);
                            point.meet();
                            c.wait(urgent.handle);
                            EXPECT_EQ(compare(c, urgent), "");
                            point.meet();
                            try {
                              c.wait(wrong.handle);
                            } catch (const Error& error) {
                              EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
                              EXPECT_EQ(error.sequence(), 2u);
                              EXPECT_THAT(error.what(), HasSubstr("20480 x f32"));
                              EXPECT_THAT(error.what(), HasSubstr("20481 x f32"));
                              ++met;
                              throw;
                            }
                          }),
               Error);
  EXPECT_EQ(met, 2);
}

TEST(HostPriority, ADisagreementOverAnUrgentOneIsMet) {
  RankMemory memory(2);
  std::atomic<int> met{0};
  EXPECT_THROW(
      on_threads(2,
                 [&](HostCommunicator& c, int rank) {
                   const Take take = std::ref(memory[rank]);
                   begin(c, {.count = kLarge}, take);
                   try {
                     c.wait(begin(c,
                                  {.count = kSmall + static_cast<std::size_t>(rank), .priority = 1},
                                  take)
                                .handle);
                   } catch (const Error& error) {
                     EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
                     EXPECT_EQ(error.sequence(), 2u);
                     ++met;
                     throw;
                   }
                 }),
      Error);
  EXPECT_EQ(met, 2);
}

/// Returns the error that rank 0 gets when it waits for the last of `calls`, of which rank 1 starts
/// the first `entered` and then does nothing more.
Error error_after(const std::vector<HostCall>& calls, std::size_t entered) {
  RankMemory memory(2);
  MeetingPoint point(2);
  std::optional<Error> caught;
  on_threads(2, [&](HostCommunicator& c, int rank) {
    std::vector<Started> all;
    for (std::size_t i = 0; i < (rank == 0 ? calls.size() : entered); ++i)
      all.push_back(begin(c, calls[i], std::ref(memory[rank])));
    point.meet();
    if (rank == 1) return;
    try {
      c.wait(all.back().handle);
      ADD_FAILURE();
    } catch (const Error& error) {
      caught = error;
    }
  });
  return caught.value();
}

TEST(HostPriority, ATimeoutNamesTheOperationThatIsAwaited) {
  const HostCall large{.count = kLarge, .timeout = milliseconds(100)};
  const HostCall small{.count = kSmall, .timeout = milliseconds(100)};
  const auto with = [](HostCall call, int priority) {
    call.priority = priority;
    return call;
  };
  // The urgent one waits for rank 1, not for the large one, which rank 1 has announced.
  const Error urgent = error_after({large, with(small, 1)}, 1);
  EXPECT_EQ(urgent.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(urgent.sequence(), 2u);
  EXPECT_THAT(urgent.what(), HasSubstr("rank 1 never entered #2 (its last was #1 all_reduce"));
  // Behind one as urgent it is that one.
  EXPECT_EQ(error_after({large, with(large, 1), with(small, 1)}, 3).sequence(), 2u);
  EXPECT_EQ(error_after({large, small}, 2).sequence(), 1u);
  EXPECT_EQ(error_after({with(small, 1), large}, 2).sequence(), 2u);
  // What must be staged waits for what must be and is before it.
  const HostCall staged{
      .kind = Kind::kAllToAll, .count = kLarge, .counted = true, .timeout = milliseconds(100)};
  EXPECT_EQ(error_after({large, staged, with(staged, 1)}, 3).sequence(), 2u);
}

// Rank 1 has given what it had to give, and has left: rank 0 still waits for rank 2, not for it.
TEST(HostPriority, WhoHasGivenMayLeave) {
  MeetingPoint given(2);
  MeetingPoint looked(2);
  on_threads(3, [&](HostCommunicator& c, int rank) {
    std::array<int, 3> all{};
    if (rank == 2) looked.meet();
    const Handle handle = c.start({.kind = Kind::kGather,
                                   .type = ElementType::kI32,
                                   .buffer = {&rank, all.data(), 1},
                                   .peer = 0});
    if (rank == 0) {
      given.meet();
      EXPECT_FALSE(c.wait_briefly(handle, milliseconds(20)));
      looked.meet();
    }
    c.wait(handle);
    EXPECT_EQ(all, (rank == 0 ? std::array{0, 1, 2} : std::array{0, 0, 0}));
    if (rank == 1) {
      c.world().leave();
      given.meet();
    }
  });
}

}  // namespace
}  // namespace shoal::collective::host_priority_test
