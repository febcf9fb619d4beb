#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/collective/membership/member.h"
#include "shoal/wire/assembler.h"
#include "shoal/wire/join_token.h"

namespace shoal::collective::membership {

/// Says who may join. It is part of the view, so that all who may ever admit somebody agree on it.
struct Admission {
  static constexpr std::size_t kMostUsed = 4096;
  /// A token that has admitted a member, until it expires.
  struct Used {
    wire::TokenNonce nonce{};
    std::uint64_t expires_s = 0;  ///< seconds since 1970
    bool operator==(const Used&) const = default;
  };

  bool by_token = false;      ///< otherwise whoever reaches a member may join
  std::string cluster;        ///< that tokens are for
  wire::TokenKey key{};       ///< to read them
  std::uint64_t clock_s = 0;  ///< tokens that expire up to this time are expired for good
  std::vector<Used> used;
  bool operator==(const Admission&) const = default;
};

/// The members of an epoch, in order. Views follow each other: the keepers of one decide the next.
struct View {
  static constexpr std::size_t kMostKeepers = 5;
  static constexpr std::size_t kMostMembers = 4096;
  static constexpr std::size_t kMostRemoved = 16;
  static constexpr std::size_t kLongestName = 1024;  ///< of the keeper outside, in bytes

  std::uint64_t epoch = 1;  ///< from 1
  /// Names the line of views that this one belongs to. It changes where members went on without the
  /// majority of their keepers.
  std::uint64_t lineage = 0;
  Digest parent{};               ///< of the view before; zeros in the first one
  std::uint64_t first_step = 0;  ///< all steps before it are decided
  Digest state{};                ///< what the last committed step led to
  std::uint64_t samples = 0;     ///< of all committed steps
  std::vector<Member> members;
  /// So many of the last members have joined and committed no step yet. They keep nothing, and
  /// where states differ the others know which one is right.
  std::uint32_t fresh = 0;
  std::vector<Member> witnesses;  ///< may be keepers, and train nothing
  /// The last ones that were removed, and did not want to leave. They may live on in another
  /// lineage, so they are looked for.
  std::vector<Member> removed;
  /// An odd number of members and witnesses. The first one is the owner: it proposes what steps
  /// came to.
  std::vector<MemberId> keepers;
  Admission admission{};
  /// Names the keeper outside of the group that holds what is decided (chain.h); empty: the
  /// registers of the keepers hold it.
  std::string kept_by{};

  const MemberId& owner() const { return keepers.front(); }
  bool has_member(const MemberId& id) const;
  bool is_fresh(const MemberId& id) const;  ///< one of the last `fresh` members
  bool has_witness(const MemberId& id) const;
  bool has(const MemberId& id) const { return has_member(id) || has_witness(id); }
  bool is_kept_by(const MemberId& id) const;
  /// All but the fresh ones; all where there are no others.
  std::vector<Member> established() const;
  /// The members, then the witnesses.
  std::vector<MemberId> everybody() const;
  bool operator==(const View&) const = default;
};

/// The bytes of a view, equal for equal views on every machine, and their digest.
wire::Bytes canonical_bytes(const View& view);
Digest digest(const View& view);
Digest digest(std::span<const std::byte> bytes);

/// The first odd number of candidates, at most kMostKeepers: those of `members`, then those of
/// `witnesses`.
std::vector<MemberId> choose_keepers(const std::vector<Member>& members,
                                     const std::vector<Member>& witnesses);

/// Adds members that were removed to those of `before`, and forgets the oldest.
std::vector<Member> add_removed(std::vector<Member> before, const std::vector<Member>& more);

/// Throws Error(data) that says what no view may have: a number or a list that contradicts another.
void check(const View& view);

}  // namespace shoal::collective::membership
