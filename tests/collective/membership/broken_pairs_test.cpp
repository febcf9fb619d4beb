// Which of two members goes that have not heard each other for long, and when neither does.
#include "shoal/collective/membership/broken_pairs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tests/collective/membership/some_members.h"

namespace shoal::collective::broken_pairs_test {
namespace {

using namespace membership;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kBeat = milliseconds(500);
constexpr Duration kPatience = seconds(4);

/// What member 1 makes of what the others say, second by second.
class Watching {
 public:
  explicit Watching(const View& view) : view_(view), suspicion_(id_of(1), seconds(2), seconds(1)) {
    begin();
  }

  void begin() {
    suspicion_.begin(view_, now_);
    pairs_.begin(view_, now_);
  }
  /// `by` accuses these from now on.
  void accuse(std::uint64_t by, const std::vector<std::uint64_t>& of) {
    std::vector<MemberId> ids;
    for (const std::uint64_t number : of) ids.push_back(id_of(number));
    suspicion_.accused(id_of(by), ids);
  }
  void run(Duration duration, const std::set<std::uint64_t>& silent = {}) {
    for (const auto end = now_ + duration; now_ < end;) {
      now_ += milliseconds(100);
      for (std::uint64_t i = 2; i <= view_.everybody().size(); ++i)
        if (!silent.contains(i)) suspicion_.heard(id_of(i), now_);
      pairs_.watch(view_, suspicion_, now_);
    }
  }
  void stand_still(Duration duration) { now_ += duration; }
  void commit() { pairs_.forget(); }
  std::set<MemberId> removed() const {
    return pairs_.to_remove(view_, suspicion_.gone(now_), kPatience);
  }
  const BrokenPairs& pairs() const { return pairs_; }

 private:
  View view_;
  Clock::time_point now_{seconds(100)};
  Suspicion suspicion_;
  BrokenPairs pairs_{kBeat, seconds(2)};
};

using Ids = std::set<MemberId>;

TEST(BrokenPairs, TheLaterOneOfAPairGoesWhenItHasLasted) {
  Watching watching(first_view(5));
  watching.run(seconds(3));
  watching.accuse(2, {4});
  watching.run(milliseconds(3900));
  EXPECT_EQ(watching.removed(), Ids{});
  watching.run(milliseconds(300));
  EXPECT_EQ(watching.removed(), Ids{id_of(4)});
  EXPECT_EQ(watching.pairs().apart_from(id_of(4), seconds(2)), std::vector{id_of(2)});
  EXPECT_TRUE(watching.pairs().apart_from(id_of(3), seconds(2)).empty());
  // Just before it would be removed they hear each other again.
  watching.accuse(2, {});
  watching.run(milliseconds(100));
  EXPECT_EQ(watching.removed(), Ids{});
  watching.accuse(4, {2});
  watching.run(seconds(3));
  EXPECT_EQ(watching.removed(), Ids{});
}

TEST(BrokenPairs, TheOwnerStaysWhicheverOfTheTwoIsNotHeard) {
  Watching hears_not(first_view(4));
  hears_not.run(seconds(7), {3});
  EXPECT_EQ(hears_not.removed(), Ids{id_of(3)});
  Watching is_not_heard(first_view(4));
  is_not_heard.accuse(3, {1});
  is_not_heard.run(seconds(7));
  EXPECT_EQ(is_not_heard.removed(), Ids{id_of(3)});
}

TEST(BrokenPairs, WhoLacksMoreConnectionsGoes) {
  // Member 2 does not hear member 4, and is not heard by member 5: neither accuses it twice.
  Watching watching(first_view(5));
  watching.accuse(2, {4});
  watching.run(seconds(2));
  watching.accuse(5, {2});
  watching.run(milliseconds(2200));
  EXPECT_EQ(watching.removed(), Ids{id_of(2)});
}

// Whoever has joined knows nothing yet. Witnesses could decide without member 1, which lacks two
// connections.
TEST(BrokenPairs, WhoAloneHasTheStateStays) {
  View view = first_view(4, 2);
  view.fresh = 3;
  view.keepers = {id_of(1), id_of(5), id_of(6)};
  Watching watching(view);
  watching.run(seconds(7), {2, 3});
  EXPECT_EQ(watching.removed(), (Ids{id_of(2), id_of(3)}));
}

TEST(BrokenPairs, TheOnlyKeeperStays) {
  View view = first_view(5);
  view.fresh = 3;
  view.keepers = {id_of(1)};
  Watching watching(view);
  watching.run(seconds(7), {3, 4});
  EXPECT_EQ(watching.removed(), (Ids{id_of(3), id_of(4)}));
}

TEST(BrokenPairs, OfTwoPairsTwoGo) {
  Watching watching(first_view(5));
  watching.accuse(2, {3});
  watching.accuse(5, {4});
  watching.run(seconds(5));
  EXPECT_EQ(watching.removed(), (Ids{id_of(3), id_of(5)}));
}

TEST(BrokenPairs, WhereACommitNeedsAllOfThemAPairIsConnected) {
  Watching watching(first_view(4));
  watching.accuse(2, {3});
  for (int i = 0; i < 10; ++i) {
    watching.run(seconds(3));
    watching.commit();
    EXPECT_EQ(watching.removed(), Ids{});
  }
}

TEST(BrokenPairs, AWitnessComputesNothing) {
  Watching watching(first_view(3, 1));
  watching.accuse(2, {4});
  watching.run(seconds(10));
  EXPECT_EQ(watching.removed(), Ids{});
}

TEST(BrokenPairs, WhoIsGoneAnywayTakesItsPairsAlong) {
  Watching watching(first_view(5));
  watching.accuse(2, {5});
  watching.accuse(3, {5});
  watching.run(seconds(5));
  EXPECT_EQ(watching.removed(), Ids{});
}

// A view of the same members follows an attempt that failed, and accuses nobody for two seconds.
TEST(BrokenPairs, AViewOfTheSameMembersHidesNoPair) {
  Watching watching(first_view(4));
  for (int view = 0; view < 2; ++view) {
    watching.begin();
    watching.run(seconds(2));
    watching.accuse(2, {3});
    watching.run(seconds(1));
    EXPECT_EQ(watching.removed(), Ids{}) << view;
  }
  watching.begin();
  watching.run(seconds(2));
  EXPECT_EQ(watching.removed(), Ids{}) << "as far as is known they hear each other";
  watching.accuse(2, {3});
  watching.run(milliseconds(200));
  EXPECT_EQ(watching.removed(), Ids{id_of(3)});
  // Where they do hear each other in the next one, it is forgotten.
  watching.begin();
  watching.run(seconds(4));
  watching.accuse(2, {3});
  watching.run(seconds(3));
  EXPECT_EQ(watching.removed(), Ids{});
}

TEST(BrokenPairs, WhoStoodStillHasNotWatched) {
  Watching watching(first_view(4));
  watching.accuse(2, {3});
  watching.run(seconds(1));
  watching.stand_still(seconds(30));
  watching.run(seconds(1));
  EXPECT_EQ(watching.removed(), Ids{});
  watching.run(milliseconds(2300));
  EXPECT_EQ(watching.removed(), Ids{id_of(3)});
}

}  // namespace
}  // namespace shoal::collective::broken_pairs_test
