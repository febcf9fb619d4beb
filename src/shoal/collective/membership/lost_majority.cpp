// What happens where too few keepers are heard: the policy, and lineages that meet again.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/collective/membership/fields.h"
#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {
namespace {

/// A lineage for every attempt: two forks of one view never share theirs.
std::uint64_t lineage_of_fork(const Digest& parent, const Ballot& ballot, std::uint64_t step) {
  FieldWriter writer;
  writer.field("parent", parent);
  writer.field("round", ballot.round);
  writer.field("proposer", ballot.proposer.bytes);
  writer.field("step", step);
  const Digest all = digest(writer.take());
  std::uint64_t lineage = 0;
  std::memcpy(&lineage, all.data(), sizeof lineage);
  return lineage;
}

/// Whether `a` yields to `b`, of two lineages: the one that has committed fewer samples.
bool yields(const Place& a, const Place& b) {
  return std::pair(a.samples, a.lineage) < std::pair(b.samples, b.lineage);
}

}  // namespace

bool Membership::hears_majority() const {
  const std::vector<MemberId>& keepers = held_ ? held_->keepers : view_->keepers;
  const auto heard = std::count_if(keepers.begin(), keepers.end(), [&](const MemberId& keeper) {
    // One that has just joined is heard of once it holds the view.
    return keeper == self_.id || (view_->has(keeper) && !suspicion_.accuses(keeper, now_));
  });
  return 2 * static_cast<std::size_t>(heard) > keepers.size();
}

void Membership::watch_majority() {
  if (hears_majority()) {
    majority_lost_.reset();
    if (!fork_promised_) return;
    // The promise to a fork that has not begun binds no longer; its view is refused from here on.
    fork_promised_.reset();
    fork_.reset();
    holding_.reset();
    fork_held_.reset();
    return;
  }
  if (!majority_lost_) majority_lost_ = now_;
  if (now_ - *majority_lost_ < settings_.quorum_patience) return;
  if (settings_.on_quorum_loss == OnQuorumLoss::kSurvivors && view_->has_member(self_.id))
    return begin_fork();
  end(ErrorKind::kPeerLost,
      fmt::format("lost the majority of the keepers {} of epoch {}: silent are {}",
                  text(view_->keepers), view_->epoch, text(suspicion_.accusing(now_))),
      "Others may go on without this member; it may join them again.");
}

// The first one that is left asks all that are left.
void Membership::begin_fork() {
  const std::set<MemberId> gone = suspicion_.gone(now_);
  std::vector<MemberId> survivors;
  for (const Member& member : view_->members) {
    if (!gone.contains(member.id) && !suspicion_.accuses(member.id, now_))
      survivors.push_back(member.id);
  }
  if (survivors.front() != self_.id) return;
  const bool is_stale = fork_ && now_ - fork_->begun > 2 * settings_.stand_in;
  if (!fork_ || fork_->survivors != survivors || is_stale) {
    // No ballot twice in a view, even where the majority came back meanwhile: the answers to the
    // earlier attempt may still be on their way, and the lineage's name rests on the ballot.
    const Ballot ballot{.round = ++fork_round_, .proposer = self_.id};
    fork_ = Fork{.ballot = ballot, .survivors = survivors, .places = {}, .begun = now_};
    holding_.reset();
    // Those that are no keepers may not know whose majority is lost.
    if (held_ && held_->lineage == place_.lineage) send_to_all(survivors, Hold{*held_});
    send_to_all(survivors, ForkAsk{.ballot = ballot, .survivors = survivors});
  }
}

// Whoever promises has no vote in its view while it hears no majority, and says what it knows of
// steps. All survivors must promise: so a step that one of them has seen committed stays committed.
void Membership::take(const Letter& letter, const ForkAsk& ask) {
  if (settings_.on_quorum_loss != OnQuorumLoss::kSurvivors || !is_about_this_view(letter)) return;
  if (!majority_lost_ || now_ - *majority_lost_ < settings_.quorum_patience / 2) return;
  if (!contains(ask.survivors, self_.id)) return;
  if (fork_promised_ && ask.ballot < *fork_promised_) return;
  fork_promised_ = ask.ballot;
  fork_round_ = std::max(fork_round_, ask.ballot.round);
  change_.reset();
  if (letter.from != self_.id) {
    holding_.reset();
    fork_.reset();
  }
  Place place = place_;
  const auto move_to = [&](std::uint64_t step, const Digest& state, std::uint64_t samples) {
    if (step <= place.step) return;
    place.step = step;
    place.state = state;
    place.samples = samples;
  };
  // What may be committed is committed.
  if (register_ && register_->step() && register_->step()->kind == Outcome::Kind::kCommit) {
    const Outcome& last = *register_->step();
    move_to(last.step + 1, last.state, last.samples);
  }
  if (held_) move_to(held_->first_step, held_->state, held_->samples);
  send(letter.from, ForkPromise{.ballot = ask.ballot, .place = place});
}

void Membership::take(const Letter& letter, const ForkPromise& promise) {
  const MemberId& from = letter.from;
  if (!fork_ || promise.ballot != fork_->ballot || holding_) return;
  if (!contains(fork_->survivors, from)) return;
  fork_->places[from] = promise.place;
  if (fork_->places.size() < fork_->survivors.size()) return;
  const Place& farthest =
      std::max_element(fork_->places.begin(), fork_->places.end(),
                       [](const auto& a, const auto& b) { return a.second.step < b.second.step; })
          ->second;
  View next{.epoch = view_->epoch + 1,
            .lineage = lineage_of_fork(view_digest_, fork_->ballot, farthest.step),
            .parent = view_digest_,
            .first_step = farthest.step,
            .state = farthest.state,
            .samples = farthest.samples,
            .members = {},
            .fresh = 0,
            .witnesses = {},
            .removed = {},
            .keepers = {},
            .admission = view_->admission,
            .kept_by = view_->kept_by};
  std::vector<Member> others;
  for (const Member& member : view_->members)
    (fork_->places.contains(member.id) ? next.members : others).push_back(member);
  next.removed = add_removed(view_->removed, others);
  const auto is_fresh = [&](const Member& member) { return view_->is_fresh(member.id); };
  if (next.first_step == view_->first_step) {
    next.fresh = static_cast<std::uint32_t>(
        std::count_if(next.members.begin(), next.members.end(), is_fresh));
  }
  next.keepers = choose_keepers(next.established(), {});
  begin_holding(std::move(next));
}

bool Membership::is_fork_of_this_view(const View& view) const {
  return fork_promised_ && view.lineage != place_.lineage && view.parent == view_digest_ &&
         view.has_member(self_.id);
}

void Membership::take(const Letter&, const Met& met) {
  if (is_owner()) compare_with_lineage(met.who, met.place);
}

// The owners of two lineages tell each other how far they are. Samples only grow, so of what was
// sent and what is known now at most one side finds itself behind.
void Membership::compare_with_lineage(const MemberId& who, const Place& place) {
  if (!yields(place_, place)) {
    send(who, Beat{.place = place_, .accused = {}, .leaving = false});
    return;
  }
  for (const MemberId& other : view_->everybody())
    if (other != self_.id) send(other, Yield{place});
  yield_to(place);
}

void Membership::take(const Letter& letter, const Yield& yield) {
  if (letter.lineage == place_.lineage) yield_to(yield.place);
}

void Membership::yield_to(const Place& place) {
  if (!yields(place_, place)) return;
  yielded_to_ = place;
  end(ErrorKind::kMismatch,
      fmt::format("another lineage has committed {} samples, this one {}", place.samples,
                  place_.samples),
      "The members of this one may join the other one.");
}

}  // namespace shoal::collective::membership
