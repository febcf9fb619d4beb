#pragma once

#include <map>
#include <optional>

#include "shoal/collective/membership/chain.h"
#include "tests/collective/membership/agreement_check.h"

namespace shoal::collective::membership {

/// The keeper outside of a group, as the members see it: entries by slot, and questions that are
/// answered one after the other. The check learns of every entry.
class SimulatedKeeper {
 public:
  /// As they stand, what etcd does with a transaction.
  struct Compares {
    bool creates_once = true;          ///< an entry that is there stays
    bool needs_the_one_before = true;  ///< nothing is created behind a missing entry
  };
  SimulatedKeeper(const View& first, Compares compares) : compares_(compares) {
    entries_.emplace(ChainSlot{first.lineage, first.epoch, 0}, std::nullopt);
  }

  std::optional<ChainEntry> answer(const ChainQuestion& question, AgreementCheck& check) {
    const bool may_create = !entries_.contains(question.slot) || !compares_.creates_once;
    const bool follows = entries_.contains(question.before) || !compares_.needs_the_one_before;
    if (may_create && follows) create(question, check);
    const auto entry = entries_.find(question.slot);
    return entry == entries_.end() ? std::nullopt : entry->second;
  }

  std::size_t entries() const { return entries_.size(); }
  /// The last view that was created; nothing where the first one has no successor.
  const std::optional<View>& last_view() const { return last_view_; }

 private:
  void create(const ChainQuestion& question, AgreementCheck& check) {
    const ChainSlot& slot = question.slot;
    entries_[slot] = question.wish;
    if (const auto* view = std::get_if<View>(&question.wish)) {
      entries_.emplace(ChainSlot{view->lineage, view->epoch, 0}, std::nullopt);
      last_view_ = *view;
    }
    entries_.erase(entries_.lower_bound({slot.lineage, 0, 0}),
                   entries_.lower_bound(question.keep_from));
    check.chosen(slot, question.wish);
  }

  Compares compares_;
  std::map<ChainSlot, std::optional<ChainEntry>> entries_;
  std::optional<View> last_view_;
};

}  // namespace shoal::collective::membership
