#include "shoal/collective/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::collective::membership {
namespace {

/// Those that were removed get every fourth beat of the owner.
constexpr std::uint64_t kBeatsBetweenRemoved = 4;
/// A relayed letter takes so many ways.
constexpr std::size_t kRelays = 2;

template <class What, class... Kinds>
constexpr bool kIsOneOf = (std::same_as<What, Kinds> || ...);
/// Letters that say themselves what they are about, whatever view their sender is in. All others
/// are votes and reports of one view.
template <class What>
constexpr bool kOfAnyView =
    kIsOneOf<What, Beat, Join, JoinRefused, Hold, Held, Start, ForkAsk, Yield>;

}  // namespace

Membership::Membership(Member self, Settings settings, Rules rules)
    : self_(std::move(self)),
      settings_(std::move(settings)),
      rules_(rules),
      // Whoever lives is heard with every beat.
      suspicion_(self_.id, settings_.suspect_after,
                 std::min(settings_.suspect_after, 2 * settings_.beat)),
      pairs_(settings_.beat, settings_.suspect_after) {
  SHOAL_USER_CHECK(settings_.beat > Duration::zero() && settings_.repeat > Duration::zero() &&
                       settings_.stand_in > Duration::zero() &&
                       settings_.quorum_patience > Duration::zero(),
                   "membership", "a duration of the settings is not above zero");
  SHOAL_USER_CHECK(settings_.suspect_after > settings_.beat, "membership",
                   "suspect_after ({} ms) must be longer than a beat ({} ms)",
                   settings_.suspect_after / std::chrono::milliseconds(1),
                   settings_.beat / std::chrono::milliseconds(1));
  SHOAL_USER_CHECK(self_.endpoints.size() <= Member::kMostEndpoints, "membership",
                   "{} has {} endpoints, at most {} are allowed", self_.id.text(),
                   self_.endpoints.size(), Member::kMostEndpoints);
  SHOAL_USER_CHECK(settings_.kept_by.empty() || settings_.on_quorum_loss == OnQuorumLoss::kStop,
                   "membership", "the policy is kStop with {}, which holds all decisions",
                   settings_.kept_by);
  SHOAL_USER_CHECK(settings_.kept_by.empty() || settings_.chain_patience > Duration::zero(),
                   "membership", "chain_patience is not above zero");
}

Membership::Membership(MemberId self, View first, Settings settings, Clock::time_point now,
                       Rules rules)
    : Membership(Member{.id = self, .endpoints = {}, .site = {}}, std::move(settings), rules) {
  check(first);
  SHOAL_USER_CHECK(first.has(self), "membership", "{} is not in the first view {}", self.text(),
                   text(first.everybody()));
  for (const auto* list : {&first.members, &first.witnesses}) {
    for (const Member& member : *list)
      if (member.id == self) self_ = member;
  }
  SHOAL_USER_CHECK(first.kept_by == settings_.kept_by, "membership",
                   "the first view is kept by \"{}\", and the settings name \"{}\"", first.kept_by,
                   settings_.kept_by);
  now_ = now;
  enter(first);
}

Membership Membership::joiner(Member self, std::vector<MemberId> contacts, Settings settings,
                              Clock::time_point now, bool as_witness, Rules rules,
                              std::string token) {
  Membership joiner(std::move(self), std::move(settings), rules);
  joiner.contacts_ = std::move(contacts);
  joiner.as_witness_ = as_witness;
  joiner.token_ = std::move(token);
  joiner.ready_ = as_witness;  // it needs no state
  joiner.now_ = now;
  return joiner;
}

std::vector<Letter> Membership::on(const Event& event, Clock::time_point now) {
  now_ = now;
  if (const auto* received = std::get_if<Received>(&event)) {
    take(received->letter);
  } else if (!ended_ && !left_) {
    if (std::holds_alternative<Tick>(event)) tick();
    if (const auto* asked = std::get_if<AttemptAsked>(&event)) ask_to_begin(*asked);
    if (const auto* awaited = std::get_if<JoinersAwaited>(&event)) await_joiners(*awaited);
    if (std::holds_alternative<StepReady>(event) || std::holds_alternative<StepFailed>(event))
      report(event);
    if (std::holds_alternative<JoinerReady>(event)) ready_ = true;
    if (const auto* contact = std::get_if<ContactFound>(&event)) add_contact(contact->who);
    if (const auto* absent = std::get_if<NobodyListens>(&event)) suspicion_.absent(absent->who);
    if (const auto* answer = std::get_if<ChainAnswered>(&event)) learn(*answer);
    if (const auto* silent = std::get_if<ChainSilent>(&event)) note_silence(*silent);
    if (std::holds_alternative<LeaveAsked>(event)) {
      leaving_ = true;
      next_beat_ = now_;
      if (!view_) left_ = true;
    }
  }
  // What a member says to itself, as one of the keepers, takes no way.
  while (!to_self_.empty()) {
    const Letter letter = std::move(to_self_.front());
    to_self_.pop_front();
    take(letter);
  }
  return std::exchange(out_, {});
}

std::vector<News> Membership::take_news() { return std::exchange(news_, {}); }

std::vector<ChainQuestion> Membership::take_questions() { return std::exchange(questions_, {}); }

void Membership::end(ErrorKind kind, std::string what, std::string hint) {
  ended_ = Error(kind, "membership", std::move(what)).hint(std::move(hint));
  step_.reset();
  change_.reset();
  question_.reset();
  holding_.reset();
  fork_.reset();
}

void Membership::send(const MemberId& to, Body body) {
  Letter letter{.from = self_.id,
                .to = to,
                .lineage = place_.lineage,
                .epoch = place_.epoch,
                .relayed = false,
                .body = std::move(body),
                .hop = to};
  if (to == self_.id) {
    to_self_.push_back(std::move(letter));
    return;
  }
  // Where the connection is broken in one direction at least, the letter also goes by way of
  // others. Beats do not: whether they arrive is how a broken connection is noticed.
  if (view_ && !std::holds_alternative<Beat>(letter.body) &&
      suspicion_.is_edge_broken(self_.id, to, now_))
    relay(letter);
  out_.push_back(std::move(letter));
}

void Membership::relay(const Letter& letter) {
  std::size_t relays = 0;
  for (const MemberId& other : view_->everybody()) {
    if (other == self_.id || other == letter.to || relays == kRelays) continue;
    if (suspicion_.is_edge_broken(self_.id, other, now_) ||
        suspicion_.is_edge_broken(other, letter.to, now_))
      continue;
    Letter copy = letter;
    copy.relayed = true;
    copy.hop = other;
    out_.push_back(std::move(copy));
    ++relays;
  }
}

void Membership::send_to_all(const std::vector<MemberId>& to, const Body& body) {
  for (const MemberId& other : to) send(other, body);
}

// A letter about an earlier view is answered with this one. A letter about the next view comes
// from somebody who acts in it: so most of its keepers, or the one outside, hold it, and this
// member may act too.
bool Membership::is_about_this_view(const Letter& letter) {
  if (!view_ || letter.lineage != place_.lineage) return false;
  if (letter.epoch < place_.epoch) {
    send(letter.from, Start{*view_});
    return false;
  }
  if (letter.epoch > place_.epoch && held_ && held_->epoch == letter.epoch &&
      held_->lineage == letter.lineage) {
    const View next = *held_;
    start(next);
  }
  return !ended_ && !left_ && letter.epoch == place_.epoch;
}

void Membership::take(const Letter& letter) {
  if (letter.to != self_.id) {
    // One that is relayed goes straight to whom it is for, or nowhere.
    if (!letter.relayed || ended_ || left_) return;
    out_.push_back(letter);
    out_.back().hop = letter.to;
    return;
  }
  if (ended_ || left_) {
    // Who has ended for another lineage tells those that have not heard of it.
    if (yielded_to_ && letter.lineage == place_.lineage &&
        std::holds_alternative<Beat>(letter.body))
      send(letter.from, Yield{*yielded_to_});
    return;
  }
  // Somebody of another lineage is no member of this view, whatever the view says. One of another
  // epoch takes no part in this one: where it cannot be told, the others must not wait for ever.
  if (!letter.relayed && letter.lineage == place_.lineage && letter.epoch == place_.epoch)
    suspicion_.heard(letter.from, now_);
  std::visit(
      [&]<class What>(const What& what) {
        if (kOfAnyView<What> || is_about_this_view(letter)) take(letter, what);
      },
      letter.body);
}

void Membership::take(const Letter& letter, const Beat& beat) {
  if (!view_) {
    // A member of a view that this joiner is in, perhaps: the answer to this says so.
    send(letter.from, own_join());
    return;
  }
  if (beat.place.lineage != place_.lineage) {
    // It has promised to join a fork, and has not heard that this has begun.
    if (view_->has(letter.from)) return send(letter.from, Start{*view_});
    // The owners of two lineages settle which one goes on.
    if (is_owner()) {
      compare_with_lineage(letter.from, beat.place);
    } else {
      send(view_->owner(), Met{.who = letter.from, .place = beat.place});
    }
    return;
  }
  if (beat.place.epoch < place_.epoch) return send(letter.from, Start{*view_});
  if (beat.place.epoch > place_.epoch) {
    // The answer to a beat of an earlier epoch is the view.
    return send(letter.from, Beat{.place = place_, .accused = {}, .leaving = leaving_});
  }
  suspicion_.accused(letter.from, beat.accused);
  if (beat.leaving && view_->has(letter.from)) leavers_.insert(letter.from);
}

void Membership::beat() {
  next_beat_ = now_ + settings_.beat;
  ++beats_;
  if (!view_) {
    send_to_all(contacts_, own_join());
    return;
  }
  accused_ = suspicion_.accusing(now_);
  const Beat beat{.place = place_, .accused = accused_, .leaving = leaving_};
  send_to_all(suspicion_.watchers(), beat);
  if (!is_owner() || beats_ % kBeatsBetweenRemoved != 0) return;
  for (const Member& removed : view_->removed) send(removed.id, beat);
}

void Membership::tick() {
  // A new accusation cannot wait for the next beat: others may need it to know who is gone.
  if (now_ >= next_beat_ || suspicion_.accusing(now_) != accused_) beat();
  if (!view_) hold_as_joiner();
  if (!view_ && now_ >= next_repeat_) {
    next_repeat_ = now_ + settings_.repeat;
    repeat_change_letters();
  }
  if (!view_) return;
  std::erase_if(joiners_, [&](const auto& entry) {
    return now_ - entry.second.asked > settings_.suspect_after;
  });
  if (now_ >= next_repeat_) {
    next_repeat_ = now_ + settings_.repeat;
    repeat_step_letters();
    repeat_change_letters();
    if (question_) questions_.push_back(*question_);
  }
  if (uses_chain()) {
    watch_chain();
  } else {
    watch_majority();
  }
  pairs_.watch(*view_, suspicion_, now_);
  if (!ended_) consider_change();
}

// Begins a view with empty hands: what belonged to the one before is settled.
void Membership::enter(const View& view) {
  if (view.lineage != place_.lineage || view.first_step > place_.step) pairs_.forget();
  pairs_.begin(view, now_);
  view_ = view;
  view_digest_ = digest(view);
  place_ = Place{.lineage = view.lineage,
                 .epoch = view.epoch,
                 .step = view.first_step,
                 .state = view.state,
                 .samples = view.samples};
  register_.reset();
  if (view.is_kept_by(self_.id) && !uses_chain()) register_.emplace(view.owner(), rules_);
  suspicion_.begin(view, now_);
  accused_.clear();
  next_beat_ = now_;
  may_begin_ = false;
  begun_ = false;
  readiness_.reset();
  phase_ = Phase::kNewView;
  ready_members_.clear();
  waiting_members_.clear();
  let_go_.clear();
  report_.reset();
  reports_.clear();
  step_.reset();
  last_outcome_.reset();
  aborted_ = false;
  committed_ = false;
  std::erase_if(joiners_, [&](const auto& entry) { return view.has(entry.first); });
  leavers_.clear();
  change_.reset();
  question_.reset();
  holding_.reset();
  held_.reset();
  highest_round_ = 0;
  refusals_ = 0;
  change_wanted_.reset();
  majority_lost_.reset();
  fork_promised_.reset();
  fork_.reset();
  fork_held_.reset();
  fork_round_ = 0;
  news_.emplace_back(ViewStarted{view});
}

}  // namespace shoal::collective::membership
