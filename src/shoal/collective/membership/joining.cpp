// This file handles requests to join. Keepers note joiners, who come in with the next view.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/collective/membership/admission.h"
#include "shoal/collective/membership/membership.h"

namespace shoal::collective::membership {
namespace {

constexpr std::size_t kMostContacts = 16;

/// All must ask one keeper, or a group would decide at two places.
JoinRefused wrong_keeper(const std::string& own, const std::string& group) {
  const auto text = [](const std::string& name) { return name.empty() ? "its members" : name; };
  return {fmt::format("the decisions of this group are kept by {}, and the joiner would ask {}",
                      text(group), text(own)),
          "Give it the same keeper as the others: in a job, elastic.etcd and job.name."};
}

}  // namespace

Join Membership::own_join() const {
  return {.who = self_,
          .ready = ready_,
          .witness = as_witness_,
          .token = token_,
          .kept_by = settings_.kept_by};
}

// A joiner asks at once, and the newest ones are kept: those of earlier views may have left.
void Membership::add_contact(const MemberId& who) {
  if (view_ || who == self_.id || contains(contacts_, who)) return;
  contacts_.push_back(who);
  if (contacts_.size() > kMostContacts) contacts_.erase(contacts_.begin());
  next_beat_ = now_;
}

void Membership::take(const Letter&, const JoinRefused& refused) {
  if (!view_) end(ErrorKind::kMismatch, refused.why, refused.what_to_do);
}

void Membership::take(const Letter& letter, const Join& join) {
  if (!view_) return;
  if (view_->has(join.who.id)) return send(letter.from, Start{*view_});
  if (auto refused = why_refused(join)) return send(letter.from, std::move(*refused));
  // The owner admits joiners, and any keeper where the owner is gone: a joiner that knows the view
  // asks them all. Only the owner refuses a token, for it might have admitted its bearer.
  std::optional<JoinRefused> refused;
  if (view_->is_kept_by(self_.id)) refused = note_joiner(join);
  if (refused && is_owner()) return send(letter.from, std::move(*refused));
  // A joiner that is not ready yet looks for members that give it the state: the view names them.
  if (!is_owner() || !join.ready) send(letter.from, Start{*view_});
}

std::optional<JoinRefused> Membership::why_refused(const Join& join) const {
  // A letter of somebody that was removed may come late; nobody comes back under the same id.
  const bool was_removed =
      std::any_of(view_->removed.begin(), view_->removed.end(),
                  [&](const Member& removed) { return removed.id == join.who.id; });
  if (was_removed) {
    return JoinRefused{fmt::format("the others have removed {}", join.who.id.text()),
                       "A new start gives it another id."};
  }
  if (join.kept_by != view_->kept_by) return wrong_keeper(join.kept_by, view_->kept_by);
  const Member& like = view_->members.front();
  const bool is_alike = join.who.width == like.width && join.who.mesh == like.mesh &&
                        join.who.protocol == like.protocol;
  if (join.witness || is_alike) return std::nullopt;
  const auto ranks = [](const Member& member) {
    const std::string mesh = member.mesh.empty() ? "" : fmt::format(" ({})", member.mesh);
    return fmt::format("{} rank{}{}", member.width, member.width == 1 ? "" : "s", mesh);
  };
  return JoinRefused{
      fmt::format("a member of {} and protocol {} cannot join members of {} and protocol {}",
                  ranks(join.who), join.who.protocol, ranks(like), like.protocol),
      "Start it as the others are started: in a job, with the same --nproc and the same keys of "
      "[parallelism] that divide the model."};
}

std::optional<JoinRefused> Membership::refuses(const Join& join) const {
  if (!view_) return std::nullopt;
  if (auto refused = why_refused(join)) return refused;
  return refusal(view_->admission, join.token, reading_of(join));
}

// A token that was good when it was first shown stays so while its joiner is given the state, and
// waits for the step that runs, unless somebody else has used it.
wire::TokenReading Membership::reading_of(const Join& join) const {
  const auto known = joiners_.find(join.who.id);
  if (known != joiners_.end() && known->second.join.token == join.token) return known->second.token;
  return read(view_->admission, join.token, settings_.wall_clock());
}

// Of two that show one token, the second waits until the first one has used it, or is silent.
std::optional<JoinRefused> Membership::note_joiner(const Join& join) {
  const wire::TokenReading token = reading_of(join);
  if (auto refused = refusal(view_->admission, join.token, token)) {
    joiners_.erase(join.who.id);
    return refused;
  }
  const bool is_shown_by_another =
      view_->admission.by_token &&
      std::any_of(joiners_.begin(), joiners_.end(), [&](const auto& entry) {
        return entry.first != join.who.id && entry.second.token.nonce == token.nonce;
      });
  if (is_shown_by_another) return std::nullopt;
  Waiting& noted = joiners_[join.who.id];
  // A letter that it sent before it was ready may come late.
  const bool was_ready = noted.join.ready;
  noted = Waiting{.join = join, .token = token, .asked = now_};
  noted.join.ready = join.ready || was_ready;
  return std::nullopt;
}

}  // namespace shoal::collective::membership
