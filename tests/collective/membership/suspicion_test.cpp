// Who is gone: silence, accusations of others, and the difference between an edge and a death.
#include "shoal/collective/membership/suspicion.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "tests/collective/membership/some_members.h"

namespace shoal::collective::suspicion_test {
namespace {

using namespace membership;
using std::chrono::seconds;

Clock::time_point at(int second) { return Clock::time_point(seconds(100 + second)); }

/// Member 1 of that many, which has heard everybody but `silent` at second 10.
Suspicion heard_all_but(std::uint64_t members, const std::set<std::uint64_t>& silent) {
  Suspicion suspicion(id_of(1), seconds(2));
  suspicion.begin(first_view(members), at(0));
  for (std::uint64_t i = 2; i <= members; ++i)
    if (!silent.contains(i)) suspicion.heard(id_of(i), at(10));
  return suspicion;
}

TEST(Suspicion, SilenceIsAccusedAfterAWhile) {
  const Suspicion suspicion = heard_all_but(5, {4});
  EXPECT_TRUE(suspicion.accusing(at(2)).empty());
  EXPECT_EQ(suspicion.accusing(at(10)), std::vector{id_of(4)});
  EXPECT_EQ(suspicion.accusing(at(13)).size(), 4u);
}

TEST(Suspicion, OneAccusationIsAnEdgeAndTwoAreADeath) {
  Suspicion suspicion = heard_all_but(5, {4});
  EXPECT_TRUE(suspicion.gone(at(10)).empty());
  EXPECT_TRUE(suspicion.is_edge_broken(id_of(1), id_of(4), at(10)));
  EXPECT_TRUE(suspicion.is_edge_broken(id_of(4), id_of(1), at(10)));
  EXPECT_FALSE(suspicion.is_edge_broken(id_of(1), id_of(3), at(10)));
  suspicion.accused(id_of(2), {id_of(4)});
  EXPECT_EQ(suspicion.gone(at(10)), std::set{id_of(4)});
  // It is heard again.
  suspicion.accused(id_of(2), {});
  EXPECT_TRUE(suspicion.gone(at(10)).empty());
}

TEST(Suspicion, OfTwoTheOtherOneIsGone) {
  EXPECT_EQ(heard_all_but(2, {2}).gone(at(10)), std::set{id_of(2)});
}

// Of three, one is gone by two accusations; then the other one is accused by all that are left.
TEST(Suspicion, WithEachDeathFewerMustAccuse) {
  Suspicion suspicion = heard_all_but(3, {2, 3});
  suspicion.accused(id_of(2), {id_of(3)});
  EXPECT_EQ(suspicion.gone(at(10)), (std::set{id_of(2), id_of(3)}));
}

TEST(Suspicion, WhoAccusesSeveralThatOthersHearIsGoneItself) {
  Suspicion suspicion = heard_all_but(5, {});
  suspicion.accused(id_of(3), {id_of(1), id_of(2), id_of(4)});
  EXPECT_EQ(suspicion.gone(at(10)), std::set{id_of(3)});
  // Two that hear nobody do not make a third one gone, nor this member in its own eyes.
  suspicion.accused(id_of(3), {id_of(1), id_of(2)});
  suspicion.accused(id_of(4), {id_of(1), id_of(5)});
  EXPECT_FALSE(suspicion.gone(at(10)).contains(id_of(1)));
}

TEST(Suspicion, StrangersAccuseNobody) {
  Suspicion suspicion = heard_all_but(5, {4});
  suspicion.accused(id_of(77), {id_of(4)});
  EXPECT_TRUE(suspicion.gone(at(10)).empty());
  suspicion.accused(id_of(2), {id_of(78), id_of(79)});
  EXPECT_TRUE(suspicion.gone(at(10)).empty());
}

// Of 20 members the keepers 1 to 5 watch all; the others watch the keepers and four successors.
TEST(Suspicion, NotAllWatchAll) {
  Suspicion of_keeper(id_of(1), seconds(2));
  of_keeper.begin(first_view(20), at(0));
  EXPECT_EQ(of_keeper.watchers().size(), 19u);
  EXPECT_EQ(of_keeper.accusing(at(10)).size(), 19u);
  Suspicion of_another(id_of(10), seconds(2));
  of_another.begin(first_view(20), at(0));
  const std::set<MemberId> watchers(of_another.watchers().begin(), of_another.watchers().end());
  EXPECT_EQ(watchers, (std::set{id_of(1), id_of(2), id_of(3), id_of(4), id_of(5), id_of(6),
                                id_of(7), id_of(8), id_of(9)}));
  const auto accused = of_another.accusing(at(10));
  EXPECT_EQ(std::set<MemberId>(accused.begin(), accused.end()),
            (std::set{id_of(1), id_of(2), id_of(3), id_of(4), id_of(5), id_of(11), id_of(12),
                      id_of(13), id_of(14)}));
}

}  // namespace
}  // namespace shoal::collective::suspicion_test
