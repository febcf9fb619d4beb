#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "tests/apps/churn/elastic_members.h"
#include "tests/emulation/wan.h"

namespace shoal::apps::testing {

/// Members of an elastic job to which several things happen at once. Where sites can be made, each
/// lies at one of its own, and links can be cut; otherwise all are on loopback.
class ChurningGroup : public ElasticMembers {
 protected:
  static constexpr std::size_t kMostMembers = 5;
  /// Those that are lost keep their site until they have ended.
  static constexpr int kSites = 8;
  static constexpr int kPeerLost = 202;  ///< the exit code of a member that the others have removed
  /// Seconds in which a group must commit again whatever has happened to it.
  static constexpr double kLongestRecovery = 90;

  /// `others`: sites behind those of the members, where no member lies.
  void make_sites(std::chrono::milliseconds delay, int others = 0) {
    if (!emulation::Wan::unavailable().empty()) return;
    wan_ = std::make_unique<emulation::Wan>(kSites + others);
    wan_->set_all(links_of(delay));
  }
  bool has_sites() const { return wan_ != nullptr; }
  const emulation::Wan& wan() const { return *wan_; }

  /// Starts a member that joins two of those that live, or the one that begins the group.
  Member& add(const std::vector<std::string>& sets = {}) {
    const int site = free_site();
    std::vector<std::string> more;
    if (wan_)
      more = {"--set", "elastic.listen=" + wan_->address(site), "--set", "elastic.key_file=key"};
    std::vector<Member*> contacts = all_living();
    for (std::size_t i = 0; i < std::min<std::size_t>(2, contacts.size()); ++i)
      more.insert(more.end(), {"--join", address(contacts[i]->name)});
    for (const std::string& set : sets) more.insert(more.end(), {"--set", set});
    const std::string name = fmt::format("run-{}", members_.size());
    Member* const member = wan_ ? wan_->at(site, [&] { return &ElasticMembers::start(name, more); })
                                : &ElasticMembers::start(name, more);
    site_[member] = site;
    return *member;
  }

  /// The members in the order of their last view. Those that have joined it since are not there.
  std::vector<Member*> in_order() const {
    std::map<std::string, Member*> by_id;
    const std::vector<Member*> living = all_living();
    train::LineageStep last;
    for (Member* member : living) {
      const train::LineageStep step = last_step(member->name);
      if (step.step > last.step) last = step;
      if (const auto id = id_of(*member)) by_id[*id] = member;
    }
    std::vector<Member*> ordered;
    for (const train::LineageMember& member : last.members) {
      const auto found = by_id.find(member.id);
      if (found != by_id.end()) ordered.push_back(found->second);
    }
    return ordered;
  }

  /// The id by which others know a member; nothing before it is one.
  std::optional<std::string> id_of(const Member& member) const {
    const std::string text = folder_.read(member.name + "/address");
    const std::size_t line = text.find('\n');
    if (line == std::string::npos) return std::nullopt;
    return text.substr(line + 1, text.size() - line - 2);
  }

  /// Waits until those that live, and no others, have committed a few steps in one view.
  void wait_until_all_train_in_one_view() {
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    // Behind its first commit with a joiner a group may get more keepers.
    constexpr std::int64_t kSteps = 3;
    std::optional<std::int64_t> first;
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
      const std::vector<Member*> living = all_living();
      std::set<std::int64_t> epochs;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      bool complete = true;
      for (Member* member : living) {
        if (fated_.contains(member) && member->program->ended()) lose(*member, std::nullopt);
        if (!member->lives) continue;
        if (ended_unasked(*member)) return;
        const train::LineageStep step = last_step(member->name);
        complete = complete && step.members.size() == living.size();
        epochs.insert(step.epoch);
        least = std::min(least, step.step);
      }
      complete = complete && epochs.size() == 1 && living.size() == all_living().size();
      if (complete && !first) first = least;
      if (complete && least >= *first + kSteps) return;
      if (seconds() < kLongestRecovery) continue;
      ADD_FAILURE() << "after " << seconds() << " s the members do not train together";
      return;
    }
  }

  /// This one kills itself one day.
  void die_by_itself(const Member& member) { fated_.insert(&member); }

  // What happens to members. Those that are lost by it are noted, and how they must end.

  void kill(Member& member) {
    member.program->signal(SIGKILL);
    lose(member, std::nullopt);
  }
  void stop(Member& member) {
    member.program->signal(SIGSTOP);
    stopped_.push_back(&member);
    lose(member, kPeerLost);
  }
  void leave(Member& member, int signal) {
    member.program->signal(signal);
    lose(member, 128 + signal);
  }
  /// Cuts these off from all others.
  void part(const std::vector<Member*>& side) {
    for (Member* member : side) {
      for (int other = 0; other < wan_->sites(); ++other) {
        if (is_at(side, other)) continue;
        open(site_.at(member), other, false);
        open(other, site_.at(member), false);
      }
      lose(*member, kPeerLost);
    }
  }
  /// Cuts what a member says to others, or what it hears of them. Sites without members are cut off
  /// in both directions: what is asked there in vain would be carried out all the same.
  void cut_one_way(Member& member, bool what_it_says) {
    const int own = site_.at(&member);
    for (int other = 0; other < wan_->sites(); ++other) {
      if (other == own) continue;
      if (what_it_says || other >= kSites) open(own, other, false);
      if (!what_it_says || other >= kSites) open(other, own, false);
    }
    lose(member, kPeerLost);
  }
  /// Cuts two members from each other; both are heard by the others.
  void cut_between(const Member& one, const Member& other) { cut_from_site(one, site_.at(&other)); }
  void cut_from_site(const Member& member, int site) {
    open(site_.at(&member), site, false);
    open(site, site_.at(&member), false);
  }
  /// Makes the links of a member bad for a while, but nobody is lost.
  void make_slow(Member& member, std::chrono::milliseconds delay, double loss) {
    for (int other = 0; other < wan_->sites(); ++other) {
      if (other == site_.at(&member)) continue;
      auto spec = wan_->spec(site_.at(&member), other);
      spec.delay = delay;
      spec.loss = loss;
      wan_->set_both(site_.at(&member), other, spec);
    }
  }

  /// Makes the links between a member and those that live what they were.
  void restore_links(Member& member, std::chrono::milliseconds delay) {
    if (!wan_) return;
    for (Member* other : all_living()) {
      if (other == &member) continue;
      wan_->set_both(site_.at(&member), site_.at(other), links_of(delay));
    }
    for (int other = kSites; other < wan_->sites(); ++other)
      wan_->set_both(site_.at(&member), other, links_of(delay));
  }

  /// Opens the links, wakes who stood still, and waits for all that are lost to end as they must.
  void heal(std::chrono::milliseconds delay) {
    if (wan_) wan_->set_all(links_of(delay));
    for (Member* member : std::exchange(stopped_, {})) member->program->signal(SIGCONT);
    for (const auto& [member, code] : std::exchange(lost_, {})) {
      const Outcome outcome = member->program->wait(60);
      site_.erase(member);
      if (code) {
        EXPECT_EQ(outcome.code, *code) << member->name << " (signal " << outcome.signal << ")\n"
                                       << outcome.err;
      } else {
        EXPECT_EQ(outcome.signal, SIGKILL) << member->name << "\n" << outcome.err;
      }
    }
  }

  /// Notes that this one lives no longer, and with which code it ends; without one by SIGKILL.
  void lose(Member& member, std::optional<int> code) {
    member.lives = false;
    lost_.emplace_back(&member, code);
  }

 private:
  static emulation::LinkSpec links_of(std::chrono::milliseconds delay) {
    return {.delay = delay, .bits_per_second = 1e9};
  }
  /// Reports a member that has ended though nothing was done to it.
  bool ended_unasked(Member& member) {
    if (!member.program->ended()) return false;
    ADD_FAILURE() << member.name << " has ended, and nothing was done to it";
    return true;
  }
  int free_site() const {
    std::set<int> taken;
    for (const auto& [member, site] : site_) taken.insert(site);
    int site = 0;
    while (taken.contains(site)) ++site;
    return site;
  }
  bool is_at(const std::vector<Member*>& side, int site) const {
    return std::any_of(side.begin(), side.end(),
                       [&](const Member* member) { return site_.at(member) == site; });
  }
  void open(int from, int to, bool open) {
    auto spec = wan_->spec(from, to);
    spec.open = open;
    wan_->set(from, to, spec);
  }

  std::unique_ptr<emulation::Wan> wan_;
  std::map<const Member*, int> site_;  ///< of those whose process is there
  std::set<const Member*> fated_;
  std::vector<Member*> stopped_;
  std::vector<std::pair<Member*, std::optional<int>>> lost_;  ///< with their exit code, if any
};

}  // namespace shoal::apps::testing
