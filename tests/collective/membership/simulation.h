#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shoal/collective/membership/membership.h"
#include "tests/collective/membership/agreement_check.h"
#include "tests/collective/membership/simulated_keeper.h"
#include "tests/collective/membership/some_members.h"

namespace shoal::collective::membership {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The node of a Simulation that has this id.
inline std::size_t simulated_index(const MemberId& id) {
  return std::to_integer<std::size_t>(id.bytes[0]) - 1;
}

/// What a schedule is made of.
struct Scenario {
  std::uint64_t members = 5;
  std::uint64_t witnesses = 0;
  OnQuorumLoss on_quorum_loss = OnQuorumLoss::kStop;
  Rules rules;
  double loss = 0.1;    ///< of all letters, until faults end
  double copies = 0.1;  ///< letters that arrive twice
  double late = 0.05;   ///< letters that take up to 1.5 s
  int most_faults = 4;
  bool as_bytes = false;  ///< letters pass through their encoding
  Duration beat = milliseconds(500);
  Duration suspect_after = seconds(2);
  /// Nothing happens but joins and losses of letters, so no attempt may be interrupted.
  bool only_joins = false;
  /// An attempt at a step, and its beginning, need the connections between all members of the view.
  bool attempts_need_links = false;
  /// Where those are missing for so long the attempt fails; zero: it waits for ever.
  Duration links_timeout{};
  Duration attempt_takes = milliseconds(50);  ///< and up to 0.2 s more
  /// A keeper outside of the group holds what is decided, and has faults of its own.
  bool has_chain = false;
  SimulatedKeeper::Compares keeper_compares{};
  Admission admission{};            ///< of the first view
  std::vector<std::string> tokens;  ///< one of which each joiner shows
};

/// Members under a virtual clock, and a network that loses, doubles, delays and reorders letters.
/// Members crash, stand still, come and go, and the network falls apart; then all faults end, and
/// those that are left must agree on a view and commit steps. Everything follows from the seed.
class Simulation {
 public:
  static constexpr Duration kFaults = seconds(8);          ///< so long faults happen
  static constexpr Duration kHealed = milliseconds(9500);  ///< they hear each other again
  static constexpr Duration kPatience = seconds(4);        ///< without a majority
  static constexpr Duration kBound = seconds(30);  ///< for two more steps once faults have ended
  static constexpr std::size_t kMostNodes = 16;

  Simulation(std::uint64_t seed, const Scenario& scenario);

  /// Calls `what` at that time.
  void at(Duration when, std::function<void()> what);

  // Faults and wishes, at once.
  void crash(std::size_t node) { nodes_[node].lives = false; }
  /// The others hear, each at a time of its own, that nobody listens at the node's address.
  void crash_and_tell(std::size_t node);
  void tell_absent(std::size_t node);
  void pause(std::size_t node, Duration duration) { nodes_[node].paused_until = now_ + duration; }
  void cut(std::size_t from, std::size_t to) { cut_[from][to] = true; }
  /// A cut that outlasts all other faults.
  void cut_for_good(std::size_t from, std::size_t to) {
    cut_[from][to] = stays_cut_[from][to] = true;
  }
  void cut_both(std::size_t a, std::size_t b);
  /// Nodes whose bit of `side` is set hear those of the other side no longer, and vice versa.
  void partition(std::uint32_t side);
  /// The node hears nothing any more.
  void deafen(std::size_t node);
  /// Nobody hears the node any more.
  void mute(std::size_t node);
  void heal() { cut_ = stays_cut_; }
  /// The keeper outside answers nothing for so long.
  void stop_keeper(Duration duration);
  void cut_from_keeper(std::size_t node) { cut_from_keeper_[node] = true; }
  void leave(std::size_t node) {
    nodes_[node].wants_to_leave = true;
    tell(node, LeaveAsked{});
  }
  /// The next attempt of the node leads to another state, or fails.
  void be_odd(std::size_t node) { nodes_[node].is_odd = true; }
  void fail_once(std::size_t node) { nodes_[node].fails = true; }
  std::size_t join(Duration ready_after, bool as_witness = false);
  /// The joiner asks this node alone, unless it learns of others.
  std::size_t join_by_way_of(std::size_t contact, const std::string& token = {});
  /// From the next step on the node attempts nothing until others have joined.
  void wait_for_joiners(std::size_t node) { nodes_[node].waits = true; }

  /// Two of the first members are cut from each other for good, in one direction or both.
  void cut_a_pair_for_good();
  /// Faults that the seed chooses, until kFaults.
  void make_faults();
  /// Ends all faults after kFaults; returns what was violated, or nothing.
  std::optional<std::string> run();
  /// Runs until `until` without judging progress.
  std::optional<std::string> run_until(Duration until);

  const Membership& member(std::size_t node) const { return nodes_[node].member; }
  /// When the member entered its view, and when it committed last.
  Duration entered(std::size_t node) const { return nodes_[node].entered; }
  Duration committed_at(std::size_t node) const { return nodes_[node].committed_at; }
  std::uint64_t committed_by(std::size_t node) const { return nodes_[node].commits; }
  /// Attempts of the node that had begun when another view came.
  std::uint64_t interrupted(std::size_t node) const { return nodes_[node].interrupted; }
  std::uint64_t events() const { return handled_; }
  bool had_to_go_on() const { return must_go_on_; }
  /// Joiners that were admitted.
  std::size_t joined() const;
  const AgreementCheck& check() const { return check_; }
  const std::optional<SimulatedKeeper>& keeper() const { return keeper_; }
  bool all_have_ended() const;
  bool somebody_crashed_or_left() const;
  /// How far everybody is.
  std::string describe() const;

 private:
  struct Node {
    MemberId id;
    Membership member;
    bool lives = true;
    bool is_odd = false;
    bool fails = false;
    bool wants_to_leave = false;
    bool waits = false;                   ///< for joiners
    bool is_attempting = false;           ///< its attempt has begun
    std::uint64_t interrupted = 0;        ///< such attempts
    std::string token{};                  ///< that a joiner has shown
    bool is_ready = false;                ///< a joiner
    std::vector<std::size_t> contacts{};  ///< of a joiner
    Duration paused_until{};
    std::optional<std::size_t> commits_when_known{};  ///< to the owner, of a joiner that is ready
    std::uint64_t commits = 0;
    std::optional<std::uint64_t> commits_when_quiet{};
    Duration entered{};
    Duration committed_at{};
    std::optional<Duration> without_links{};  ///< since when its attempt has waited for them
  };
  enum class Kind : std::uint8_t { kTick, kDeliver, kAsk, kAttemptDone, kScript };
  struct Happening {
    Kind kind = Kind::kTick;
    std::size_t node = 0;
    std::size_t index = 0;  ///< of the letter or script
    std::uint64_t lineage = 0;
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;
  };
  struct Scheduled {
    Duration when;
    std::uint64_t order;
    Happening event;
    bool operator<(const Scheduled& other) const {
      return std::pair(other.when, other.order) < std::pair(when, order);
    }
  };

  Clock::time_point time() const { return Clock::time_point(seconds(3600) + now_); }
  Duration any_duration(Duration most);
  bool happens(double probability);
  void push(Duration when, Happening event) { events_.push({when, order_++, event}); }
  static bool acts(const Node& node) {
    return node.lives && node.member.view() && !node.member.ended() && !node.member.has_left();
  }
  void add_node(const MemberId& id, Membership member);
  void any_fault();
  void any_fault_of_keeper();
  void ask_keeper(std::size_t node, const ChainQuestion& question);
  void bring_answer(std::size_t node, const ChainAnswered& answer);
  Duration any_delay();
  void handle_next();
  void handle(const Happening& event);
  void forget(const Happening& event);
  void tell(std::size_t node, const Event& event);
  void post(std::size_t from, const Letter& letter);
  void take_news(std::size_t node, const std::optional<View>& before);
  std::size_t add_joiner(std::vector<MemberId> contacts, bool as_witness, std::string token);
  void deliver(std::size_t node, Letter letter);
  void enter(std::size_t node, const View& view);
  void ask_to_begin(const Happening& event);
  void attempt(std::size_t node, Kind kind, Duration after);
  bool is_of_next_step(const Happening& event) const;
  bool must_wait_for_links(const Happening& event);
  bool is_cut(std::size_t a, std::size_t b) const { return cut_[a][b] || cut_[b][a]; }
  bool has_all_links(const View& view) const;
  std::size_t lasting_cuts(const std::vector<MemberId>& keepers) const;
  void finish_attempt(const Happening& event);
  bool has_gone_on();
  bool must_go_on() const;
  bool must_go_on_with_keeper() const;
  bool must_be_admitted(const Node& joiner) const;
  bool most_act(const std::vector<MemberId>& keepers) const;

  Scenario scenario_;
  std::map<std::pair<std::uint64_t, std::string>, MemberId> admitted_;  ///< by lineage and token
  std::mt19937_64 random_;
  Settings settings_;
  AgreementCheck check_;
  Duration now_{};
  std::uint64_t order_ = 0;
  std::uint64_t handled_ = 0;
  bool quiet_ = false;       ///< faults have ended
  bool must_go_on_ = false;  ///< a majority of keepers was there when faults had ended
  std::vector<Node> nodes_;
  using Links = std::array<std::array<bool, kMostNodes>, kMostNodes>;
  Links cut_{};  ///< from, to
  Links stays_cut_{};
  std::optional<SimulatedKeeper> keeper_;
  Duration keeper_down_until_{};
  std::array<bool, kMostNodes> cut_from_keeper_{};
  std::priority_queue<Scheduled> events_;
  std::vector<std::function<void()>> scripts_;
  std::vector<Letter> letters_;
  std::vector<std::size_t> free_;  ///< places of letters_
};

/// A schedule in which letters take 1 to 41 ms and none is lost.
inline Scenario calm(std::uint64_t members, std::uint64_t witnesses = 0,
                     OnQuorumLoss policy = OnQuorumLoss::kStop) {
  Scenario scenario;
  scenario.members = members;
  scenario.witnesses = witnesses;
  scenario.on_quorum_loss = policy;
  scenario.loss = 0;
  scenario.copies = 0;
  scenario.late = 0;
  return scenario;
}

inline std::vector<MemberId> ids(std::initializer_list<std::uint64_t> numbers) {
  std::vector<MemberId> ids;
  for (const std::uint64_t number : numbers) ids.push_back(id_of(number));
  return ids;
}

inline void expect_view(const Simulation& simulation, std::size_t node,
                        std::initializer_list<std::uint64_t> members, std::uint64_t epoch) {
  const auto& view = simulation.member(node).view();
  ASSERT_TRUE(view);
  EXPECT_EQ(view->everybody(), ids(members)) << simulation.describe();
  EXPECT_EQ(view->epoch, epoch) << simulation.describe();
}

struct FoundViolation {
  std::uint64_t seed = 0;
  std::string text;
};

/// Returns the first of `most` schedules in which the members disagree; nothing where they never
/// do. `scenario_of(seed)` breaks a rule; faults come often here.
template <class ScenarioOf>
std::optional<FoundViolation> find_violation(std::uint64_t most, ScenarioOf&& scenario_of) {
  for (std::uint64_t seed = 1; seed <= most; ++seed) {
    Scenario scenario = scenario_of(seed);
    scenario.members = 3 + seed % 3;
    scenario.most_faults = 8;
    scenario.loss = 0.25;
    scenario.late = 0.2;
    scenario.beat = std::chrono::milliseconds(300);
    scenario.suspect_after = std::chrono::milliseconds(900);
    Simulation simulation(seed, scenario);
    simulation.make_faults();
    const std::optional<std::string> violation = simulation.run();
    if (violation && violation->find("no progress") != 0) return FoundViolation{seed, *violation};
  }
  return std::nullopt;
}

}  // namespace shoal::collective::membership
