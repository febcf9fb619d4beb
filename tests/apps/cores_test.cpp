#include "apps/shoal/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <thread>

#include "shoal/base/error.h"

namespace shoal::apps::cores_test {
namespace {

TEST(Doublings, EndWithAll) {
  EXPECT_EQ(doublings(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(doublings(2), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(doublings(6), (std::vector<std::int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(doublings(8), (std::vector<std::int64_t>{1, 2, 4, 8}));
}

TEST(Cores, ThisProcessHasThoseOfItsMask) {
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(static_cast<int>(cores_of_this_process().list.size()), CPU_COUNT(&set));
}

TEST(Cores, AreSharedEquallyAndNeverNone) {
  const Cores eight{{0, 1, 2, 3, 4, 5, 6, 7}, 0};
  const Cores quota{{0, 1, 2, 3, 4, 5, 6, 7}, 2.5};
  EXPECT_EQ(threads_per_rank(eight, 2, 0), 4);
  EXPECT_EQ(threads_per_rank(eight, 3, 0), 2);
  EXPECT_EQ(threads_per_rank(eight, 16, 0), 1);
  EXPECT_EQ(threads_per_rank(eight, 2, 7), 7);
  EXPECT_EQ(quota.usable(), 3);
  EXPECT_EQ((Cores{{0, 1}, 2.5}.usable()), 2) << "no more than there are";
  EXPECT_EQ((Cores{{0, 1}, 0.2}.usable()), 1);
  EXPECT_EQ((Cores{{}, 0}.usable()), 1);
}

// Four ranks on eight cores whose launcher had all of them: bound to nothing, to a half each, to
// two cores each, to more than a fair part.
TEST(Cores, OfABoundRankAreItsOwn) {
  const Cores all{{0, 1, 2, 3, 4, 5, 6, 7}, 6};
  const Cores half{{4, 5, 6, 7}, 6};
  const Cores two{{2, 3}, 6};
  const Cores five{{0, 1, 2, 3, 4}, 6};
  EXPECT_EQ(bound_cores(all, all, 4).sharers, 4);
  EXPECT_EQ(bound_cores(half, all, 4).sharers, 2);
  EXPECT_EQ(bound_cores(two, all, 4).sharers, 1);
  EXPECT_EQ(bound_cores(five, all, 4).sharers, 3)
      << "2.5, and rather too few threads than too many";
  EXPECT_EQ(bound_cores(two, all, 2).sharers, 1);
  EXPECT_EQ(bound_cores({{3}, 6}, all, 3).sharers, 1) << "it is there itself";
  EXPECT_EQ(bound_cores(half, {}, 4).sharers, 4) << "the launcher's mask could not be read";
  EXPECT_EQ(threads_per_rank(bound_cores(two, all, 4).cores, 1, 0), 2);
  EXPECT_EQ(bound_cores(half, all, 4).cores.quota, 3) << "two of the four ranks are there";
}

TEST(Cores, NoTwoRanksShareOne) {
  const Cores odd{{1, 3, 5, 7, 9}, 0};
  std::set<int> seen;
  for (int rank = 0; rank < 2; ++rank) {
    for (const int core : cores_of_rank(odd, rank, 2, 2))
      EXPECT_TRUE(seen.insert(core).second) << core;
  }
  EXPECT_EQ(seen, (std::set<int>{1, 3, 5, 7}));
  EXPECT_THROW(cores_of_rank(odd, 0, 3, 2), Error);
  EXPECT_EQ(cores_of_rank(odd, 4, 5, 1), std::vector<int>{9}) << "just enough";
  EXPECT_EQ(cores_of_rank(odd, 0, 1, 5), odd.list);
}

TEST(Cores, AreSharedWhereThereAreFewerThanThreads) {
  const Cores four{{0, 1, 2, 3}};
  EXPECT_EQ(crowding(four, 2, 2), "");
  EXPECT_EQ(crowding(four, 3, 2), "With 3 ranks 6 threads share 4 cores.\n");
  EXPECT_EQ(crowding({{0, 1, 2, 3}, 1.5}, 1, 3), "With 1 rank 3 threads share 2 cores.\n")
      << "the quota is less";
}

TEST(Cores, KeepingToThemHolds) {
  const int first = cores_of_this_process().list.front();
  std::thread([&] {
    keep_to({first});
    EXPECT_EQ(cores_of_this_process().list, std::vector<int>{first});
  }).join();
  EXPECT_THROW(keep_to({CPU_SETSIZE - 1}), Error);
}

}  // namespace
}  // namespace shoal::apps::cores_test
