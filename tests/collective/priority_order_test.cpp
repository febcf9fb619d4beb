#include "shoal/collective/shared_memory/priority_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace shoal::collective::priority_order_test {
namespace {

/// A queue with operations of given priorities, all of them published.
struct Operations {
  explicit Operations(const std::vector<int>& priorities) {
    for (const int priority : priorities) add(priority);
  }
  void add(int priority) {
    queue.start_next().reset({.kind = Kind::kAllReduce, .priority = priority}, 0, 2, Duration(1));
    order.note_started(priority);
    queue.publish_next();
    queue[queue.started()].path = TransferPath::kInline;
  }
  std::vector<std::uint64_t> candidates() const {
    const PriorityOrder::Candidates found = order.candidates();
    return {found.sequences.begin(),
            found.sequences.begin() + static_cast<std::ptrdiff_t>(found.count)};
  }
  std::vector<std::uint64_t> complete(const std::set<std::uint64_t>& held = {}) {
    std::vector<std::uint64_t> result;
    order.complete([&](std::uint64_t s) { return !held.contains(s); },
                   [&](std::uint64_t s) { result.push_back(s); });
    return result;
  }

  OperationQueue queue;
  PriorityOrder order{queue};
};

using Sequences = std::vector<std::uint64_t>;

TEST(PriorityOrder, IsMixedWhileOperationsOfSeveralPrioritiesAreInFlight) {
  const auto all = std::make_unique<Operations>(std::vector<int>{0, 0, 0});
  EXPECT_FALSE(all->order.mixed());
  all->add(1);
  EXPECT_TRUE(all->order.mixed());
  all->add(1);
  for (std::uint64_t s = 1; s <= 3; ++s) all->queue.mark_executed(s);
  EXPECT_EQ(all->complete(), (Sequences{1, 2, 3}));
  EXPECT_TRUE(all->order.mixed()) << "the first of the other priority is still in flight";
  all->queue.mark_executed(4);
  EXPECT_EQ(all->complete(), (Sequences{4}));
  EXPECT_FALSE(all->order.mixed()) << "what is left has one priority";
}

TEST(PriorityOrder, APriorityThatBeginsAloneIsNotMixed) {
  const auto all = std::make_unique<Operations>(std::vector<int>{});
  all->add(5);
  all->add(5);
  EXPECT_FALSE(all->order.mixed());
}

// An operation is a candidate when all before it that are not executed are less urgent.
TEST(PriorityOrder, CandidatesAreThoseThatOvertakeAllBeforeThem) {
  const auto all = std::make_unique<Operations>(std::vector<int>{1, 0, 2, 2, 1, 3});
  EXPECT_EQ(all->candidates(), (Sequences{1, 3, 6}));
  all->queue.mark_executed(3);
  EXPECT_EQ(all->candidates(), (Sequences{1, 4, 6})) << "the next of that priority follows";
  all->queue.mark_executed(1);
  EXPECT_EQ(all->candidates(), (Sequences{2, 4, 6}));

  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> priorities(1 + random() % kSlots);
    for (int& priority : priorities) priority = static_cast<int>(random() % 70);
    const auto some = std::make_unique<Operations>(priorities);
    std::vector<bool> executed(priorities.size());
    for (std::size_t i = random() % 60; i > 0; --i) {
      const std::size_t which = random() % priorities.size();
      if (!executed[which]) some->queue.mark_executed(which + 1);
      executed[which] = true;
    }
    Sequences expected;
    for (std::size_t s = 0; s < priorities.size(); ++s) {
      bool first = !executed[s];
      for (std::size_t t = 0; t < s; ++t)
        first = first && (executed[t] || priorities[t] < priorities[s]);
      if (first) expected.push_back(s + 1);
    }
    ASSERT_EQ(some->candidates(), expected) << "round " << round;
  }
}

// Executed operations complete in the order of the calls within a priority, and never behind an
// incomplete one that is as urgent or more. Those of the direct path wait for peers besides.
TEST(PriorityOrder, CompletesInOrderWithinAPriority) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> priorities(1 + random() % kSlots);
    for (int& priority : priorities) priority = static_cast<int>(random() % 4);
    const auto some = std::make_unique<Operations>(priorities);
    std::set<std::uint64_t> held;
    std::vector<bool> executed(priorities.size() + 1);
    for (std::uint64_t s = 1; s <= priorities.size(); ++s) {
      if (random() % 2 == 0) some->queue[s].path = TransferPath::kDirect;
      if (random() % 4 == 0) held.insert(s);
      executed[s] = random() % 8 != 0;
      if (executed[s]) some->queue.mark_executed(s);
    }
    Sequences expected;
    std::vector<bool> complete(priorities.size() + 1);
    for (std::uint64_t s = 1; s <= priorities.size(); ++s) {
      bool ready = executed[s];
      if (some->queue[s].path == TransferPath::kDirect && held.contains(s)) ready = false;
      for (std::uint64_t t = 1; t < s; ++t)
        ready = ready && (complete[t] || priorities[t - 1] < priorities[s - 1]);
      complete[s] = ready;
      if (ready) expected.push_back(s);
    }
    ASSERT_EQ(some->complete(held), expected) << "round " << round;
    for (std::uint64_t s = 1; s <= priorities.size(); ++s)
      ASSERT_EQ(some->queue.is_complete(s), complete[s]) << "round " << round;
    ASSERT_EQ(some->complete(held), Sequences{}) << "nothing completes twice";
  }
}

TEST(PriorityOrder, NamesTheOperationThatHoldsAnotherUp) {
  const auto all = std::make_unique<Operations>(std::vector<int>{0, 2, 1, 2});
  EXPECT_EQ(all->order.blocking(1), 1u);
  EXPECT_EQ(all->order.blocking(2), 2u) << "it overtakes the first, and waits for peers only";
  EXPECT_EQ(all->order.blocking(3), 2u);
  EXPECT_EQ(all->order.blocking(4), 2u);
  all->queue[2].complete = true;
  EXPECT_EQ(all->order.blocking(3), 3u);
  EXPECT_EQ(all->order.blocking(4), 4u) << "a less urgent one does not hold it up";

  all->queue[1].path = TransferPath::kStaged;
  all->queue[4].path = TransferPath::kStaged;
  EXPECT_EQ(all->order.blocking(4), 1u) << "staged operations keep the order of the calls";
  all->queue.mark_executed(1);
  EXPECT_EQ(all->order.blocking(4), 4u);

  all->queue.start_next().reset({.kind = Kind::kBarrier, .priority = 9}, 0, 2, Duration(1));
  EXPECT_EQ(all->order.blocking(5), 1u) << "what is not published waits for the oldest";
}

}  // namespace
}  // namespace shoal::collective::priority_order_test
