#include "shoal/wire/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"

namespace shoal::wire::arena_test {
namespace {

Arena::Options small(std::size_t limit) {
  return {.virtual_bytes = std::size_t{1} << 32, .limit_bytes = limit, .poison = true};
}

TEST(Arena, BlocksAreAlignedApartAndKeepTheirBytes) {
  Arena arena(small(256 << 20));
  std::mt19937_64 random(1);
  std::map<std::byte*, std::pair<std::size_t, unsigned char>> live;
  for (int round = 0; round < 20000; ++round) {
    if (live.size() < 200 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (random() % 20));
      auto* p = static_cast<std::byte*>(arena.allocate(bytes));
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(p) % Arena::kAlignment, 0u);
      const auto after = live.upper_bound(p);
      if (after != live.end()) {
        ASSERT_LE(p + bytes, after->first);
      }
      if (after != live.begin()) {
        ASSERT_LE(std::prev(after)->first + std::prev(after)->second.first, p);
      }
      const auto mark = static_cast<unsigned char>(random());
      std::memset(p, mark, bytes);
      live[p] = {bytes, mark};
    } else if (!live.empty()) {
      auto at = std::next(live.begin(), static_cast<long>(random() % live.size()));
      for (std::size_t i : {std::size_t{0}, at->second.first / 2, at->second.first - 1})
        ASSERT_EQ(static_cast<unsigned char>(at->first[i]), at->second.second);
      arena.free(at->first);
      live.erase(at);
    }
  }
  for (const auto& [p, _] : live) arena.free(p);
  EXPECT_EQ(arena.ledger().total.in_use, 0u);
}

// Three ranks share 96 MiB: each counts 32, whichever allocates.
TEST(Arena, WhatIsSharedCountsInParts) {
  Arena owner(small(64 << 20));
  Arena other(small(64 << 20));
  constexpr std::size_t kPart = 32 << 20;
  void* shared = owner.allocate(3 * kPart, 3);
  EXPECT_EQ(owner.ledger().total.in_use, kPart);
  {
    const ScopedCategory category(MemoryCategory::kParameters);
    other.charge(kPart);
  }
  EXPECT_EQ(other.ledger().total.in_use, kPart);
  EXPECT_EQ(other.ledger().categories[static_cast<int>(MemoryCategory::kParameters)].in_use, kPart);
  for (Arena* arena : {&owner, &other})
    EXPECT_THROW(arena->allocate(33 << 20), Error) << "the part counts towards the limit";
  EXPECT_THROW(other.charge(33 << 20), Error);
  owner.free(shared);
  other.discharge(kPart, MemoryCategory::kParameters);
  EXPECT_EQ(owner.ledger().total.in_use, 0u);
  EXPECT_EQ(owner.ledger().rounding, 0u);
  EXPECT_EQ(owner.ledger().held, 3 * kPart);
  EXPECT_EQ(other.ledger().total.in_use, 0u);
}

TEST(Arena, AtMostAnEighthIsWasted) {
  Arena arena(small(std::size_t{1} << 31));
  for (std::size_t bytes = 512; bytes < (64 << 20); bytes = bytes * 17 / 16 + 1) {
    void* p = arena.allocate(bytes);
    EXPECT_GE(arena.ledger().total.in_use, bytes);
    EXPECT_LT(arena.ledger().total.in_use, bytes + 64);
    EXPECT_LE(arena.ledger().rounding, bytes / 8 + 64);
    arena.free(p);
    EXPECT_EQ(arena.ledger().rounding, 0u);
  }
}

TEST(Arena, ReusesWhatWasFreed) {
  Arena arena(small(64 << 20));
  void* first = arena.allocate(1 << 20);
  arena.free(first);
  EXPECT_EQ(arena.allocate((1 << 20) - 100), first);
}

TEST(Arena, TheLimitIsAnErrorWithABreakdown) {
  Arena arena(small(16 << 20));
  const ScopedCategory tag(MemoryCategory::kGradients);
  void* first = arena.allocate(12 << 20);
  try {
    arena.allocate(8 << 20);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(error.what()).find("gradients 12.0 MiB"), std::string::npos)
        << error.what();
  }
  arena.free(first);
  // Free blocks of another size give their pages back before the limit is an error.
  EXPECT_NE(arena.allocate(15 << 20), nullptr);
  EXPECT_EQ(arena.ledger().held, 0u);
}

TEST(Arena, CountsByCategoryAndRemembersPeaks) {
  Arena arena(small(64 << 20));
  void* a = nullptr;
  {
    const ScopedCategory tag(MemoryCategory::kParameters);
    a = arena.allocate(1 << 20);
  }
  void* b = arena.allocate(1 << 20);
  arena.free(b);
  const Ledger ledger = arena.ledger();
  EXPECT_EQ(ledger.categories[static_cast<int>(MemoryCategory::kParameters)].in_use, 1u << 20);
  EXPECT_EQ(ledger.categories[static_cast<int>(MemoryCategory::kTemporary)].in_use, 0u);
  EXPECT_EQ(ledger.total.peak, 2u << 20);
  std::size_t at_peak = 0;
  for (const Usage& usage : ledger.categories) at_peak += usage.at_peak;
  EXPECT_EQ(at_peak, ledger.total.peak);
  arena.free(a);
}

TEST(Arena, PeaksBeginAnewWhenTheyAreReset) {
  Arena arena(small(64 << 20));
  const auto gradients = [&] {
    return arena.ledger().categories[static_cast<int>(MemoryCategory::kGradients)];
  };
  const ScopedCategory tag(MemoryCategory::kGradients);
  void* kept = arena.allocate(1 << 20);
  arena.free(arena.allocate(4 << 20));
  EXPECT_EQ(arena.ledger().total.peak, 5u << 20);
  EXPECT_EQ(gradients().peak, 5u << 20);
  arena.reset_peaks();
  EXPECT_EQ(arena.ledger().total.peak, 1u << 20);
  EXPECT_EQ(gradients().peak, 1u << 20);
  EXPECT_EQ(gradients().at_peak, 1u << 20);
  arena.free(arena.allocate(2 << 20));
  EXPECT_EQ(arena.ledger().total.peak, 3u << 20);
  EXPECT_EQ(gradients().at_peak, 3u << 20);
  arena.free(kept);
}

TEST(Arena, TheWholeLimitMayBeUsedAndNotAByteMore) {
  Arena arena(small(4 << 20));
  void* all = arena.allocate(4 << 20);
  EXPECT_THROW(arena.allocate(1), Error);
  arena.free(all);
  arena.charge(4 << 20);
  EXPECT_THROW(arena.charge(64), Error);
  arena.discharge(4 << 20, MemoryCategory::kTemporary);
  EXPECT_EQ(arena.allocate(4 << 20), all);
}

// What is free here takes pages of the same machine.
TEST(Arena, AChargeGivesThePagesOfFreeBlocksBack) {
  Arena arena(small(8 << 20));
  arena.free(arena.allocate(6 << 20));
  arena.charge(2 << 20);
  EXPECT_EQ(arena.ledger().held, 6u << 20) << "both fit";
  arena.charge(1 << 20);
  EXPECT_EQ(arena.ledger().held, 0u);
}

// Peers that read the block count themselves.
TEST(Arena, ABlockThatIsHeldIsFreedByALaterAllocation) {
  Arena arena(small(64 << 20));
  std::atomic<int> holders = 2;
  void* block = arena.allocate(1 << 20);
  arena.free_when_unheld(block, &holders);
  void* other = arena.allocate(1 << 20);
  EXPECT_NE(other, block);
  holders = 1;
  arena.free(arena.allocate(64));
  EXPECT_EQ(arena.ledger().total.in_use, 2u << 20);
  holders = 0;
  EXPECT_EQ(arena.allocate(1 << 20), block);
  arena.free(block);
  arena.free(arena.allocate(64));
  EXPECT_EQ(arena.ledger().total.in_use, 1u << 20) << "and is freed once";
  arena.free(other);
}

TEST(Arena, FreedBlocksAreFilledWhereThatIsAskedFor) {
  Arena arena(small(64 << 20));
  auto* block = static_cast<unsigned char*>(arena.allocate(1000));
  std::memset(block, 1, 1000);
  arena.free(block);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(block[i], 0xcb) << i;
  Arena plain({.virtual_bytes = 1 << 26, .limit_bytes = 1 << 20});
  block = static_cast<unsigned char*>(plain.allocate(1000));
  std::memset(block, 1, 1000);
  plain.free(block);
  EXPECT_EQ(block[999], 1);
}

TEST(Arena, KnowsWhichRangesItHolds) {
  Arena arena({.virtual_bytes = 1 << 20, .limit_bytes = 1 << 20});
  const std::byte* begin = arena.segment().data();
  EXPECT_TRUE(arena.contains(begin, 1 << 20));
  EXPECT_FALSE(arena.contains(begin, (1 << 20) + 1));
  EXPECT_TRUE(arena.contains(begin + (1 << 20) - 1));
  EXPECT_FALSE(arena.contains(begin + (1 << 20) - 1, 2));
  EXPECT_FALSE(arena.contains(begin + (1 << 20)));
  EXPECT_FALSE(arena.contains(begin - 1));
  EXPECT_EQ(arena.offset(begin + 77), 77u);
}

TEST(Arena, AddressesThatAreUsedUpAreAnError) {
  Arena arena({.virtual_bytes = 1 << 20, .limit_bytes = 1 << 30});
  void* most = arena.allocate(900 << 10);
  try {
    arena.allocate(200 << 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(error.what()).find("addresses are used up"), std::string::npos);
  }
  EXPECT_THROW(arena.allocate((1 << 20) + 1), Error) << "more than there is";
  arena.free(most);
  EXPECT_EQ(arena.allocate(900 << 10), most);
}

TEST(Arena, ByDefaultTheSegmentIsFourTimesTheMemory) {
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t most = std::size_t{512} << 30;
  EXPECT_EQ(Arena({.limit_bytes = 1 << 20}).segment().bytes(), std::min(4 * memory, most));
  const Arena::Options defaults;
  EXPECT_EQ(defaults.ranks_on_host, 1);
  EXPECT_FALSE(defaults.poison);
}

TEST(Ledger, SaysWhereTheMemoryIs) {
  Ledger ledger;
  ledger.categories[static_cast<int>(MemoryCategory::kParameters)].in_use = 3 << 20;
  ledger.categories[static_cast<int>(MemoryCategory::kCommunication)].in_use = 1 << 19;
  ledger.total.in_use = 7 << 19;
  ledger.limit = 8 << 20;
  ledger.held = 1 << 20;
  ledger.rounding = 1 << 18;
  EXPECT_EQ(ledger.text(),
            "parameters 3.0 MiB, communication 0.5 MiB, 3.5 MiB in all of a limit of 8.0 MiB (1.0 "
            "MiB more is held free, 0.2 MiB lost to rounding)");
}

TEST(Arena, ABlockMovesFromOneCategoryToAnother) {
  Arena arena(small(64 << 20));
  void* block = arena.allocate(1000);
  const auto in_use = [&](MemoryCategory category) {
    return arena.ledger().categories[static_cast<int>(category)].in_use;
  };
  arena.retag(block, MemoryCategory::kGradients, MemoryCategory::kActivations);
  EXPECT_EQ(in_use(MemoryCategory::kTemporary), 1024u) << "it was no gradient";
  arena.retag(block, MemoryCategory::kTemporary, MemoryCategory::kActivations);
  EXPECT_EQ(in_use(MemoryCategory::kTemporary), 0u);
  EXPECT_EQ(in_use(MemoryCategory::kActivations), 1024u);
  EXPECT_EQ(arena.ledger().total.in_use, 1024u);
  arena.free(block);
  EXPECT_EQ(in_use(MemoryCategory::kActivations), 0u);
}

TEST(Arena, FreeingTwiceIsCaught) {
  Arena arena(small(64 << 20));
  void* p = arena.allocate(100);
  arena.free(p);
  EXPECT_THROW(arena.free(p), Error);
}

TEST(Arena, ForeignPointersAndNullGoToTheCLibrary) {
  Arena arena(small(64 << 20));
  arena.free(nullptr);
  arena.free(std::malloc(10));
}

TEST(Arena, ThreadsAllocateAndFreeAtOnce) {
  Arena arena(small(512 << 20));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      std::mt19937 random(t);
      std::vector<std::pair<unsigned char*, std::size_t>> mine;
      for (int i = 0; i < 5000; ++i) {
        if (mine.size() < 20) {
          const std::size_t bytes = 1 + random() % 100000;
          auto* p = static_cast<unsigned char*>(arena.allocate(bytes));
          p[0] = p[bytes - 1] = static_cast<unsigned char>(t);
          mine.push_back({p, bytes});
        } else {
          const auto [p, bytes] = mine[random() % mine.size()];
          ASSERT_EQ(p[0], t);
          ASSERT_EQ(p[bytes - 1], t);
          std::erase(mine, std::pair{p, bytes});
          arena.free(p);
        }
      }
      for (const auto& [p, _] : mine) arena.free(p);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(arena.ledger().total.in_use, 0u);
}

TEST(Arena, AForkedChildLivesOnItsOwnMemory) {
  Arena arena(small(64 << 20));
  auto* inherited = static_cast<int*>(arena.allocate(4096));
  inherited[0] = 1;
  const pid_t child = fork();
  if (child == 0) {
    arena.enter_child();
    inherited[0] = 2;       // private now
    arena.free(inherited);  // ignored
    void* own = arena.allocate(1000);
    const bool apart = !arena.contains(own);
    arena.free(own);
    _exit(apart ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(inherited[0], 1);
  arena.free(inherited);
}

TEST(Arena, AnotherProcessSeesABlockByItsOffset) {
  Arena arena(small(64 << 20));
  auto* block = static_cast<int*>(arena.allocate(4096));
  block[5] = 42;
  const pid_t child = fork();
  if (child == 0) {
    const SharedSegment view = SharedSegment::adopt(dup(arena.segment().fd()));
    auto* seen = reinterpret_cast<int*>(view.data() + arena.offset(block));
    const bool same = seen[5] == 42;
    seen[6] = 43;
    _exit(same ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(block[6], 43);
}

}  // namespace
}  // namespace shoal::wire::arena_test
