// The next view: why, by whom, and who must hold it before anybody acts in it.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/collective/membership/admission.h"
#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {

// Those that the next view is to be without, though they may not want to leave. Never this member
// itself: if it must go, the others say so.
std::set<MemberId> Membership::lost_members() const {
  std::set<MemberId> lost = suspicion_.gone(now_);
  if (rules_.parts_broken_pairs)
    lost.merge(pairs_.to_remove(*view_, lost, settings_.quorum_patience));
  lost.erase(self_.id);
  return lost;
}

bool Membership::must_change(const std::set<MemberId>& lost) const {
  // A witness that is gone is removed as well, whether it is a keeper or not.
  return !lost.empty() || aborted_ || held_ || is_sealed();
}

bool Membership::may_change_between_steps() const {
  if (step_) return false;
  if (leaving_ || !leavers_.empty()) return true;
  return wants_another_view() && interrupts_no_attempt();
}

// How many must fail before it is this member's turn to propose the next view. Those that hold the
// next one come after the keepers that decided it. Where the keeper is outside, any member may ask
// it, so the others come after them.
std::optional<std::size_t> Membership::place_in_line(const std::set<MemberId>& lost) const {
  std::size_t place = 0;
  const auto find_in = [&](const std::vector<MemberId>& keepers) {
    for (const MemberId& keeper : keepers) {
      if (keeper == self_.id) return true;
      if (!lost.contains(keeper)) ++place;
    }
    return false;
  };
  if (find_in(view_->keepers) || (held_ && find_in(held_->keepers))) return place;
  if (!uses_chain()) return std::nullopt;
  std::vector<MemberId> others = view_->everybody();
  std::erase_if(others, [&](const MemberId& id) { return view_->is_kept_by(id); });
  return find_in(others) ? std::optional(place) : std::nullopt;
}

void Membership::consider_change() {
  if (!view_ || ended_ || left_ || fork_promised_) return;
  const std::set<MemberId> lost = lost_members();
  const auto place = place_in_line(lost);
  if (!place) return;
  if (!must_change(lost) && !(*place == 0 && may_change_between_steps())) {
    change_wanted_.reset();
    // Whoever was missed is back. A view that the keeper outside has created all the same is found
    // by the next question for that entry.
    if (is_asking_for_view()) question_.reset();
    return;
  }
  if (!change_wanted_) change_wanted_ = now_;
  if (uses_chain() && may_lack_state() && !held_) return watch_providers(lost);
  if (change_ || holding_ || (question_ && !held_)) return;
  // Two that take turns in refusing each other wait for different times.
  const auto index =
      std::find(view_->keepers.begin(), view_->keepers.end(), self_.id) - view_->keepers.begin();
  // Those who fall silent at once are accused one after the other: a beat later all of them are.
  // Of two sides that both reach the keeper outside, the one without most keepers goes last: a
  // member that hears nobody must not remove all others.
  const bool goes_last = uses_chain() && !hears_majority();
  const auto wait = (goes_last ? 2 * settings_.stand_in : Duration::zero()) +
                    (lost.empty() ? Duration::zero() : settings_.beat) +
                    settings_.stand_in * static_cast<int>(*place) +
                    settings_.repeat * static_cast<int>(std::min<std::uint64_t>(refusals_, 8)) *
                        static_cast<int>(index);
  if (now_ - *change_wanted_ >= wait) begin_change();
}

// The members that decided on the view that this joiner keeps may all have left, and their letter
// that says that it begins may be lost. So the joiner finds out by itself who holds it.
void Membership::hold_as_joiner() {
  if (!held_ || holding_ || left_ || ended_) return;
  const auto index =
      std::find(held_->keepers.begin(), held_->keepers.end(), self_.id) - held_->keepers.begin();
  const auto wait = settings_.stand_in * static_cast<int>(index + 1);
  if (now_ - *change_wanted_ < wait) return;
  const View view = *held_;
  begin_holding(view);
}

void Membership::begin_change() {
  if (held_) {
    const View next = *held_;
    return begin_holding(next);
  }
  const bool is_last = view_->members.size() == 1 && view_->has_member(self_.id);
  if (leaving_ && is_last && !has_ready_joiners()) {
    left_ = true;
    return;
  }
  if (uses_chain()) return propose_to_chain(last_outcome_);
  ++highest_round_;
  change_.emplace(view_->keepers, Ballot{.round = highest_round_, .proposer = self_.id}, rules_);
  send_to_all(change_->unanswered(), change_->request());
}

void Membership::advance_change() {
  if (change_->phase() == ViewDecision::Phase::kWishing) {
    View next = compose(change_->last_step());
    if (next.members.empty()) return end_without_members();
    change_->wish(std::move(next));
  }
  if (change_->phase() == ViewDecision::Phase::kDecided) {
    const View next = change_->view();
    return begin_holding(next);
  }
  if (change_->phase() == ViewDecision::Phase::kAccepting)
    send_to_all(change_->unanswered(), change_->request());
}

void Membership::end_without_members() {
  end(ErrorKind::kPeerLost, fmt::format("no member is left of the view of epoch {}", view_->epoch),
      "A witness has nothing to do any more.");
}

void Membership::repeat_change_letters() {
  if (change_) send_to_all(change_->unanswered(), change_->request());
  if (holding_) send_to_all(holding_->held.missing(), Hold{holding_->view});
}

// Whether this member is a keeper with a vote. Who holds the next view says so instead.
bool Membership::may_vote_on_views(const MemberId& proposer) {
  if (!register_ || fork_promised_) return false;
  if (held_) send(proposer, Hold{*held_});
  return !held_;
}

void Membership::take(const Letter& letter, const Prepare& request) {
  if (!may_vote_on_views(letter.from)) return;
  std::visit([&](const auto& answer) { send(letter.from, answer); }, register_->prepare(request));
  highest_round_ = std::max(highest_round_, register_->promised().round);
}

void Membership::take(const Letter& letter, const AcceptView& request) {
  if (!may_vote_on_views(letter.from)) return;
  std::visit([&](const auto& answer) { send(letter.from, answer); }, register_->accept(request));
  highest_round_ = std::max(highest_round_, register_->promised().round);
}

void Membership::take(const Letter& letter, const Promise& promise) {
  if (!change_) return;
  change_->on(letter.from, promise);
  advance_change();
}

void Membership::take(const Letter& letter, const AcceptedView& accepted) {
  if (!change_) return;
  change_->on(letter.from, accepted);
  advance_change();
}

void Membership::take(const Letter&, const Refusal& refusal) {
  highest_round_ = std::max(highest_round_, refusal.promised.round);
  if (!change_ || refusal.refused != change_->ballot()) return;
  change_.reset();
  ++refusals_;
  change_wanted_ = now_;
}

View Membership::compose(const std::optional<Outcome>& last_step) const {
  View next{.epoch = view_->epoch + 1,
            .lineage = view_->lineage,
            .parent = view_digest_,
            .first_step = view_->first_step,
            .state = view_->state,
            .samples = view_->samples,
            .members = {},
            .fresh = 0,
            .witnesses = {},
            .removed = {},
            .keepers = {},
            .admission = view_->admission,
            .kept_by = view_->kept_by};
  std::set<MemberId> without = lost_members();
  without.insert(leavers_.begin(), leavers_.end());
  if (leaving_) without.insert(self_.id);
  if (last_step) {
    const bool is_commit = last_step->kind == Outcome::Kind::kCommit;
    next.first_step = last_step->step + (is_commit ? 1 : 0);
    next.state = last_step->state;
    next.samples = last_step->samples;
    without.insert(last_step->odd.begin(), last_step->odd.end());
  }
  // Those that have joined stay fresh until a step is committed with them.
  const bool committed = next.first_step > view_->first_step;
  std::vector<Member> removed;
  for (const Member& member : view_->members) {
    const bool wants_to_leave = leavers_.contains(member.id) || (leaving_ && member.id == self_.id);
    if (!without.contains(member.id)) {
      next.members.push_back(member);
      if (!committed && view_->is_fresh(member.id)) ++next.fresh;
    } else if (!wants_to_leave) {
      removed.push_back(member);
    }
  }
  next.removed = add_removed(view_->removed, removed);
  // Where all want to leave, the proposer goes last.
  if (next.members.empty() && !has_ready_joiners() && view_->has_member(self_.id))
    next.members.push_back(self_);
  for (const Member& witness : view_->witnesses)
    if (!without.contains(witness.id)) next.witnesses.push_back(witness);
  next.keepers = choose_keepers(next.established(), next.witnesses);
  for (const auto& [id, waiting] : joiners_) {
    if (next.members.size() + next.witnesses.size() == View::kMostMembers) break;
    if (view_->has(id) || !waiting.join.ready) continue;
    if (!use_up(next.admission, waiting.token, settings_.wall_clock())) continue;
    (waiting.join.witness ? next.witnesses : next.members).push_back(waiting.join.who);
    if (!waiting.join.witness) ++next.fresh;
  }
  if (next.keepers.empty()) next.keepers = choose_keepers(next.members, next.witnesses);
  return next;
}

// The view is decided. If its proposer and most of the keepers that decided it failed now, nobody
// could know it: so most of its own keepers must hold it before anybody acts. A keeper outside
// knows it, and whoever is in the view may act; who is not waits until one that is knows it too.
void Membership::begin_holding(View view) {
  change_.reset();
  question_.reset();
  const Digest view_digest = digest(view);
  if (holding_ && holding_->digest == view_digest) return;
  asked_ = now_;
  // A fork that does not begin leaves what its members know of their own lineage as it was.
  const bool is_fork = view_ && view.lineage != place_.lineage;
  (is_fork ? fork_held_ : held_) = view;
  const Tally nobody(view.keepers);
  holding_ = Holding{.view = std::move(view), .digest = view_digest, .held = nobody};
  const std::vector<MemberId> keepers = holding_->view.keepers;
  send_to_all(keepers, Hold{holding_->view});
  if (!rules_.waits_for_holders || is_held()) announce_start();
}

void Membership::take(const Letter& letter, const Hold& hold) {
  const MemberId& from = letter.from;
  const View& view = hold.view;
  const bool keeps = view.is_kept_by(self_.id);
  if (!view_) {
    // Where all members leave, those that join are the first keepers.
    if (!keeps) return;
    if (!held_ || held_->lineage != view.lineage || held_->epoch < view.epoch) {
      held_ = view;
      change_wanted_ = now_;
      holding_.reset();
    }
    return send(from, Held{digest(view)});
  }
  if (view.lineage != place_.lineage) {
    if (!is_fork_of_this_view(view)) return;
    fork_held_ = view;
    if (keeps) send(from, Held{digest(view)});
    return;
  }
  if (view.epoch < place_.epoch) return send(from, Start{*view_});
  if (view.epoch == place_.epoch) return send(from, Held{view_digest_});
  if (!held_ || held_->lineage != view.lineage || held_->epoch < view.epoch) held_ = view;
  if (keeps) send(from, Held{digest(view)});
  // This member was proposing, and learns that something is decided already.
  if (change_ || is_asking_for_view()) begin_holding(view);
}

void Membership::take(const Letter& letter, const Held& held) {
  if (!holding_ || holding_->digest != held.view) return;
  holding_->held.count(letter.from);
  if (is_held()) announce_start();
}

bool Membership::is_held() const {
  if (!uses_chain()) return holding_->held.is_majority(rules_);
  return holding_->view.has(self_.id) || holding_->held.votes() > 0;
}

void Membership::take(const Letter&, const Start& start) { this->start(start.view); }

void Membership::announce_start() {
  const View view = holding_->view;
  std::vector<MemberId> others = view.everybody();
  if (view_ && view.lineage == place_.lineage) {
    // Those that are in it no more are to know as well.
    for (const MemberId& id : view_->everybody())
      if (!view.has(id)) others.push_back(id);
  }
  std::erase(others, self_.id);
  send_to_all(others, Start{view});
  start(view);
}

void Membership::start(const View& view) {
  if (!view_) {
    // Its members refuse a joiner with another keeper, so this is no view of theirs.
    if (view.has(self_.id) && view.kept_by != settings_.kept_by) return;
    if (view.has(self_.id)) return enter(view);
    // What this joiner held is over: the others went on, and removed it.
    if (held_ && held_->lineage == view.lineage && held_->epoch < view.epoch) {
      held_.reset();
      holding_.reset();
    }
    // A joiner learns whom to ask.
    for (const MemberId& keeper : view.keepers) add_contact(keeper);
    return;
  }
  const bool is_next = view.lineage == place_.lineage && view.epoch > place_.epoch;
  if (!is_next && !is_fork_of_this_view(view)) return;
  if (!view.has(self_.id)) {
    if (leaving_) {
      left_ = true;
      return;
    }
    return end_as_removed(view);
  }
  if (settle_last_step(view)) enter(view);
}

void Membership::end_as_removed(const View& view) {
  std::string what =
      fmt::format("the others removed {} from the view of epoch {}: its members are {}",
                  self_.id.text(), view.epoch, text(view.everybody()));
  const std::vector<MemberId> apart = pairs_.apart_from(self_.id, settings_.quorum_patience / 2);
  if (apart.empty()) {
    return end(ErrorKind::kPeerLost, std::move(what),
               "They had heard nothing of it, or its state was another one. It may join again.");
  }
  std::string where;
  for (const Member& member : view_->members) {
    if (!contains(apart, member.id)) continue;
    for (const wire::Endpoint& endpoint : member.endpoints)
      where += (where.empty() ? "" : ", ") + endpoint.text();
  }
  what += fmt::format("; it and {} did not hear each other, and no step can be computed so",
                      text(apart));
  end(ErrorKind::kPeerLost, std::move(what),
      fmt::format("This host and {} must reach each other: look at routes and firewalls of both "
                  "directions. Then it may join again.",
                  where.empty() ? "theirs" : where));
}

// The view says where the last one ended: with the step that this member attempted, or before it.
// No step can have been committed that it has not reported.
bool Membership::settle_last_step(const View& next) {
  if (!view_->has_member(self_.id) || next.first_step == place_.step) return true;
  if (next.first_step == place_.step + 1 && report_ && !report_->failed &&
      report_->state == next.state) {
    news_.emplace_back(StepDecided{.epoch = place_.epoch,
                                   .outcome = Outcome{.step = place_.step,
                                                      .kind = Outcome::Kind::kCommit,
                                                      .state = next.state,
                                                      .samples = next.samples,
                                                      .cause = {},
                                                      .odd = {}}});
    return true;
  }
  if (next.lineage != place_.lineage) return false;  // a fork that came too late
  end(ErrorKind::kMismatch,
      fmt::format("epoch {} begins with step {}, and {} has come to step {}", next.epoch,
                  next.first_step, self_.id.text(), place_.step),
      "Its state is not that of the others. It may join again.");
  return false;
}

}  // namespace shoal::collective::membership
