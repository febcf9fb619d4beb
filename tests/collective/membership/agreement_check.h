#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/collective/membership/chain.h"
#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {

/// Knows what all members did, which no member does, and checks what must hold after every event.
/// It counts votes by itself, with the true majority, whatever rules the members follow.
class AgreementCheck {
 public:
  const std::optional<std::string>& violation() const { return violation_; }

  void first_view(const View& view) {
    note_view(view);
    for (const MemberId& keeper : view.keepers) note_holder(keeper, view);
    if (!view.kept_by.empty()) chosen_.insert({view.lineage, view.epoch});
  }

  /// Something else that must hold.
  void expect(bool holds, const std::string& what) {
    if (!holds) fail(what);
  }

  /// A member attempts a step.
  void attempted(const MemberId& by, const Place& place, const Digest& state) {
    attempts_[slot(place.lineage, place.epoch, place.step)][by] = state;
  }

  /// What a keeper has in its registers and holds.
  void note_keeper(const MemberId& keeper, const View& view, const Register& registers) {
    if (const auto& vote = registers.view()) {
      auto& votes = view_votes_[{view.lineage, view.epoch, vote->ballot}];
      const auto [entry, is_new] = votes.emplace(keeper, vote->view);
      if (is_new) count_view_votes(view, votes);
    }
    if (const auto& step = registers.step()) {
      auto& votes = step_votes_[slot(view.lineage, view.epoch, step->step)];
      const auto [entry, is_new] = votes.emplace(keeper, *step);
      if (!is_new && entry->second != *step) fail("a keeper accepted two values of one step");
      if (is_new && is_majority(votes.size(), view)) decided(view.lineage, view.epoch, *step);
    }
  }
  void note_holder(const MemberId& keeper, const View& view) {
    note_view(view);
    if (view.is_kept_by(keeper)) holders_[{view.lineage, view.epoch}].insert(keeper);
  }

  /// The keeper outside has created an entry of the chain.
  void chosen(const ChainSlot& slot, const ChainEntry& entry) {
    if (const auto* view = std::get_if<View>(&entry)) {
      chosen_.insert({view->lineage, view->epoch});
      note_view(*view);
    } else {
      decided(slot.lineage, slot.epoch, std::get<Outcome>(entry));
    }
  }

  /// A member acts in a view.
  void started(const View& view) {
    note_view(view);
    if (!view.kept_by.empty()) {
      return expect(chosen_.contains({view.lineage, view.epoch}),
                    "somebody acts in a view that the keeper does not know");
    }
    if (!is_majority(holders_[{view.lineage, view.epoch}].size(), view))
      fail(fmt::format("somebody acts in epoch {}, which too few of its keepers hold", view.epoch));
  }

  /// A member learns what a step came to, in a view of `lineage`; `attempted_in` is the view in
  /// which all have attempted it.
  void learned(std::uint64_t lineage, const View& attempted_in, const Outcome& outcome) {
    decided(lineage, attempted_in.epoch, outcome);
    if (outcome.kind != Outcome::Kind::kCommit) return;
    const auto& attempts = attempts_[slot(attempted_in.lineage, attempted_in.epoch, outcome.step)];
    for (const Member& member : attempted_in.members) {
      const auto attempt = attempts.find(member.id);
      if (attempt == attempts.end() || attempt->second != outcome.state) {
        fail(fmt::format("step {} is committed, and {} has not attempted it with this state",
                         outcome.step, member.id.text()));
      }
    }
  }

  /// How far a member is. It never goes back, into a fork neither.
  void note_place(const MemberId& who, const Place& place) {
    std::uint64_t& step = steps_[who];
    if (place.step < step)
      fail(fmt::format("{} goes back from step {} to {}", who.text(), step, place.step));
    step = place.step;
  }

  std::size_t lineages() const {
    std::set<std::uint64_t> lineages;
    for (const auto& [name, view] : views_) lineages.insert(name.first);
    return lineages.size();
  }
  std::size_t views() const { return views_.size(); }
  std::size_t commits() const { return commits_.size(); }

 private:
  using SlotOfStep = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
  static SlotOfStep slot(std::uint64_t lineage, std::uint64_t epoch, std::uint64_t step) {
    return {lineage, epoch, step};
  }
  static bool is_majority(std::size_t votes, const View& view) {
    return 2 * votes > view.keepers.size();
  }
  void fail(std::string what) {
    if (!violation_) violation_ = std::move(what);
  }

  void count_view_votes(const View& view, const std::map<MemberId, View>& votes) {
    for (const auto& candidate_of : votes) {
      const View& candidate = candidate_of.second;
      const auto agreeing = std::count_if(
          votes.begin(), votes.end(), [&](const auto& vote) { return vote.second == candidate; });
      if (is_majority(static_cast<std::size_t>(agreeing), view)) note_view(candidate);
    }
  }

  // One view for an epoch of a lineage, and it begins behind everything that was committed.
  void note_view(const View& view) {
    const auto [entry, is_new] = views_.emplace(std::pair(view.lineage, view.epoch), view);
    if (!is_new) {
      if (entry->second != view) fail(fmt::format("epoch {} has two different views", view.epoch));
      return;
    }
    for (const auto& [step, commit] : commits_) {
      if (step.first == view.lineage && commit.first < view.epoch &&
          step.second >= view.first_step) {
        fail(fmt::format("step {} is committed in epoch {}, and undone by epoch {}", step.second,
                         commit.first, view.epoch));
      }
    }
  }

  void decided(std::uint64_t lineage, std::uint64_t epoch, const Outcome& outcome) {
    const auto [entry, is_new] = outcomes_.emplace(slot(lineage, epoch, outcome.step),
                                                   std::pair(outcome.kind, outcome.state));
    if (entry->second != std::pair(outcome.kind, outcome.state))
      fail(fmt::format("step {} of epoch {} came to two different things", outcome.step, epoch));
    if (!is_new || outcome.kind != Outcome::Kind::kCommit) return;
    const auto [commit, is_first] =
        commits_.emplace(std::pair(lineage, outcome.step), std::pair(epoch, outcome.state));
    if (!is_first) fail(fmt::format("step {} is committed in two epochs", outcome.step));
    for (const auto& [name, view] : views_) {
      if (name.first == lineage && name.second > epoch && view.first_step <= outcome.step) {
        fail(fmt::format("step {} is committed in epoch {}, and undone by epoch {}", outcome.step,
                         epoch, name.second));
      }
    }
  }

  std::optional<std::string> violation_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, View> views_;  // by lineage and epoch
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::set<MemberId>> holders_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, Ballot>, std::map<MemberId, View>> view_votes_;
  std::map<SlotOfStep, std::map<MemberId, Outcome>> step_votes_;
  std::map<SlotOfStep, std::pair<Outcome::Kind, Digest>> outcomes_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<std::uint64_t, Digest>>
      commits_;  // by lineage and step: epoch and state
  std::set<std::pair<std::uint64_t, std::uint64_t>> chosen_;  // by lineage and epoch
  std::map<SlotOfStep, std::map<MemberId, Digest>> attempts_;
  std::map<MemberId, std::uint64_t> steps_;
};

}  // namespace shoal::collective::membership
