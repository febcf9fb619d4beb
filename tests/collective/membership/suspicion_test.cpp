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
  Suspicion suspicion(id_of(1), seconds(2), seconds(1));
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

TEST(Suspicion, WhoIsAbsentIsAccusedSooner) {
  Suspicion suspicion = heard_all_but(5, {});
  suspicion.absent(id_of(4));
  suspicion.absent(id_of(9));  // of no member
  EXPECT_TRUE(suspicion.accusing(at(11)).empty());
  EXPECT_EQ(suspicion.accusing(at(12)), std::vector{id_of(4)});
  EXPECT_TRUE(suspicion.accuses(id_of(4), at(12)));
  // It has another way to this member, or has come back: what was said before counts no more.
  suspicion.heard(id_of(4), at(12));
  EXPECT_TRUE(suspicion.accusing(at(12)).empty());
  EXPECT_FALSE(suspicion.accuses(id_of(4), at(14)));
  EXPECT_TRUE(suspicion.accuses(id_of(4), at(15)));
  suspicion.absent(id_of(4));
  suspicion.begin(first_view(5), at(20));
  EXPECT_FALSE(suspicion.accuses(id_of(4), at(22)));
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

TEST(Suspicion, WhoHearsNobodyIsLeftAlone) {
  EXPECT_EQ(heard_all_but(3, {2, 3}).gone(at(10)), (std::set{id_of(2), id_of(3)}));
  // That others hear one that this member does not hear is an edge.
  EXPECT_TRUE(heard_all_but(3, {2}).gone(at(10)).empty());
}

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

// Each of the members 2 and 3 has two accusers, who hear nobody.
TEST(Suspicion, SeveralThatHearNobodyAreGoneAndAccuseInVain) {
  Suspicion suspicion = heard_all_but(5, {});
  suspicion.accused(id_of(4), {id_of(1), id_of(2), id_of(3), id_of(5)});
  suspicion.accused(id_of(5), {id_of(1), id_of(2), id_of(3), id_of(4)});
  EXPECT_EQ(suspicion.gone(at(10)), (std::set{id_of(4), id_of(5)}));
  // Who hears no majority itself believes those that it hears.
  Suspicion of_minority = heard_all_but(5, {2, 3, 4});
  of_minority.accused(id_of(5), {id_of(2), id_of(3), id_of(4)});
  EXPECT_EQ(of_minority.gone(at(10)), (std::set{id_of(2), id_of(3), id_of(4)}));
}

TEST(Suspicion, StrangersAccuseNobody) {
  Suspicion suspicion = heard_all_but(5, {4});
  suspicion.accused(id_of(77), {id_of(4)});
  EXPECT_TRUE(suspicion.gone(at(10)).empty());
  suspicion.accused(id_of(2), {id_of(78), id_of(79)});
  EXPECT_TRUE(suspicion.gone(at(10)).empty());
}

std::set<MemberId> ids_of(std::uint64_t first, std::uint64_t last) {
  std::set<MemberId> ids;
  for (std::uint64_t i = first; i <= last; ++i) ids.insert(id_of(i));
  return ids;
}

std::set<MemberId> set_of(const std::vector<MemberId>& ids) { return {ids.begin(), ids.end()}; }

// Of 160 members the keepers 1 to 5 watch all; the others watch the keepers and 63 successors.
TEST(Suspicion, InALargeGroupNotAllWatchAll) {
  Suspicion of_keeper(id_of(1), seconds(2), seconds(1));
  of_keeper.begin(first_view(160), at(0));
  EXPECT_EQ(of_keeper.watchers().size(), 159u);
  EXPECT_EQ(of_keeper.accusing(at(10)).size(), 159u);
  Suspicion of_another(id_of(80), seconds(2), seconds(1));
  of_another.begin(first_view(160), at(0));
  std::set<MemberId> watchers = ids_of(17, 79);
  watchers.merge(ids_of(1, 5));
  EXPECT_EQ(set_of(of_another.watchers()), watchers);
  std::set<MemberId> watched = ids_of(81, 143);
  watched.merge(ids_of(1, 5));
  EXPECT_EQ(set_of(of_another.accusing(at(10))), watched);
}

// So no connection of theirs breaks unseen.
TEST(Suspicion, SixtyFourMembersAllWatchAll) {
  Suspicion suspicion(id_of(33), seconds(2), seconds(1));
  suspicion.begin(first_view(64), at(0));
  EXPECT_EQ(suspicion.watchers().size(), 63u);
  EXPECT_EQ(suspicion.accusing(at(10)).size(), 63u);
}

TEST(Suspicion, APairIsBrokenWhereOneDoesNotHearTheOther) {
  Suspicion suspicion = heard_all_but(5, {4});
  suspicion.accused(id_of(5), {id_of(2)});
  EXPECT_EQ(suspicion.broken_pairs(at(10)),
            (std::set{Suspicion::Pair(id_of(1), id_of(4)), Suspicion::Pair(id_of(2), id_of(5))}));
}

}  // namespace
}  // namespace shoal::collective::suspicion_test
