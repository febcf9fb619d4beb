// One member that asks a keeper outside of the group: when it asks, and what it does with answers.
#include "shoal/collective/membership/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/collective/membership/membership.h"
#include "tests/collective/membership/some_members.h"

namespace shoal::collective::chain_test {
namespace {

using namespace membership;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kKeeper = "a keeper";

View kept_view(std::uint64_t members, std::uint64_t fresh = 0) {
  View view = first_view(members);
  view.kept_by = kKeeper;
  view.fresh = fresh;
  view.keepers = choose_keepers(view.established(), view.witnesses);
  return view;
}

/// A member of a view under a clock of its own.
class OneMember {
 public:
  OneMember(std::uint64_t number, const View& view)
      : view_(view), member_(id_of(number), view, settings(), now_) {}

  static Settings settings() {
    Settings settings;
    settings.kept_by = kKeeper;
    return settings;
  }

  /// Lets time pass, in which it hears from `others`, who miss `accused`; keeps what it asked last
  /// in that time.
  void pass(Duration time, const std::vector<std::uint64_t>& others,
            const std::vector<MemberId>& accused = {}) {
    asked_.reset();
    for (const auto end = now_ + time; now_ < end; now_ += milliseconds(50)) {
      for (const std::uint64_t other : others) {
        const Beat beat{.place = {.lineage = view_.lineage, .epoch = view_.epoch},
                        .accused = accused};
        on(Received{Letter{.from = id_of(other),
                           .to = member_.self(),
                           .lineage = view_.lineage,
                           .epoch = view_.epoch,
                           .body = beat}});
      }
      on(Tick{});
    }
  }
  void on(const Event& event) {
    member_.on(event, now_);
    for (ChainQuestion& question : member_.take_questions()) asked_ = std::move(question);
  }
  const std::optional<ChainQuestion>& asked() const { return asked_; }
  const Membership& member() const { return member_; }

 private:
  const View view_;
  Clock::time_point now_ = Clock::time_point() + seconds(1000);
  Membership member_;
  std::optional<ChainQuestion> asked_;
};

TEST(Chain, AMemberThatHearsNobodyElseAsksForAViewWithoutThem) {
  OneMember two(2, kept_view(2));
  two.pass(seconds(8), {});
  ASSERT_TRUE(two.asked());
  EXPECT_EQ(std::get<View>(two.asked()->wish).members, members_of(2, 1));
}

// The member that has the state may only have stood still.
TEST(Chain, AJoinerWithoutTheStateRemovesNobodyThatHasIt) {
  OneMember joiner(2, kept_view(2, 1));
  joiner.pass(seconds(8), {});
  EXPECT_FALSE(joiner.asked());
  EXPECT_FALSE(joiner.member().ended());
  joiner.pass(seconds(10), {});
  ASSERT_TRUE(joiner.member().ended());
  EXPECT_EQ(joiner.member().ended()->kind(), ErrorKind::kPeerLost);
}

// It is ready for its first step, so it has got the state.
TEST(Chain, AJoinerWithTheStateGoesOnAlone) {
  OneMember joiner(2, kept_view(2, 1));
  joiner.on(AttemptAsked{.epoch = 1, .step = 0});
  joiner.pass(seconds(8), {});
  EXPECT_TRUE(joiner.asked());
}

// Otherwise it would be asked for ever, and at last for something that has been deleted.
TEST(Chain, AViewIsNoLongerAskedForWhenWhoWasMissedIsBack) {
  OneMember two(2, kept_view(3));
  two.pass(seconds(8), {3}, {id_of(1)});
  ASSERT_TRUE(two.asked());
  const ChainSlot slot = two.asked()->slot;
  two.pass(seconds(3), {1, 3});
  two.pass(seconds(3), {1, 3});
  EXPECT_FALSE(two.asked());
  // Whatever comes late is of no interest.
  two.on(ChainAnswered{.slot = slot, .entry = std::nullopt});
  EXPECT_FALSE(two.member().ended());
}

// Long texts are cut where they are written.
TEST(Chain, AnEntryWithALongCauseIsRecognisedAsTheOwnOne) {
  OneMember one(1, kept_view(1));
  one.on(AttemptAsked{.epoch = 1, .step = 0});
  one.on(StepFailed{.epoch = 1, .step = 0, .cause = std::string(6000, 'x')});
  ASSERT_TRUE(one.asked());
  one.on(ChainAnswered{.slot = one.asked()->slot,
                       .entry = decode_chain_entry(encode(one.asked()->wish))});
  EXPECT_FALSE(one.member().ended());
}

TEST(Chain, WhatIsNoEntryEndsTheMemberThatAsks) {
  OneMember one(1, kept_view(1));
  one.on(AttemptAsked{.epoch = 1, .step = 0});
  one.on(StepReady{.epoch = 1, .step = 0, .state = {}, .samples = 1});
  ASSERT_TRUE(one.asked());
  one.on(ChainSilent{.why = "nobody is there"});
  EXPECT_FALSE(one.member().ended());
  one.on(ChainSilent{.why = "garbage is there", .is_foreign = true});
  ASSERT_TRUE(one.member().ended());
  EXPECT_EQ(one.member().ended()->kind(), ErrorKind::kData);
}

}  // namespace
}  // namespace shoal::collective::chain_test
