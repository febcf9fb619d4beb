#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "shoal/train/config/metrics.h"
#include "tests/apps/churn/churning_group.h"

namespace shoal::apps::testing {

/// Members to which a seed lets things happen, until the time is over; then every step that any of
/// them has committed is the same for all and that of `shoal replay`, and no sample is lost or
/// trained twice. SHOAL_CHURN_SEED chooses what happens, SHOAL_CHURN_SECONDS how long. Where
/// network namespaces can be made, the links between members are part of it; otherwise only
/// processes are.
class RandomChurn : public ChurningGroup {
 protected:
  using milliseconds = std::chrono::milliseconds;
  using steady_clock = std::chrono::steady_clock;

  void SetUp() override {
    folder_.write("undisturbed.toml", job());
    folder_.write("key", "a secret of the members\n");
  }

  /// Makes the sites, and `sites` more. The seed and the seconds are those where none are set.
  void begin(unsigned seed, double seconds, int sites) {
    seed_ = static_cast<unsigned>(number_in("SHOAL_CHURN_SEED", seed));
    seconds_ = number_in("SHOAL_CHURN_SECONDS", seconds);
    std::printf("SHOAL_CHURN_SEED=%u SHOAL_CHURN_SECONDS=%g\n", seed_, seconds_);
    std::fflush(stdout);
    random_.seed(seed_);
    delay_ = milliseconds(below(3) * 10);
    make_sites(delay_, sites);
  }
  /// Writes the job with more keys of [elastic], and lets four members churn.
  void expect_replay_of_churn(const std::string& keys) {
    // A busy machine is no reason to leave.
    write_job("suspect_after_s = 2\nquorum_patience_s = 4\n" + keys);
    for (int i = 0; i < 4; ++i) add();
    wait_until_all_train_in_one_view();
    const auto until = steady_clock::now() + std::chrono::duration<double>(seconds_);
    while (steady_clock::now() < until && !HasFailure()) {
      if (!happens_to_keeper()) happen();
      wait_until_all_train_in_one_view();
      if (!HasFailure()) heal(delay_);
      if (!HasFailure()) wait_until_all_train_in_one_view();
    }
    if (HasFailure()) return;
    for (Member* member : all_living()) {
      const Outcome outcome = end(*member, SIGTERM);
      EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
    }
    expect_one_history();
  }
  /// Lets something happen to a keeper outside of the group; returns false where nothing did.
  virtual bool happens_to_keeper() { return false; }

  /// A number below `bound`.
  std::size_t below(std::size_t bound) { return random_() % bound; }
  milliseconds up_to(int longest) {
    return milliseconds(below(static_cast<std::size_t>(longest) + 1));
  }
  Member& one_of(const std::vector<Member*>& members) { return *members[below(members.size())]; }

  /// Says what happens when it does: a run that hangs and is killed has told its story.
  void note(const std::string& what) {
    ++counts_[what.substr(0, std::min(what.find(':'), what.find(" of step")))];
    const std::chrono::duration<double> at = steady_clock::now() - begin_;
    std::printf("%7.2f s: %s\n", at.count(), what.c_str());
    std::fflush(stdout);
  }

  /// Something that a member does not survive in the group.
  void lose_one(Member& member, bool is_owner) {
    const std::string who = fmt::format(": {}{}", member.name, is_owner ? ", the owner" : "");
    switch (below(has_sites() ? 5 : 2)) {
      case 0:
        // At any moment of its step.
        std::this_thread::sleep_for(std::chrono::microseconds(below(20000)));
        note("kill" + who);
        return kill(member);
      case 1:
        note("stop" + who);
        return stop(member);
      case 2:
        note("blackhole" + who);
        return part({&member});
      case 3:
        note("mute" + who);
        return cut_one_way(member, true);
      default:
        note("deaf" + who);
        return cut_one_way(member, false);
    }
  }
  /// Something that all members survive.
  void disturb(const std::vector<Member*>& members) {
    Member& member = one_of(members);
    switch (below(has_sites() ? 4 : 1)) {
      case 0:
        note("delay: " + member.name);
        member.program->signal(SIGSTOP);
        std::this_thread::sleep_for(up_to(400));
        member.program->signal(SIGCONT);
        return;
      case 1:
        note("slow links: " + member.name);
        make_slow(member, milliseconds(50) + up_to(150), 0);
        break;
      case 2:
        note("lossy links: " + member.name);
        make_slow(member, delay_, 0.05);
        break;
      default: {
        Member& other = members[0] == &member ? *members[1] : *members[0];
        note(fmt::format("cut between: {} and {}", member.name, other.name));
        cut_between(member, other);
      }
    }
    std::this_thread::sleep_for(up_to(3000));
    restore_links(member, delay_);
  }
  /// Two that are not lost otherwise hear each other no more: the later one in the view goes.
  void part_a_pair(const std::vector<Member*>& members) {
    const std::size_t later = 1 + below(members.size() - 1);
    const std::size_t earlier = below(later);
    note(fmt::format("part a pair: {}{} and {}", members[earlier]->name,
                     earlier == 0 ? ", the owner," : "", members[later]->name));
    cut_between(*members[earlier], *members[later]);
    lose(*members[later], kPeerLost);
  }
  void join() {
    note(fmt::format("join: run-{}", members_.size()));
    add();
  }
  void leave_one(Member& member) {
    note("leave: " + member.name);
    leave(member, below(2) == 0 ? SIGTERM : SIGINT);
  }
  /// Parts the group so that most keepers are on one side.
  void part_two(const std::vector<Member*>& members) {
    const std::size_t first = below(members.size());
    // Of four members the first three are keepers, so one of those two is the last.
    const std::size_t second = members.size() == 4 ? 3 : (first + 1 + below(4)) % 5;
    if (first == second) return part_two(members);
    note(fmt::format("partition {}|2: {} and {}", members.size() - 2, members[first]->name,
                     members[second]->name));
    part({members[first], members[second]});
  }
  /// A joiner that is killed before it is a member, or when it has just become one.
  void kill_a_joiner() {
    if (below(2) == 0) {
      note(fmt::format("kill a joiner that takes the state: run-{}", members_.size()));
      return lose(add({"debug.fault=kill", "debug.fault_step=1", "debug.fault_action=take"}),
                  std::nullopt);
    }
    note(fmt::format("kill a joiner: run-{}", members_.size()));
    Member& joiner = add();
    std::this_thread::sleep_for(up_to(3000));
    kill(joiner);
  }

  /// A joiner that is killed in a step to come, at one of the places that a member goes through.
  void kill_at_a_place() {
    constexpr std::array kPlaces = {"0F1", "reduce", "update", "report", "commit", "view"};
    const std::string place = kPlaces.at(below(kPlaces.size()));
    // It dies in the first view behind that of its joining.
    const double seconds = place == "view" ? 0 : 3 + 0.5 * static_cast<double>(below(6));
    const std::int64_t step = step_in(seconds);
    note(fmt::format("kill at {} of step {}: run-{}", place, step, members_.size()));
    Member& member = add({"debug.fault=kill", fmt::format("debug.fault_step={}", step),
                          fmt::format("debug.fault_action={}", place)});
    die_by_itself(member);
    wait_until_all_train_in_one_view();
    if (HasFailure()) return;
    if (place == "view" && member.lives) {
      std::vector<Member*> others = all_living();
      std::erase(others, &member);
      leave_one(one_of(others));
    }
    // Where it has joined too late it stays.
    const auto until = steady_clock::now() + std::chrono::minutes(1);
    while (!member.program->ended() &&
           (place == "view" || last_step(member.name).step <= step + 3 * steps_of_a_commit())) {
      ASSERT_LT(steady_clock::now(), until) << member.name << " has not died";
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  std::int64_t steps_of_a_commit() const { return std::max<std::int64_t>(1, round_); }
  /// Returns the step at whose end the group will commit in about so many seconds.
  std::int64_t step_in(double seconds) const {
    constexpr double kMeasured = 0.5;
    const std::string name = all_living().front()->name;
    const std::int64_t first = last_step(name).step;
    std::this_thread::sleep_for(std::chrono::duration<double>(kMeasured));
    const std::int64_t now = last_step(name).step;
    const std::int64_t step =
        now + 1 + std::llround(static_cast<double>(now - first) / kMeasured * seconds);
    const std::int64_t of_commit = steps_of_a_commit();
    return (step + of_commit - 1) / of_commit * of_commit;
  }
  /// A joiner that has a wrong state behind its first step: it is removed.
  void join_with_a_wrong_state() {
    note(fmt::format("wrong state: run-{}", members_.size()));
    Member& joiner = add({"debug.fault=flip", "debug.fault_step=1", "debug.fault_action=take"});
    lose(joiner, kPeerLost);
  }
  /// A joiner that gives a wrong state to those that come later.
  void join_as_liar() {
    note(fmt::format("lying provider: run-{}", members_.size()));
    liar_ = &add({"debug.fault=flip", "debug.fault_step=1", "debug.fault_action=give"});
    liars_.insert(liar_);
  }
  /// Returns how often joiners have named somebody who gave them a wrong state, which must be one
  /// that did.
  int accusations() const {
    std::set<std::string> ids;
    for (const Member* liar : liars_) ids.insert(id_of(*liar).value_or(""));
    // The second form is that of one who gets the state for a joiner.
    const std::regex accusation("member ([0-9a-f]+)(: it)? has sent a state with digest");
    int count = 0;
    for (const auto& member : members_) {
      std::istringstream log(folder_.read(member->name + "/logs/rank-0.log"));
      for (std::string line; std::getline(log, line);) {
        std::smatch accused;
        if (!std::regex_search(line, accused, accusation)) continue;
        ++count;
        EXPECT_TRUE(ids.contains(accused[1])) << line;
      }
    }
    return count;
  }

  /// What happens next, until the group trains again. The members that are left always have most
  /// keepers, of which there is an odd number, among them.
  void happen() {
    const std::vector<Member*> members = in_order();
    if (members.size() < 3) {
      join();
      if (below(2) == 0) join();
      return;
    }
    // Two may be lost at once where an etcd keeps decisions: the one that gives wrong states must
    // not be the last.
    if (members.size() == 3) {
      for (Member* member : members)
        if (member == liar_) return leave_one(*member);
    }
    const bool has_room = members.size() < kMostMembers;
    switch (below(has_sites() ? 11 : 10)) {
      case 0:
        return has_room ? join() : disturb(members);
      case 1:
        return leave_one(one_of(members));
      case 2:
        return disturb(members);
      case 3:
        if (has_sites() && members.size() > 3) return part_two(members);
        return lose_one(*members[0], true);
      case 4:
        return has_room ? kill_a_joiner() : lose_two(members);
      case 5:
        return lose_one(*members[0], true);
      case 6: {
        const std::size_t place = below(members.size());
        return lose_one(*members[place], place == 0);
      }
      case 8:
        return has_room ? kill_at_a_place() : lose_two(members);
      case 9:
        if (!has_room) return lose_two(members);
        // Somebody must have the right state.
        return liar_ && liar_->lives ? join_with_a_wrong_state() : join_as_liar();
      case 10:
        return part_a_pair(members);
      default:
        return two_things(members);
    }
  }
  /// Of five members any two may be lost, at once or one while the others still decide about the
  /// other.
  void lose_two(const std::vector<Member*>& members) {
    const std::size_t first = below(5);
    const std::size_t second = (first + 1 + below(4)) % 5;
    lose_one(*members[first], first == 0);
    std::this_thread::sleep_for(up_to(4000));
    lose_one(*members[second], second == 0);
  }
  void two_things(const std::vector<Member*>& members) {
    const std::size_t place = below(members.size());
    std::vector<Member*> others = members;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(place));
    const bool has_room = members.size() < kMostMembers;
    const bool first = below(2) == 0;
    const auto lose = [&] { lose_one(*members[place], place == 0); };
    if (first) lose();
    if (first) std::this_thread::sleep_for(up_to(4000));
    if (has_room && below(2) == 0) {
      // The contacts are those that are there; the one that is about to be lost may be among them.
      join();
    } else if (members.size() > 3 && below(2) == 0) {
      leave_one(one_of(others));
    } else {
      disturb(others);
    }
    if (first) return;
    std::this_thread::sleep_for(up_to(2000));
    lose();
  }

  /// An undisturbed run of the same samples has the same losses, but for the order of additions.
  void expect_losses_of_an_undisturbed_run(std::int64_t steps) {
    const Outcome undisturbed =
        run({shoal_program(), "train", "undisturbed.toml", "--run-dir", "undisturbed", "--set",
             fmt::format("training.steps={}", steps)},
            folder_.path());
    ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
    std::map<std::int64_t, double> losses;
    for (const auto& line :
         train::read_metrics((folder_.path() / "undisturbed/metrics.jsonl").string()))
      losses[line.step] = line.loss;
    for (const auto& member : members_) {
      for (const auto& line :
           train::read_metrics((folder_.path() / member->name / "metrics.jsonl").string())) {
        if (line.step <= steps) {
          EXPECT_NEAR(line.loss, losses.at(line.step), 1e-3 * losses.at(line.step) + 1e-6)
              << "step " << line.step;
        }
      }
    }
  }

  void expect_one_history() {
    const auto steps = all_steps();
    const auto branch = branch_to(furthest_of(steps), steps);
    EXPECT_EQ(branch.size(), steps.size()) << "there are two branches";
    expect_replay_of(branch, "run-0", "whole");
    const std::int64_t step_number = branch.back().step;
    for (const auto& [event, count] : counts_) std::printf("%s %d, ", event.c_str(), count);
    std::printf("%d wrong states named, ", accusations());
    std::printf("%lld steps by %zu processes\n", static_cast<long long>(step_number),
                members_.size());
    if (round_ == 0) expect_losses_of_an_undisturbed_run(std::min<std::int64_t>(step_number, 300));
  }

  unsigned seed_ = 0;
  double seconds_ = 0;
  milliseconds delay_{0};  ///< of each link, one way
  std::mt19937 random_;
  steady_clock::time_point begin_ = steady_clock::now();
  const Member* liar_ = nullptr;  ///< the last one
  std::set<const Member*> liars_;
  std::map<std::string, int> counts_;
};

}  // namespace shoal::apps::testing
