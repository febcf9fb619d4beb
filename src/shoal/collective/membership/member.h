#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/wire/address.h"

namespace shoal::collective::membership {

/// Who a member is. Every process makes a new one; an id is never used twice, so a member that has
/// lost its memory is another member.
struct MemberId {
  std::array<std::byte, 16> bytes{};
  /// The first four bytes in hexadecimal, for messages.
  std::string text() const;
  auto operator<=>(const MemberId&) const = default;
};

/// The ids in brackets, for messages.
std::string text(const std::vector<MemberId>& ids);

/// SHA-256.
using Digest = std::array<std::byte, 32>;

/// What lives and dies together: today's job, whose ranks share the shards of one model. Its rank 0
/// takes part in the agreement. A witness is described by the same data.
struct Member {
  MemberId id;
  std::vector<wire::Endpoint> endpoints;
  std::uint32_t width = 1;  ///< ranks
  std::uint32_t protocol = 1;
  std::string site;
  bool operator==(const Member&) const = default;
};

}  // namespace shoal::collective::membership
