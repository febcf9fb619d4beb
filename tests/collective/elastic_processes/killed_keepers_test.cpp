// Each keeper of a group dies at each place of a step: the others go on, what they have committed
// is that of one process, and what the dead one has seen committed stays so.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/collective/elastic_processes/elastic_processes.h"

namespace shoal::collective::elastic::killed_keepers_test {
namespace {

/// Where a member dies, and whether step 30 may have been committed with it.
struct Place {
  const char* name;
  bool may_be_committed;
  bool is_committed;
};

/// Members of one group, by their places in it: all of the first three are keepers.
struct Group {
  std::string what;
  std::size_t dying = 0;
  std::vector<MemberProcess*> members;
};

class KilledKeepers : public ElasticProcesses {
 protected:
  static constexpr std::size_t kKeepers = 3;
  /// Up to 45 processes train beside each other: with shorter steps they fill the cores of the
  /// machine for as long as the last group waits for its turn.
  static constexpr const char* kPauseMs = "100";

  /// Begins a group of `size`, one of which dies at that place of step 30. They are started in the
  /// order in which they are to join.
  Group begin(const Place& place, std::size_t dying, std::size_t size) {
    Group group{place.name + std::string(" of keeper ") + std::to_string(dying), dying, {}};
    for (std::size_t i = 0; i < size; ++i) {
      std::vector<std::string> more = {"--members", std::to_string(i == 0 ? size : 1), "--pause-ms",
                                       kPauseMs};
      if (i == dying) more.insert(more.end(), {"--die-at", "30", "--die-in", place.name});
      group.members.push_back(&start(i == 0 ? nullptr : group.members[0], more));
      group.members.back()->address(soon());
    }
    return group;
  }
  static std::vector<MemberProcess*> without(std::vector<MemberProcess*> members,
                                             std::size_t place) {
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(place));
    return members;
  }
  /// Waits until the one has died and `left` train on, and ends them.
  static void expect_that_go_on(const Group& group, const std::vector<MemberProcess*>& left) {
    EXPECT_EQ(group.members[group.dying]->wait(soon()), -SIGKILL) << group.what;
    for (MemberProcess* member : left) EXPECT_TRUE(has_members(*member, left)) << group.what;
    for (MemberProcess* member : left) stop(*member);
    EXPECT_GT(replay_of({group.members.begin(), group.members.end()}), 31u) << group.what;
  }
  static void expect_step_30(const Group& group, const std::vector<MemberProcess*>& left,
                             const Place& place) {
    for (const MemberProcess* member : left) {
      for (const LineageStep& step : member->lineage()) {
        if (step.step == 29) {
          EXPECT_EQ(step.keepers, kKeepers) << group.what;
        }
        if (step.step != 30) continue;
        const bool with_it = step.members.size() == group.members.size();
        EXPECT_TRUE(with_it ? place.may_be_committed : !place.is_committed) << group.what;
      }
    }
  }
};

TEST_F(KilledKeepers, AtEachPlaceOfAStep) {
  const std::vector<Place> places = {{"forward", false, false},
                                     {"reduce", false, false},
                                     {"update", false, false},
                                     {"report", true, false},
                                     {"commit", true, true}};
  std::vector<std::pair<Group, Place>> groups;
  // Groups do not know of each other, and mostly wait.
  for (const Place& place : places) {
    for (std::size_t dying = 0; dying < kKeepers; ++dying)
      groups.emplace_back(begin(place, dying, kKeepers), place);
  }
  for (const auto& [group, place] : groups) {
    const auto left = without(group.members, group.dying);
    expect_that_go_on(group, left);
    expect_step_30(group, left, place);
  }
}

// One of four leaves, and a keeper dies when it has heard of the next view, in which it is.
TEST_F(KilledKeepers, WhenTheViewChanges) {
  std::vector<Group> groups;
  for (std::size_t dying = 0; dying < kKeepers; ++dying)
    groups.push_back(begin({"view", false, false}, dying, kKeepers + 1));
  for (Group& group : groups) {
    MemberProcess* const leaves = group.members.back();
    ASSERT_TRUE(wait_for(*leaves, [](const LineageStep& step) { return step.step > 30; }));
    stop(*leaves);
  }
  for (const Group& group : groups) {
    auto left = group.members;
    left.pop_back();
    expect_that_go_on(group, without(left, group.dying));
  }
}

}  // namespace
}  // namespace shoal::collective::elastic::killed_keepers_test
