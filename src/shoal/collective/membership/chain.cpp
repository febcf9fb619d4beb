// This file asks a keeper outside of the group for decisions. Each is an entry of the chain, which
// whoever wants it created learns, whether it is the own one or another's.
#include "shoal/collective/membership/chain.h"

#include <fmt/format.h>

#include <utility>

#include "shoal/base/duration.h"
#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {
namespace {

/// So much of the chain is kept for members that have not heard of it: entries of an epoch with
/// many steps, and whole epochs otherwise. A member lags by one decision at most while it takes
/// part; a witness, and who was removed, by more.
constexpr std::uint64_t kKeptSteps = 16;
constexpr std::uint64_t kKeptEpochs = 8;

}  // namespace

bool Membership::uses_chain() const {
  return !(view_ ? view_->kept_by : settings_.kept_by).empty();
}

bool Membership::is_asking_for_view() const {
  return question_ && std::holds_alternative<View>(question_->wish);
}

// `last`: the decision before this one in the epoch; nothing where there is none.
void Membership::ask(ChainEntry wish, const std::optional<Outcome>& last) {
  ChainQuestion question{.slot = {view_->lineage, view_->epoch, 0},
                         .before = {view_->lineage, view_->epoch, 0},
                         .keep_from = {view_->lineage, 0, 0},
                         .wish = std::move(wish)};
  question.slot.number = last ? last->step + 2 : view_->first_step + 1;
  if (last) question.before.number = last->step + 1;
  // Whatever is deleted is what comes first in the chain. So where the entry before a slot is
  // there, the slot's own was not deleted.
  const std::uint64_t kept = rules_.chain_keeps_entries ? kKeptSteps : 0;
  if (question.slot.number > view_->first_step + kept) {
    question.keep_from.epoch = view_->epoch;
    question.keep_from.number = question.slot.number - kept;
  } else if (view_->epoch > kKeptEpochs) {
    question.keep_from.epoch = view_->epoch - kKeptEpochs;
  }
  question_ = std::move(question);
  asked_ = now_;
  chain_trouble_.clear();
  questions_.push_back(*question_);
}

void Membership::propose_to_chain(const std::optional<Outcome>& last) {
  View next = compose(last);
  if (next.members.empty()) return end_without_members();
  ask(std::move(next), last);
}

// Whoever has asked to begin a step of its first view has got the state before.
bool Membership::may_lack_state() const {
  return view_->is_fresh(self_.id) && place_.step == view_->first_step && !begun_ && !report_ &&
         !readiness_;
}

// Any member may ask for a view, but one without the state must not remove those that have it: they
// may only have stood still, and their lineage would end with them.
void Membership::watch_providers(const std::set<MemberId>& gone) {
  const std::size_t established = view_->members.size() - view_->fresh;
  for (std::size_t i = 0; i < established; ++i)
    if (!gone.contains(view_->members[i].id)) return;
  if (now_ - *change_wanted_ < settings_.quorum_patience) return;
  end(ErrorKind::kPeerLost,
      fmt::format("nobody is heard any more of the {} of epoch {} that have the state",
                  established == 1 ? "one member" : fmt::format("{} members", established),
                  view_->epoch),
      "Join again when they are back; where they are gone, begin again with a checkpoint.");
}

void Membership::learn(const ChainAnswered& answer) {
  if (!question_ || answer.slot != question_->slot) return;
  const ChainQuestion question = *std::exchange(question_, std::nullopt);
  if (!answer.entry) {
    return end(ErrorKind::kPeerLost,
               fmt::format("{} keeps no entry {} of epoch {} any more", view_->kept_by,
                           answer.slot.number, answer.slot.epoch),
               "The others have gone on without this member, which may join them again; or the "
               "entries were deleted there.");
  }
  if (const auto* next = std::get_if<View>(&*answer.entry)) {
    const bool follows = next->lineage == view_->lineage && next->epoch == view_->epoch + 1 &&
                         next->parent == view_digest_;
    return follows ? begin_holding(*next) : end_with_foreign_entry(answer.slot);
  }
  const Outcome& outcome = std::get<Outcome>(*answer.entry);
  if (outcome.step + 1 != answer.slot.number) return end_with_foreign_entry(answer.slot);
  // Somebody who wants another view and does not know of this step learns of it here.
  if (std::holds_alternative<View>(question.wish)) return propose_to_chain(outcome);
  // As bytes, in which a long cause is cut.
  if (encode(*answer.entry) != encode(question.wish)) return end_with_foreign_entry(answer.slot);
  finish_step();
}

void Membership::note_silence(const ChainSilent& silent) {
  chain_trouble_ = silent.why;
  if (!silent.is_foreign || !question_) return;
  end(ErrorKind::kData, silent.why, "Does anything else write to keys of this prefix?");
}

void Membership::end_with_foreign_entry(const ChainSlot& slot) {
  end(ErrorKind::kData,
      fmt::format("entry {} of epoch {} at {} is none of this group", slot.number, slot.epoch,
                  view_->kept_by),
      "Does anything else write to keys of this prefix?");
}

// Nothing is decided without the keeper, so members hold while it is silent. Who is not in the next
// view, and waits in vain for somebody that is, has done what it can.
void Membership::watch_chain() {
  // A process that stood still itself has not waited: the answer may be there already.
  if (now_ - watched_ > settings_.beat) asked_ = now_;
  watched_ = now_;
  if (holding_ && now_ - asked_ >= settings_.quorum_patience) return announce_start();
  if (!question_ || now_ - asked_ < settings_.chain_patience) return;
  end(ErrorKind::kPeerLost,
      fmt::format("{} has not answered for {:.3g} s what became of entry {} of epoch {}{}{}",
                  view_->kept_by, to_seconds(settings_.chain_patience), question_->slot.number,
                  question_->slot.epoch, chain_trouble_.empty() ? "" : ": ", chain_trouble_),
      "Nothing is decided without it. Others that reach it go on; this member may join them "
      "again.");
}

}  // namespace shoal::collective::membership
