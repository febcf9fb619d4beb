// What ranks lend each other: read where it lies, kept until the last has given it back.
#include "shoal/collective/shared_memory/host_loans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/collective/host_ranks.h"

namespace shoal::collective::host_loans_test {
namespace {

using std::chrono::milliseconds;
using Numbers = std::vector<std::uint32_t>;

void barrier(Communicator& c) { c.wait(c.start({.kind = Kind::kBarrier})); }

std::shared_ptr<Loan> lend(Communicator& c, const Numbers& own, std::uint32_t tag = 0) {
  return c.shared_memory()->lend(own.data(), own.size() * sizeof(own[0]), tag);
}

Numbers read(const Loan& loan, int rank) {
  const auto bytes = loan.part(rank);
  Numbers numbers(bytes.size() / sizeof(std::uint32_t));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

/// What `rank` lends in a round: of a length of its own.
Numbers numbers_of(int rank, int round) {
  Numbers numbers(static_cast<std::size_t>(100 * rank + round % 7 + 1));
  std::iota(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(1000 * rank + round));
  return numbers;
}

TEST(HostLoans, PartsAreReadWhereTheyLie) {
  const std::vector<Numbers> all{numbers_of(0, 0), numbers_of(1, 0), numbers_of(2, 0)};
  on_threads(3, [&](HostCommunicator& c, int rank) {
    const auto loan = lend(c, all[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(loan);
    for (int r = 0; r < 3; ++r) {
      const Numbers& lent = all[static_cast<std::size_t>(r)];
      EXPECT_EQ(read(*loan, r), lent);
      EXPECT_EQ(static_cast<const void*>(loan->part(r).data()), lent.data()) << "no copy";
    }
    // No bytes are a part, too, wherever they would lie.
    const Numbers& some = all[static_cast<std::size_t>(rank)];
    const std::size_t bytes = rank == 1 ? 0 : some.size() * sizeof(some[0]);
    const auto with_none = c.shared_memory()->lend(rank == 1 ? nullptr : some.data(), bytes, 0);
    ASSERT_TRUE(with_none);
    EXPECT_EQ(with_none->part(1).size(), 0u);
    EXPECT_EQ(read(*with_none, 2), all[2]);
  });
}

TEST(HostLoans, EndWhenTheLastRankHasGivenBack) {
  on_threads(3, [](HostCommunicator& c, int rank) {
    const Numbers own = numbers_of(rank, 0);
    for (int last = 0; last < 3; ++last) {
      const auto loan = lend(c, own);
      for (int i = 1; i <= 3; ++i) {
        if (rank == (last + i) % 3) {
          loan->give_back();
          loan->give_back();  // counts once
        }
        barrier(c);
        EXPECT_EQ(loan->ended(), i == 3) << "rank " << rank << ", " << i << " gave back";
        barrier(c);
      }
    }
  });
}

// Owners write to what has ended while peers still read what has not: ThreadSanitizer sees whether
// giving back orders the two. Loans end in another order than they began, with other collectives
// between them.
TEST(HostLoans, OwnersWriteAgainOnceTheirLoanHasEnded) {
  constexpr int kRounds = 200;
  on_threads(3, [](HostCommunicator& c, int rank) {
    struct Lending {
      Numbers own;
      std::shared_ptr<Loan> loan;
      int round = 0;
    };
    std::vector<Lending> open(5);
    for (int round = 0; round < kRounds; ++round) {
      Lending& next = open[static_cast<std::size_t>(round * 3 % 5)];
      if (next.loan) {
        for (int r = 0; r < 3; ++r) ASSERT_EQ(read(*next.loan, r), numbers_of(r, next.round));
        next.loan->give_back();
        while (!next.loan->ended()) c.poll(Duration::zero()), std::this_thread::yield();
        std::fill(next.own.begin(), next.own.end(), 0);
      }
      next.own = numbers_of(rank, round);
      next.round = round;
      next.loan = lend(c, next.own);
      ASSERT_TRUE(next.loan);
      std::uint32_t sum = 1;
      if (round % 4 == 0) {
        c.wait(c.start(
            {.kind = Kind::kAllReduce, .type = ElementType::kU32, .buffer = {&sum, &sum, 1}}));
        EXPECT_EQ(sum, 3u);
      }
    }
    for (Lending& lending : open) lending.loan->give_back();
    barrier(c);  // memory outlives the reading of others
  });
}

TEST(HostLoans, AFullTableIsFullForAll) {
  on_threads(3, [](HostCommunicator& c, int rank) {
    const Numbers own = numbers_of(rank, 0);
    std::vector<std::shared_ptr<Loan>> all;
    for (std::size_t i = 0; i < kLoans; ++i) ASSERT_TRUE(all.emplace_back(lend(c, own)));
    EXPECT_FALSE(lend(c, own));
    // Where some have given back and others have not, nobody gets a slot.
    if (rank != 1) all[5]->give_back();
    barrier(c);
    EXPECT_FALSE(lend(c, own));
    if (rank == 1) all[5]->give_back();
    barrier(c);
    const auto again = lend(c, own);
    ASSERT_TRUE(again);
    EXPECT_FALSE(again->ended());
    EXPECT_FALSE(lend(c, own));
    // What ended lay in the same slot, and says nothing about what is there now.
    again->give_back();
    all[5].reset();
    barrier(c);
    EXPECT_TRUE(again->ended());
    EXPECT_TRUE(lend(c, own));
    barrier(c);
  });
}

TEST(HostLoans, WhatOneCannotLendNobodyLends) {
  on_threads(3, [](HostCommunicator& c, int rank) {
    const Numbers own = numbers_of(rank, 0);
    for (int unable = 0; unable < 3; ++unable) {
      EXPECT_FALSE(c.shared_memory()->lend(rank == unable ? nullptr : own.data(), 4, 0));
      EXPECT_TRUE(lend(c, own)) << "ranks are still in step";
      barrier(c);
    }
  });
}

TEST(HostLoans, OtherTagsAreAMismatch) {
  on_threads(2, [](HostCommunicator& c, int rank) {
    const Numbers own = numbers_of(rank, 0);
    try {
      lend(c, own, static_cast<std::uint32_t>(rank));
      ADD_FAILURE() << "no error on rank " << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    }
  });
}

TEST(HostLoans, GroupsHaveTablesOfTheirOwn) {
  on_threads(4, [](HostCommunicator& c, int rank) {
    const auto part = c.split(rank % 2, rank);
    const Numbers own = numbers_of(rank, 0);
    const auto of_all = lend(c, own);
    const auto of_part = lend(*part, own);
    EXPECT_EQ(read(*of_part, 1), numbers_of(2 + rank % 2, 0));
    of_part->give_back();
    barrier(c);
    EXPECT_TRUE(of_part->ended());
    EXPECT_FALSE(of_all->ended());
    barrier(c);
  });
}

// After an abort nothing is lent any more, nobody waits, and what was lent stays until it is given
// back.
TEST(HostLoans, AnAbortEndsNoLoan) {
  std::atomic<bool> reads{true};
  on_threads(2, [&](HostCommunicator& c, int rank) {
    const Numbers own = numbers_of(rank, 0);
    const auto loan = lend(c, own);
    if (rank == 0) {
      c.abort(Error(ErrorKind::kNonFinite, "step", "the loss is nan"));
      loan->give_back();
    }
    try {
      lend(c, own);
      ADD_FAILURE() << "lent after an abort";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNonFinite);
    }
    if (rank == 0) {
      std::this_thread::sleep_for(milliseconds(20));
      EXPECT_FALSE(loan->ended());
      reads = false;
      while (!loan->ended()) std::this_thread::yield();
    } else {
      while (reads) std::this_thread::yield();
      EXPECT_EQ(read(*loan, 0), numbers_of(0, 0));
      loan->give_back();
    }
  });
}

TEST(HostLoans, ARankThatHasLeftReadsNothing) {
  on_threads(2, [](HostCommunicator& c, int rank) {
    const Numbers own = numbers_of(rank, 0);
    const auto loan = lend(c, own);
    if (rank == 0) {
      c.world().leave();
      while (!loan->ended()) std::this_thread::yield();
    } else {
      loan->give_back();
      while (!loan->ended()) std::this_thread::yield();
    }
  });
}

/// What a process has in its arena: `count` numbers.
const std::uint32_t* in_arena(wire::Arena& arena, int rank, std::size_t count) {
  auto* numbers = static_cast<std::uint32_t*>(arena.allocate(count * sizeof(std::uint32_t)));
  std::iota(numbers, numbers + count, static_cast<std::uint32_t>(1000 * rank));
  return numbers;
}

TEST(HostLoans, ProcessesReadEachOthersArenas) {
  const auto codes = on_processes(3, [](HostCommunicator& c, wire::Arena& arena, int rank) {
    const std::size_t count = 5000 + 100 * static_cast<std::size_t>(rank);
    const std::uint32_t* own = in_arena(arena, rank, count);
    const auto loan = c.shared_memory()->lend(own, 4 * count, 0);
    for (int r = 0; r < 3; ++r) {
      const Numbers found = read(*loan, r);
      if (found.size() != 5000 + 100 * static_cast<std::size_t>(r)) return 1;
      if (found.front() != 1000u * static_cast<unsigned>(r)) return 2;
      if (found.back() != 1000u * static_cast<unsigned>(r) + found.size() - 1) return 3;
    }
    // Memory of one rank that others cannot find.
    const Numbers hidden(10);
    if (c.shared_memory()->lend(rank == 1 ? hidden.data() : own, 40, 0)) return 4;
    barrier(c);
    return loan->ended() ? 5 : 0;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

// The second of three is killed while it reads, and while others read its part: they read on, and
// get their own memory back once its end is known.
TEST(HostLoans, AKilledProcessKeepsNothing) {
  const auto codes = on_processes(3, [](HostCommunicator& c, wire::Arena& arena, int rank) {
    const std::uint32_t* own = in_arena(arena, rank, 5000);
    const auto loan = c.shared_memory()->lend(own, 20'000, 0);
    if (rank == 1) kill(getpid(), SIGKILL);
    try {
      barrier(c);
      return 1;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kPeerLost) return 2;
    }
    if (read(*loan, 1).back() != 5999) return 3;
    if (loan->ended()) return 4;
    loan->give_back();
    const Deadline end = Deadline::in(std::chrono::seconds(10));
    while (!loan->ended())
      if (end.passed()) return 5;
    return 0;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace shoal::collective::host_loans_test
