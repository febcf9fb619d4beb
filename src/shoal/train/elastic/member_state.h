#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shoal/train/elastic/member_ranks.h"

namespace shoal::train {

// The state of a member of several ranks as bytes: that of each rank, as RunState writes it. Of
// ranks that have the same one, as replicas of data parallelism do, it is there once.

/// Returns on the leader the states of all ranks, of which each passes its own, and nothing on the
/// others. Collective over the member.
MemberRanks::Bytes gather_state(const MemberRanks& ranks, MemberRanks::Bytes own);
/// Returns the state of each rank, as views of such bytes. Throws Error(data) for bytes that are
/// none.
std::vector<std::span<const std::byte>> parts_of_state(std::span<const std::byte> bytes);
/// Returns the digest of such bytes: MemberRanks::combined of the ranks' own. Zeros for bytes that
/// are none.
MemberRanks::Digest digest_of_member_state(std::span<const std::byte> bytes);

}  // namespace shoal::train
