// Joiners that are given a steady state while the members go on: what becomes of the stream when
// the state is committed over, when an end of it dies, and when it carries a wrong state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collective/elastic/state_fetch.h"
#include "tests/collective/elastic/some_members.h"
#include "tests/error_of.h"

namespace shoal::collective::elastic::steady_joining_test {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Duration kInnerStep = milliseconds(5);
/// A stream of this state takes two seconds at this pace.
constexpr std::size_t kBallast = 2 << 20;
constexpr std::uint64_t kPace = 1 << 20;

/// One inner step of a round: the state stays as it is. Returns how long it took.
Duration compute(Member& member) {
  const auto begun = Clock::now();
  std::this_thread::sleep_for(kInnerStep);
  member.group->let_join();
  return Clock::now() - begun;
}

void join_and_step(Member& joiner, const wire::Endpoint& contact) {
  joiner.group = ElasticGroup::join(steady(joiner), {contact});
  joiner.step();
}

void compute_until(Member& member, const std::function<bool()>& is_over) {
  for (const Deadline end = soon(); !is_over();) {
    compute(member);
    if (end.passed()) throw std::runtime_error("the wait for joiners took too long");
  }
}

void compute_until(Member& member, std::size_t members) {
  compute_until(member, [&] { return member.group->view().members.size() == members; });
}

/// So many members that are in one view and have committed step 0, so that three may be keepers.
class Group {
 public:
  Group(std::size_t size, std::size_t ballast, std::uint64_t pace,
        const membership::Settings& settings = patient())
      : members(size) {
    for (Member& member : members) member.ballast = ballast;
    members[0].group = ElasticGroup::found(steady(members[0], pace, settings));
    const auto begin = [&](Member& member) {
      member.group->wait_for_members(size, soon());
      member.step();
      // Behind the first commit a view with more keepers begins, and none follows that one.
      compute_until(member,
                    [&] { return member.group->view().keepers.size() == (size < 3 ? 1u : 3u); });
    };
    std::vector<std::unique_ptr<Thread>> threads;
    for (std::size_t i = 1; i < size; ++i) {
      threads.push_back(std::make_unique<Thread>([&, i] {
        members[i].group = ElasticGroup::join(steady(members[i], pace, settings), {contact()});
        begin(members[i]);
      }));
    }
    begin(members[0]);
    for (const auto& thread : threads) {
      thread->join();
      EXPECT_EQ(thread->error, "");
    }
    for (Member& member : members) member.written = 0;
  }
  wire::Endpoint contact() const { return members[0].group->endpoint(); }
  int written() const {
    int all = 0;
    for (const Member& member : members) all += member.written;
    return all;
  }
  /// Returns the member that has begun to give its state away first.
  std::size_t provider() const {
    for (const Deadline end = soon(); !end.passed();) {
      for (std::size_t i = 0; i < members.size(); ++i)
        if (members[i].written > 0) return i;
      std::this_thread::sleep_for(milliseconds(1));
    }
    throw std::runtime_error("nobody was asked for the state");
  }

  std::vector<Member> members;
};

/// Notes whether the joiner takes the state in a view: `member` returns one that was there before.
ElasticGroup::Options noting(ElasticGroup::Options options, const Group& group,
                             std::function<const Member&()> member, std::atomic<bool>& in_a_view) {
  std::vector<MemberId> ids;
  for (const Member& one : group.members) ids.push_back(one.group->self());
  options.state.read = [&in_a_view, ids, member = std::move(member),
                        read = options.state.read](std::span<const std::byte> bytes) {
    const View view = *member().group->carrier().status().view;
    in_a_view = std::any_of(view.members.begin(), view.members.end(),
                            [&](const auto& one) { return !membership::contains(ids, one.id); });
    read(bytes);
  };
  return options;
}

// The members compute while the state travels, for two seconds: none of them waits for it.
TEST(SteadyJoining, GivesTheStateWhileTheOthersCompute) {
  Group group(2, kBallast, kPace);
  Member joiner;
  joiner.ballast = kBallast;
  joiner.value = -100;
  std::atomic<bool> in_a_view{true};
  const auto first = [&]() -> const Member& { return group.members[0]; };
  const auto begun = Clock::now();
  Thread comes([&] {
    joiner.group =
        ElasticGroup::join(noting(steady(joiner), group, first, in_a_view), {group.contact()});
    joiner.step();
  });
  std::vector<std::vector<Duration>> inner_steps(2);
  const auto go_on = [&](std::size_t i) {
    Member& member = group.members[i];
    compute_until(member, [&] {
      if (joiner.taken == 0) inner_steps[i].push_back(compute(member));
      return member.group->view().members.size() == 3;
    });
    member.step();
  };
  Thread other([&] { go_on(1); });
  go_on(0);
  other.join();
  comes.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(comes.error, "");
  EXPECT_GT(Clock::now() - begun, std::chrono::seconds(2));
  // It came into the view with the state, which was written once and not sent again there.
  EXPECT_FALSE(in_a_view);
  EXPECT_EQ(joiner.taken, 1);
  EXPECT_EQ(group.written(), 1);
  for (std::vector<Duration>& steps : inner_steps) {
    // Of some 400; a wait for the state would leave a handful.
    EXPECT_GT(steps.size(), 80u);
    std::sort(steps.begin(), steps.end());
    RecordProperty("inner_step_us", std::to_string(steps[steps.size() / 2].count() / 1000));
  }
  const double value = 1 + 3 + 6;
  for (const Member* member : {&group.members[0], &group.members[1], &joiner}) {
    EXPECT_EQ(member->value, value);
    EXPECT_EQ(member->attempts, member->applied);
    EXPECT_THAT(member->faults, ElementsAre());
  }
  EXPECT_EQ(joiner.group->samples(), 2u + 3u);
}

// The stream would be of the past from here on: it begins anew, with what is committed.
TEST(SteadyJoining, BeginsAnewBehindACommit) {
  Group group(1, kBallast, kPace);
  Member& founder = group.members[0];
  Member joiner;
  joiner.ballast = kBallast;
  Thread comes([&] {
    joiner.group = ElasticGroup::join(steady(joiner), {group.contact()});
    EXPECT_EQ(joiner.group->next_step(), 2u);
    joiner.step();
  });
  compute_until(founder, [&] { return founder.written == 1; });
  for (int i = 0; i < 50; ++i) compute(founder);
  founder.step();
  compute_until(founder, 2);
  founder.step();
  comes.join();
  EXPECT_EQ(comes.error, "");
  EXPECT_EQ(founder.written, 2);
  EXPECT_EQ(joiner.taken, 1);
  EXPECT_EQ(joiner.value, 1 + 1 + 1 + 3);
  EXPECT_EQ(joiner.value, founder.value);
  EXPECT_EQ(founder.attempts, founder.applied);
  EXPECT_THAT(joiner.faults, ElementsAre());
}

// Rounds are shorter than the stream, so that it never comes to its end. The steps go on meanwhile,
// and then the state is given in the view.
TEST(SteadyJoining, GivesTheStateInTheViewWhereEachStreamIsCommittedOver) {
  Group group(2, kBallast, kPace);
  Member joiner;
  joiner.ballast = kBallast;
  Thread comes([&] { join_and_step(joiner, group.contact()); });
  std::atomic<int> committed_meanwhile{0};
  const auto go_on = [&](Member& member) {
    while (member.group->view().members.size() < 3) {
      for (int i = 0; i < 40 && member.group->view().members.size() < 3; ++i) compute(member);
      if (member.group->view().members.size() == 3) break;
      member.step();
      if (&member == &group.members[0] && joiner.taken == 0) ++committed_meanwhile;
    }
    member.step();
  };
  Thread other([&] { go_on(group.members[1]); });
  go_on(group.members[0]);
  other.join();
  comes.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(comes.error, "");
  EXPECT_GE(committed_meanwhile, kMostStreamBegins);
  // Three streams were begun, and one copy was broadcast.
  EXPECT_EQ(group.written(), kMostStreamBegins + 1);
  EXPECT_EQ(joiner.taken, 1);
  for (const Member& member : group.members) {
    EXPECT_EQ(member.value, joiner.value);
    EXPECT_EQ(member.attempts, member.applied);
    EXPECT_THAT(member.faults, ElementsAre());
  }
}

// What is sent during a step would be of the past behind it, and takes the uplink from the step.
TEST(SteadyJoining, SendsNothingWhileAStepIsAttempted) {
  Group group(1, 0, 0);
  Member& founder = group.members[0];
  Member joiner;
  std::optional<Thread> comes;
  founder.meanwhile = [&](const Roster&) {
    comes.emplace([&] { join_and_step(joiner, group.contact()); });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_EQ(founder.written, 0);
    EXPECT_EQ(joiner.taken, 0);
  };
  founder.step();
  founder.meanwhile = [](const Roster&) {};
  compute_until(founder, 2);
  founder.step();
  comes->join();
  EXPECT_EQ(comes->error, "");
  EXPECT_EQ(founder.written, 1);
  EXPECT_EQ(joiner.value, 1 + 1 + 1 + 3);
}

// Two members wait in a step for the third one. Whoever is asked first, the state comes from that.
TEST(SteadyJoining, AsksTheMemberThatStillComputes) {
  Group group(3, 0, 0);
  // The joiner comes into the view before the step is committed or behind it.
  const auto finish = [](Member& member) {
    while (member.group->next_step() < 3) member.step();
  };
  const auto wait_in_a_step = [&](Member& member) {
    member.step();
    compute_until(member, 4);
    finish(member);
  };
  Thread first([&] { wait_in_a_step(group.members[0]); });
  Thread second([&] { wait_in_a_step(group.members[1]); });
  std::this_thread::sleep_for(milliseconds(300));
  Member joiner;
  Thread comes([&] {
    joiner.group = ElasticGroup::join(steady(joiner), {group.contact()});
    finish(joiner);
  });
  Member& last = group.members[2];
  compute_until(last, [&] { return last.written > 0; });
  for (int i = 0; i < 20; ++i) compute(last);
  EXPECT_EQ(group.written(), 1);
  wait_in_a_step(last);
  for (Thread* const thread : {&first, &second, &comes}) {
    thread->join();
    EXPECT_EQ(thread->error, "");
  }
  for (const Member& member : group.members) EXPECT_EQ(member.value, joiner.value);
  EXPECT_THAT(joiner.faults, ElementsAre());
}

// Over a slow network a round is nearly all exchange: whenever the joiner asks, a step is
// attempted.
TEST(SteadyJoining, ComesInWhereAStepIsAttemptedNearlyAlways) {
  Group group(1, 0, 0);
  Member& founder = group.members[0];
  founder.meanwhile = [](const Roster&) { std::this_thread::sleep_for(milliseconds(150)); };
  Member joiner;
  std::atomic<bool> is_over{false};
  joiner.may_go_on = [&] {
    if (is_over) throw std::runtime_error("it has not come in");
  };
  Thread comes([&] { join_and_step(joiner, group.contact()); });
  constexpr int kMostSteps = 40;
  int steps = 0;
  const auto is_in = [&] { return founder.group->view().members.size() == 2; };
  while (!is_in() && steps < kMostSteps) {
    founder.step();
    founder.group->let_join();
    ++steps;
  }
  EXPECT_LT(steps, kMostSteps);
  is_over = !is_in();
  if (!is_over) founder.step();
  comes.join();
  EXPECT_EQ(comes.error, "");
  // The founder leaves next to no time between its steps: what it gives there is mostly committed
  // over before the joiner is in, which then gets the state in its first view.
  EXPECT_THAT(joiner.taken.load(), AnyOf(1, 2));
  EXPECT_EQ(joiner.value, founder.value);
}

// In a round behind a commit, too: nothing is attempted as long as one of them computes.
TEST(SteadyJoining, WhoWaitsForOneThatComputesMayGiveUp) {
  Group group(2, 0, 0);
  Member& fast = group.members[0];
  Member& slow = group.members[1];
  const auto round = [](Member& member) {
    compute(member);
    member.step();
  };
  Thread second([&] { round(slow); });
  round(fast);
  second.join();
  EXPECT_EQ(second.error, "");
  std::atomic<int> inner_steps{0};
  std::atomic<bool> is_gone{false};
  Thread other([&] {
    compute_until(slow, [&] {
      ++inner_steps;
      return is_gone.load();
    });
    slow.step();
  });
  compute(fast);
  while (inner_steps < 20) std::this_thread::sleep_for(milliseconds(1));
  const Deadline asked = Deadline::in(milliseconds(300));
  fast.may_go_on = [&] {
    if (asked.passed()) throw std::runtime_error("asked to stop");
  };
  EXPECT_THROW(fast.step(), std::runtime_error);
  EXPECT_EQ(fast.attempts, fast.applied);
  EXPECT_TRUE(fast.group->leave());
  is_gone = true;
  other.join();
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(slow.attempts, slow.applied);
  EXPECT_EQ(slow.value, fast.value + 1);
  EXPECT_EQ(slow.group->view().members.size(), 1u);
}

TEST(SteadyJoining, AsksAnotherMemberWhereOneGivesAWrongState) {
  Group group(2, 0, 0);
  // The memory of whoever is asked first is bad.
  std::atomic<int> asked{0};
  for (Member& member : group.members) {
    member.spoil = [&](std::vector<std::byte>& bytes) {
      if (++asked == 1) bytes[0] ^= std::byte{1};
    };
  }
  Member joiner;
  std::atomic<bool> in_a_view{true};
  const auto first = [&]() -> const Member& { return group.members[0]; };
  Thread comes([&] {
    joiner.group =
        ElasticGroup::join(noting(steady(joiner), group, first, in_a_view), {group.contact()});
    joiner.step();
  });
  const auto go_on = [&](Member& member) {
    compute_until(member, 3);
    member.step();
  };
  Thread other([&] { go_on(group.members[1]); });
  const std::string liar = group.members[group.provider()].group->self().text();
  go_on(group.members[0]);
  other.join();
  comes.join();
  EXPECT_EQ(comes.error, "");
  EXPECT_EQ(other.error, "");
  EXPECT_EQ(group.members[0].written, 1);
  EXPECT_EQ(group.members[1].written, 1);
  EXPECT_EQ(joiner.taken, 1);
  EXPECT_FALSE(in_a_view);
  EXPECT_EQ(joiner.value, 1 + 3 + 6);
  EXPECT_THAT(joiner.faults, ElementsAre(HasSubstr("gets no state from member " + liar +
                                                   ": it has sent a state with digest")));
}

TEST(SteadyJoining, SendsAJoinerAwayWhereNobodyHasTheRightState) {
  Group group(1, 0, 0);
  Member& founder = group.members[0];
  founder.spoil = [](std::vector<std::byte>& bytes) { bytes[0] ^= std::byte{1}; };
  Member joiner;
  Thread comes([&] { joiner.group = ElasticGroup::join(steady(joiner), {group.contact()}); });
  while (!comes.ended) {
    try {
      compute(founder);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    }
  }
  comes.join();
  EXPECT_THAT(comes.error, HasSubstr("no member of the view"));
  EXPECT_THAT(joiner.faults,
              Contains(HasSubstr("gets no state from member " + founder.group->self().text())));
  EXPECT_EQ(joiner.taken, 0);
  founder.spoil = [](std::vector<std::byte>&) {};
  founder.step();
  EXPECT_EQ(founder.value, 1 + 1 + 1);
}

TEST(SteadyJoining, AsksAnotherMemberWhereOneDiesInTheMiddle) {
  Group group(3, kBallast, kPace, watchful());
  Member joiner;
  joiner.ballast = kBallast;
  std::atomic<int> dying{-1};
  std::atomic<bool> has_come{false};
  std::vector<std::unique_ptr<Thread>> threads;
  const wire::Endpoint contact = group.contact();
  std::atomic<bool> in_a_view{true};
  const auto another = [&]() -> const Member& {
    return group.members[static_cast<std::size_t>(dying + 1) % 3];
  };
  auto options = noting(steady(joiner, 0, watchful()), group, another, in_a_view);
  std::vector<std::string> names;
  for (const Member& member : group.members) names.push_back(member.group->self().text());
  for (int i = 0; i < 3; ++i) {
    threads.push_back(std::make_unique<Thread>([&, i] {
      Member& member = group.members[static_cast<std::size_t>(i)];
      compute_until(member, [&] { return dying == i || has_come; });
      if (dying == i) {
        member.group = nullptr;
        return;
      }
      member.step();
    }));
  }
  Thread comes([&] {
    joiner.group = ElasticGroup::join(std::move(options), {contact});
    has_come = true;
    joiner.step();
  });
  const std::size_t provider = group.provider();
  std::this_thread::sleep_for(milliseconds(300));
  dying = static_cast<int>(provider);
  for (const auto& thread : threads) {
    thread->join();
    EXPECT_EQ(thread->error, "");
  }
  comes.join();
  EXPECT_EQ(comes.error, "");
  EXPECT_THAT(joiner.faults, Contains(HasSubstr("gets no state from member " + names[provider])));
  EXPECT_EQ(joiner.taken, 1);
  EXPECT_FALSE(in_a_view);
  EXPECT_EQ(joiner.value, 1 + 6 + 6);
  EXPECT_EQ(group.written(), 2);
}

// The member that gives the state notices, and goes on with it.
TEST(SteadyJoining, GoesOnWhereTheJoinerDiesInTheMiddle) {
  Group group(1, kBallast, kPace);
  Member& founder = group.members[0];
  Thread dies([&] {
    LetterCarrier::Options options = network();
    options.ready_at_once = false;
    const auto carrier = LetterCarrier::join(options, {group.contact()});
    FetchOptions fetch;
    fetch.may_go_on = [&] {
      if (founder.written > 0) throw std::runtime_error("it dies");
    };
    Member nobody;
    fetch_state(*carrier, nobody.options().state, fetch, soon());
  });
  compute_until(founder, [&] { return dies.ended.load(); });
  compute_until(founder, [&] {
    founder.group->wait_for_members(1, soon());
    return !founder.faults.empty();
  });
  EXPECT_THAT(founder.faults, ElementsAre(HasSubstr("the stream of the state from member")));
  Member joiner;
  joiner.ballast = kBallast;
  Thread comes([&] { join_and_step(joiner, group.contact()); });
  compute_until(founder, 2);
  founder.step();
  dies.join();
  comes.join();
  EXPECT_EQ(dies.error, "it dies");
  EXPECT_EQ(comes.error, "");
  EXPECT_EQ(joiner.value, founder.value);
  EXPECT_EQ(founder.attempts, founder.applied);
}

// The joiner waits at the door, and nobody calls `let_join`: the view follows a commit, so that
// what the joiner has is of the past.
TEST(SteadyJoining, GivesTheStateInTheViewWhereACommitComesBefore) {
  Group group(1, 0, 0);
  Member& founder = group.members[0];
  Member joiner;
  Thread comes([&] { join_and_step(joiner, group.contact()); });
  for (const Deadline end = soon(); joiner.taken == 0 && !end.passed();)
    std::this_thread::sleep_for(milliseconds(1));
  // The last of these steps is the one of both.
  while (founder.group->view().members.size() < 2) founder.step();
  comes.join();
  EXPECT_EQ(comes.error, "");
  EXPECT_EQ(joiner.taken, 2);
  EXPECT_EQ(founder.written, 2);
  EXPECT_EQ(joiner.value, founder.value);
  EXPECT_EQ(founder.attempts, founder.applied);
  EXPECT_THAT(joiner.faults, ElementsAre());
}

// A provider whose part in the agreement is broken too: what it tells of the last commit is as
// wrong as its state. That shows in the view.
TEST(SteadyJoining, NamesWhoHasToldAnotherDigestThanTheViewHas) {
  Group group(1, 0, 0);
  Member& founder = group.members[0];
  StateAccess wrong = founder.options().state;
  wrong.write = [] { return Member::bytes_of(666); };
  const View& view = founder.group->view();
  std::optional<StateProvider> liar;
  liar.emplace(founder.group->carrier(),
               std::make_shared<SteadyState>(
                   wrong, membership::Place{.lineage = view.lineage,
                                            .epoch = view.epoch,
                                            .step = 1,
                                            .state = StateAccess::sha256(Member::bytes_of(666)),
                                            .samples = 1}),
               StateProvider::Options{});
  Member joiner;
  Thread comes([&] { join_and_step(joiner, group.contact()); });
  compute_until(founder, 2);
  founder.step();
  comes.join();
  liar.reset();
  EXPECT_EQ(comes.error, "");
  EXPECT_EQ(joiner.taken, 2);
  EXPECT_EQ(joiner.value, 1 + 1 + 3);
  EXPECT_THAT(joiner.faults, ElementsAre(HasSubstr("member " + founder.group->self().text() +
                                                   " has given joiner")));
}

TEST(SteadyJoining, GivesNothingToWhoIsRefused) {
  Member founder;
  ElasticGroup::Options options = steady(founder);
  options.network.admission = wire::token_key("of the issuer");
  founder.group = ElasticGroup::found(std::move(options));
  founder.written = 0;
  double value = 0;
  const auto join = [&](const std::string& token) {
    Member joiner;
    ElasticGroup::Options options = steady(joiner);
    options.network.token = token;
    joiner.group = ElasticGroup::join(std::move(options), {founder.group->endpoint()});
    joiner.step();
    value = joiner.value;
  };
  std::optional<Error> refused;
  Thread stranger([&] { refused = error_of([&] { join(""); }); });
  compute_until(founder, [&] { return stranger.ended.load(); });
  stranger.join();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind(), ErrorKind::kMismatch);
  EXPECT_THAT(refused->what(), HasSubstr("join with a token, and none is shown"));
  EXPECT_EQ(founder.written, 0);
  const std::string token = wire::issue_join_token(
      "of the issuer", "shoal", std::chrono::system_clock::now() + std::chrono::hours(1));
  Thread invited([&] { join(token); });
  compute_until(founder, 2);
  founder.step();
  invited.join();
  EXPECT_EQ(invited.error, "");
  EXPECT_EQ(value, 1 + 3);
  EXPECT_EQ(founder.written, 1);
}

// Members whose state may change at any time give it in the view, to whoever comes.
TEST(SteadyJoining, JoinsAGroupWhoseStateIsNotSteady) {
  Member founder;
  founder.group = ElasticGroup::found(founder.options());
  Member joiner;
  Thread comes([&] { join_and_step(joiner, founder.group->endpoint()); });
  compute_until(founder, 2);
  founder.step();
  comes.join();
  EXPECT_EQ(comes.error, "");
  EXPECT_EQ(joiner.taken, 1);
  EXPECT_EQ(joiner.value, 1 + 3);
}

}  // namespace
}  // namespace shoal::collective::elastic::steady_joining_test
