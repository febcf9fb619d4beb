// Join tokens: who is refused and what it is told, and that a used token stays used.
#include "shoal/collective/membership/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shoal/collective/membership/membership.h"
#include "tests/collective/membership/simulation.h"

namespace shoal::collective::admission_test {
namespace {

using namespace membership;
using std::chrono::hours;
using testing::HasSubstr;
using wire::TokenTime;

const TokenTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);
TokenTime wall_time = kNow;

std::string token(Duration good_for = hours(1), const std::string& cluster = "north",
                  const std::string& secret = "secret") {
  return wire::issue_join_token(secret, cluster,
                                kNow + std::chrono::duration_cast<TokenTime::duration>(good_for));
}

Admission by_token() {
  return {.by_token = true,
          .cluster = "north",
          .key = wire::token_key("secret"),
          .clock_s = 0,
          .used = {}};
}

View view_by_token(std::uint64_t members) {
  View view = first_view(members);
  view.admission = by_token();
  return view;
}

Settings settings() {
  Settings settings;
  settings.wall_clock = [] { return wall_time; };
  return settings;
}

class AdmissionTest : public testing::Test {
 protected:
  void SetUp() override { wall_time = kNow; }

  Membership joiner(std::uint64_t number, const std::string& token) {
    Membership joiner =
        Membership::joiner(member_of(number), {keeper_.self()}, settings(), now_, false, {}, token);
    joiner.on(JoinerReady{}, now_);
    return joiner;
  }
  /// The joiner asks, and hears what the keeper answers. Returns why it has ended.
  std::string ask(Membership& joiner) {
    now_ += seconds(1);
    for (const Letter& letter : joiner.on(Tick{}, now_)) {
      for (const Letter& answer : keeper_.on(Received{letter}, now_))
        if (answer.to == joiner.self()) joiner.on(Received{answer}, now_);
    }
    return joiner.ended() ? joiner.ended()->what() : "";
  }
  std::string refusal_of(const std::string& token) {
    Membership one = joiner(++last_, token);
    return ask(one);
  }
  /// The keeper lets the joiners in behind a step.
  void commit() { keeper_.on(StepReady{keeper_.place().epoch, keeper_.place().step, {}, 4}, now_); }

  Clock::time_point now_{seconds(1)};
  Membership keeper_{id_of(1), view_by_token(1), settings(), now_};
  std::uint64_t last_ = 1;
};

TEST_F(AdmissionTest, EachRefusalSaysWhyAndWhatToDo) {
  EXPECT_THAT(refusal_of(""), HasSubstr("members of cluster \"north\" join with a token, and none "
                                        "is shown"));
  EXPECT_THAT(refusal_of(""), HasSubstr("Have one issued, and give it as `token`."));
  EXPECT_THAT(refusal_of(token() + "00"), HasSubstr("the join token is forged: it is not as the "
                                                    "secret of this group signs it"));
  EXPECT_THAT(refusal_of(token(hours(1), "north", "guessed")), HasSubstr("forged"));
  EXPECT_THAT(refusal_of("x"), HasSubstr("Copy it whole, or have one issued with the secret"));
  EXPECT_THAT(refusal_of(token(hours(1), "south")),
              HasSubstr("of another cluster: it is for \"south\", and this is \"north\""));
  EXPECT_THAT(refusal_of(token(hours(1), "south")), HasSubstr("Have one issued for this cluster."));
  EXPECT_THAT(refusal_of(token(-hours(1))),
              HasSubstr("the join token is expired: it was good until 2027-01-15 07:00:00 UTC"));
  EXPECT_THAT(refusal_of(token(-hours(1))), HasSubstr("Have another one issued; are the clocks"));
  EXPECT_EQ(keeper_.view()->admission.used.size(), 0u);
}

TEST_F(AdmissionTest, ATokenAdmitsOneMemberOnce) {
  const std::string one = token();
  Membership second = joiner(2, one);
  EXPECT_EQ(ask(second), "");
  last_ = 2;
  Membership third = joiner(3, one);
  EXPECT_EQ(ask(third), "") << "it waits for what becomes of the other one";
  last_ = 3;
  commit();
  // The keepers of the next view hold it at once: the only one is this one.
  ASSERT_TRUE(keeper_.view()->has_member(id_of(2)));
  EXPECT_FALSE(keeper_.view()->has_member(id_of(3)));
  EXPECT_EQ(keeper_.view()->admission.used.size(), 1u);
  EXPECT_THAT(ask(third), HasSubstr("the join token was used before: it has admitted a"));
  EXPECT_THAT(refusal_of(one), HasSubstr("the join token was used before: it has admitted a"));
  EXPECT_THAT(refusal_of(one), HasSubstr("have one issued for each start"));
  EXPECT_EQ(refusal_of(token()), "");
}

// The step that runs may take longer than the token is good.
TEST_F(AdmissionTest, ATokenThatWasGoodWhenItWasShownIsGoodBehindTheStep) {
  Membership second = joiner(2, token(seconds(10)));
  EXPECT_EQ(ask(second), "");
  wall_time += hours(1);
  EXPECT_EQ(ask(second), "");
  commit();
  EXPECT_TRUE(keeper_.view()->has_member(id_of(2)));
  last_ = 2;
  EXPECT_THAT(refusal_of(token(seconds(10))), HasSubstr("expired"));
}

// It gets the state before it is ready, which may take longer too.
TEST_F(AdmissionTest, ATokenThatWasGoodWhenItWasShownIsGoodWhenItsJoinerIsReady) {
  Membership second = Membership::joiner(member_of(2), {keeper_.self()}, settings(), now_, false,
                                         {}, token(seconds(10)));
  EXPECT_EQ(ask(second), "");
  wall_time += hours(1);
  EXPECT_EQ(ask(second), "");
  EXPECT_EQ(keeper_.refuses(second.own_join()), std::nullopt);
  commit();
  EXPECT_FALSE(keeper_.view()->has_member(id_of(2))) << "it is not ready";
  second.on(JoinerReady{}, now_);
  EXPECT_EQ(ask(second), "");
  commit();
  EXPECT_TRUE(keeper_.view()->has_member(id_of(2)));
}

TEST_F(AdmissionTest, AClockThatIsSetBackMakesNoTokenGoodAgain) {
  Admission admission = by_token();
  const std::string first = token(seconds(10));
  const auto reading = read(admission, first, kNow);
  EXPECT_TRUE(use_up(admission, reading, kNow));
  EXPECT_FALSE(use_up(admission, reading, kNow));
  EXPECT_TRUE(use_up(admission, read(admission, token(), kNow), kNow + seconds(20)));
  EXPECT_EQ(admission.used.size(), 1u) << "what has expired need not be remembered";
  EXPECT_EQ(read(admission, first, kNow).verdict, wire::TokenVerdict::kExpired);
  EXPECT_EQ(read(admission, token(seconds(10)), kNow).verdict, wire::TokenVerdict::kExpired);
}

TEST_F(AdmissionTest, UsedTokensAreOfABoundedNumber) {
  Admission admission = by_token();
  admission.used.resize(Admission::kMostUsed, {.nonce = {}, .expires_s = ~std::uint64_t{0}});
  const auto reading = read(admission, token(), kNow);
  EXPECT_THAT(refusal(admission, "x", reading)->why, HasSubstr("4096 join tokens are used"));
  EXPECT_FALSE(use_up(admission, reading, kNow));
}

TEST_F(AdmissionTest, AGroupThatAsksForNoneTakesAnybody) {
  EXPECT_FALSE(refusal({}, "", read({}, "", kNow)));
  Admission nobody;
  EXPECT_TRUE(use_up(nobody, {}, kNow));
  EXPECT_EQ(nobody, Admission{});
}

// Two of five keepers have died meanwhile, one of them the owner that has admitted the member.
TEST(Admission, AUsedTokenIsRememberedByThoseThatAreLeft) {
  Scenario scenario = calm(4);
  scenario.admission = by_token();
  Simulation simulation(28, scenario);
  const auto far = std::chrono::system_clock::now() + hours(24);
  const std::string one = wire::issue_join_token("secret", "north", far);
  const std::string other = wire::issue_join_token("secret", "north", far);
  simulation.at(seconds(2), [&] { simulation.join_by_way_of(0, one); });
  simulation.at(seconds(5), [&] {
    simulation.crash(0);
    simulation.crash(1);
  });
  std::size_t thief = 0;
  std::size_t last = 0;
  simulation.at(seconds(10), [&] { thief = simulation.join_by_way_of(2, one); });
  simulation.at(seconds(10), [&] { last = simulation.join_by_way_of(3, other); });
  EXPECT_EQ(simulation.run_until(seconds(14)), std::nullopt);
  ASSERT_TRUE(simulation.member(thief).ended()) << simulation.describe();
  EXPECT_THAT(simulation.member(thief).ended()->what(), HasSubstr("was used before"));
  EXPECT_EQ(simulation.member(last).view()->everybody(),
            (std::vector{id_of(3), id_of(4), id_of(5), id_of(7)}))
      << simulation.describe();
}

}  // namespace
}  // namespace shoal::collective::admission_test
