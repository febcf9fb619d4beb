// Every order in which the letters of two proposers and of the owner may reach three keepers, one
// of which may crash at any point: no two next views are decided, and a decided step is in the next
// view. A letter that is never delivered is one that is lost. Broken rules are found.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/base/hash.h"
#include "shoal/collective/membership/decision.h"
#include "shoal/collective/membership/register.h"
#include "tests/collective/membership/some_members.h"

namespace shoal::collective::exhaustive_search_test {
namespace {

using namespace membership;

constexpr std::size_t kKeepers = 3;
constexpr std::uint64_t kStep = 7;

/// The ballots of the search, in the order of their rounds: the keeper that proposes, and whether
/// the ballot may begin only after the keeper's earlier one was refused.
struct Attempt {
  std::size_t proposer;
  std::uint64_t round;
  std::optional<std::size_t> after;
};

using Asked = std::array<bool, kKeepers>;

/// One state of the world. Whatever may still be delivered stands in `asked_*` and `answers`.
struct World {
  World(const std::vector<Attempt>& attempts, const Rules& rules, bool with_step) : rules(rules) {
    std::vector<MemberId> keepers;
    for (std::size_t k = 0; k < kKeepers; ++k) keepers.push_back(id_of(k));
    for (std::size_t k = 0; k < kKeepers; ++k) registers.emplace_back(keepers[0], rules);
    for (const Attempt& attempt : attempts) {
      decisions.emplace_back(keepers, Ballot{attempt.round, keepers[attempt.proposer]}, rules);
      answers.emplace_back();
      asked.push_back({});
      voted.push_back({});
      begun.push_back(!attempt.after);
      if (!attempt.after) asked.back().fill(true);
    }
    asked_step.fill(with_step);
  }

  Rules rules;
  std::vector<Register> registers;
  std::vector<ViewDecision> decisions;
  Asked asked_step{};        ///< the owner's letters on their way
  std::vector<Asked> asked;  ///< a proposer's letters of its phase on their way
  std::vector<std::array<std::optional<std::variant<Promise, Refusal>>, kKeepers>> answers;
  std::vector<bool> begun;
  std::optional<std::size_t> crashed;
  // What keepers have ever accepted.
  Asked voted_step{};
  std::vector<Asked> voted;
};

std::size_t count(const Asked& votes) {
  return static_cast<std::size_t>(std::count(votes.begin(), votes.end(), true));
}

class Search {
 public:
  struct Bounds {
    bool with_step = true;
    bool with_crash = true;
  };
  Search(std::vector<Attempt> attempts, Rules rules, Bounds bounds)
      : attempts_(std::move(attempts)), rules_(rules), bounds_(bounds) {}

  /// Returns what is violated first, or nothing.
  std::optional<std::string> run() {
    todo_.emplace_back(attempts_, rules_, bounds_.with_step);
    while (!todo_.empty()) {
      const World world = std::move(todo_.back());
      todo_.pop_back();
      if (auto violation = violated(world)) return violation;
      expand(world);
    }
    return std::nullopt;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  bool lives(const World& world, std::size_t keeper) const { return world.crashed != keeper; }

  void expand(const World& world) {
    for (std::size_t k = 0; k < kKeepers; ++k) {
      if (!lives(world, k)) continue;
      if (bounds_.with_crash && !world.crashed) {
        World next = world;
        next.crashed = k;
        visit(std::move(next));
      }
      if (world.asked_step[k]) {
        World next = world;
        next.asked_step[k] = false;
        const Outcome outcome{.step = kStep, .state = {}, .samples = 1, .cause = {}, .odd = {}};
        const auto answer = next.registers[k].accept(AcceptStep{{0, id_of(0)}, outcome});
        if (std::holds_alternative<AcceptedStep>(answer)) next.voted_step[k] = true;
        visit(std::move(next));
      }
      for (std::size_t a = 0; a < attempts_.size(); ++a) {
        if (world.asked[a][k]) deliver_request(world, a, k);
        if (world.answers[a][k] && lives(world, attempts_[a].proposer)) deliver_answer(world, a, k);
      }
    }
  }

  void deliver_request(const World& world, std::size_t a, std::size_t k) {
    World next = world;
    next.asked[a][k] = false;
    const Body request = next.decisions[a].request();
    if (const auto* prepare = std::get_if<Prepare>(&request)) {
      next.answers[a][k] = next.registers[k].prepare(*prepare);
    } else {
      // Whether a view is decided is seen in the keepers, so this answer needs no delivery, but
      // for a refusal.
      const auto answer = next.registers[k].accept(std::get<AcceptView>(request));
      if (std::holds_alternative<AcceptedView>(answer)) next.voted[a][k] = true;
      if (const auto* refusal = std::get_if<Refusal>(&answer)) next.answers[a][k] = *refusal;
    }
    visit(std::move(next));
  }

  void deliver_answer(const World& world, std::size_t a, std::size_t k) {
    World next = world;
    const auto answer = std::move(*next.answers[a][k]);
    next.answers[a][k].reset();
    ViewDecision& decision = next.decisions[a];
    if (const auto* promise = std::get_if<Promise>(&answer)) {
      const auto phase = decision.phase();
      decision.on(id_of(k), *promise);
      if (decision.phase() == ViewDecision::Phase::kWishing) decision.wish(wish(decision, a));
      // Prepare letters that are still on their way become useless with the second phase.
      if (decision.phase() != phase) next.asked[a].fill(true);
    } else {
      for (std::size_t later = 0; later < attempts_.size(); ++later) {
        if (attempts_[later].after != a || next.begun[later]) continue;
        next.begun[later] = true;
        next.asked[later].fill(true);
      }
    }
    visit(std::move(next));
  }

  static View wish(const ViewDecision& decision, std::size_t attempt) {
    View view;
    view.epoch = 2;
    view.first_step = decision.last_step() ? kStep + 1 : kStep;
    view.samples = attempt;  // tells the wishes apart
    view.keepers = {id_of(0)};
    return view;
  }

  std::size_t needed(bool of_step) const {
    return rules_.majority(of_step || !rules_.counts_with_new_keepers ? kKeepers : 1);
  }

  std::optional<std::string> violated(const World& world) const {
    const bool step_is_decided = count(world.voted_step) >= needed(true);
    const View* decided = nullptr;
    for (std::size_t a = 0; a < attempts_.size(); ++a) {
      if (count(world.voted[a]) < needed(false)) continue;
      const View& view = world.decisions[a].view();
      if (decided && *decided != view) return "two next views are decided";
      if (step_is_decided && view.first_step == kStep) return "a decided step is lost";
      decided = &view;
    }
    return std::nullopt;
  }

  /// Two states with equal keys have equal futures.
  std::uint64_t key(const World& world) const {
    std::uint64_t key = 1;
    const auto add = [&](std::uint64_t value) { key = splitmix64(key * 31 + value); };
    const auto add_vote = [&](const std::optional<ViewVote>& vote) {
      add(vote ? 1 + vote->ballot.round : 0);
      if (vote) add(2 * vote->view.samples + vote->view.first_step % 2);
    };
    add(world.crashed.value_or(kKeepers));
    for (std::size_t k = 0; k < kKeepers; ++k) {
      const Register& keeper = world.registers[k];
      add(keeper.promised().round);
      add(keeper.step().has_value());
      add_vote(keeper.view());
      add(2u * world.asked_step[k] + world.voted_step[k]);
    }
    for (std::size_t a = 0; a < attempts_.size(); ++a) {
      const ViewDecision& decision = world.decisions[a];
      add(static_cast<std::uint64_t>(decision.phase()));
      add(decision.last_step().has_value());
      add_vote(decision.value());
      add(world.begun[a]);
      for (const MemberId& keeper : decision.unanswered())
        add(std::to_integer<std::uint64_t>(keeper.bytes[0]));
      for (std::size_t k = 0; k < kKeepers; ++k) {
        add(2u * world.asked[a][k] + world.voted[a][k]);
        const auto& answer = world.answers[a][k];
        add(answer ? 1 + answer->index() : 0);
        if (!answer || !std::holds_alternative<Promise>(*answer)) continue;
        add_vote(std::get<Promise>(*answer).view);
        add(std::get<Promise>(*answer).step.has_value());
      }
    }
    return key;
  }

  void visit(World world) {
    // Answers that change nothing need no order: they are as good as delivered.
    for (std::size_t a = 0; a < attempts_.size(); ++a) {
      const bool is_prepared = world.decisions[a].phase() != ViewDecision::Phase::kPreparing;
      const bool is_followed = std::any_of(attempts_.begin(), attempts_.end(),
                                           [&](const Attempt& later) { return later.after == a; });
      // A proposer that has begun another ballot has given up this one.
      bool hears = lives(world, attempts_[a].proposer);
      for (std::size_t later = 0; later < attempts_.size(); ++later)
        hears = hears && !(attempts_[later].after == a && world.begun[later]);
      for (auto& answer : world.answers[a]) {
        if (!answer) continue;
        const bool is_promise = std::holds_alternative<Promise>(*answer);
        if (!hears || (is_promise ? is_prepared : !is_followed)) answer.reset();
      }
    }
    if (world.crashed) {
      world.asked_step[*world.crashed] = false;
      for (Asked& asked : world.asked) asked[*world.crashed] = false;
    }
    if (seen_.insert(key(world)).second) todo_.push_back(std::move(world));
  }

  std::vector<Attempt> attempts_;
  Rules rules_;
  Bounds bounds_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<World> todo_;
};

const std::vector<Attempt> kTwoProposers = {{0, 1, std::nullopt}, {1, 2, std::nullopt}};

/// The first one tries again when it is refused, with a higher ballot.
const std::vector<Attempt> kThreeBallots = {{0, 1, std::nullopt}, {1, 2, std::nullopt}, {0, 3, 0}};

void expect_agreement(const std::vector<Attempt>& attempts, Search::Bounds bounds,
                      std::size_t least_states) {
  const auto begin = std::chrono::steady_clock::now();
  Search search(attempts, {}, bounds);
  EXPECT_EQ(search.run(), std::nullopt);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << search.states() << " states in " << took.count() << " s\n";
  EXPECT_GT(search.states(), least_states);
}

TEST(ExhaustiveSearch, TwoProposersAndTheOwnerAgreeInEveryOrder) {
  expect_agreement(kTwoProposers, {.with_step = true, .with_crash = true}, 100'000);
}

// Without the step, and without the crash: it adds no order that is not there when letters are
// never delivered.
TEST(ExhaustiveSearch, TheyAgreeWhereOneOfThemTriesAgain) {
  expect_agreement(kThreeBallots, {.with_step = false, .with_crash = false}, 100'000);
}

struct Broken {
  const char* name;
  Rules rules;
  const char* violation;
};

TEST(ExhaustiveSearch, FindsEachBrokenRule) {
  const std::vector<Broken> broken = {
      {"a vote below the majority", {.votes_below_majority = 1}, "two next views are decided"},
      {"the majority of the new keepers",
       {.counts_with_new_keepers = true},
       "two next views are decided"},
      {"promises forget views", {.promise_reports_view = false}, "two next views are decided"},
      {"promises forget steps", {.promise_reports_step = false}, "a decided step is lost"},
      {"promises do not seal", {.promise_seals = false}, "a decided step is lost"},
      {"lower ballots are accepted",
       {.refuses_lower_ballots = false},
       "two next views are decided"},
      {"accepted views are not taken over",
       {.adopts_accepted_view = false},
       "two next views are decided"},
  };
  for (const Broken& rule : broken) {
    Search search(kTwoProposers, rule.rules, {});
    const auto violation = search.run();
    ASSERT_TRUE(violation) << rule.name << ": nothing found in " << search.states() << " states";
    EXPECT_TRUE(*violation == "two next views are decided" ||
                *violation == "a decided step is lost")
        << rule.name << ": " << *violation;
    std::cout << rule.name << ": " << *violation << ", after " << search.states() << " states\n";
  }
}

}  // namespace
}  // namespace shoal::collective::exhaustive_search_test
