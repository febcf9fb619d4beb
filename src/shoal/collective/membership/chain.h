#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "shoal/collective/membership/letter.h"
#include "shoal/collective/membership/view.h"

namespace shoal::collective::membership {

/// The decisions that a keeper outside of the group (an etcd) holds are the entries of a *chain*:
/// what each step of an epoch came to, and last the view that follows. An entry is created once,
/// and only behind the one before it. docs/notes/membership.md says why that is enough.
using ChainEntry = std::variant<Outcome, View>;

/// The place of an entry. Entry 0 of an epoch says that its view is decided. What step s came to is
/// entry s + 1, and the next view is the entry behind the last of these.
struct ChainSlot {
  std::uint64_t lineage = 0;
  std::uint64_t epoch = 0;
  std::uint64_t number = 0;
  auto operator<=>(const ChainSlot&) const = default;
};

/// Asks a keeper to create an entry, unless there is one already, and to say which one is there.
struct ChainQuestion {
  ChainSlot slot;
  ChainSlot before;     ///< nothing is created where this one is missing
  ChainSlot keep_from;  ///< entries of the lineage below this one are deleted when one is created
  ChainEntry wish;
};

// These are further events of a Membership.

/// The keeper's answer: the entry that is there now, whoever has created it; none where it is
/// deleted, or the one before it is missing.
struct ChainAnswered {
  ChainSlot slot;
  std::optional<ChainEntry> entry;
};
/// The keeper cannot be reached, and the question remains; or what it has is no entry, which ends
/// the member.
struct ChainSilent {
  std::string why;
  bool is_foreign = false;
};

/// Serializes an entry, and reads it back; bytes that no `encode` made are refused by Error(data).
wire::Bytes encode(const ChainEntry& entry);
ChainEntry decode_chain_entry(std::span<const std::byte> bytes);

}  // namespace shoal::collective::membership
