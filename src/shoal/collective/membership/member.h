#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/wire/address.h"
#include "shoal/wire/peer_id.h"

namespace shoal::collective::membership {

/// Every process makes a new id and never uses one twice, so a member that has lost its memory is
/// another member.
using MemberId = wire::PeerId;

/// True where `id` is one of `ids`.
bool contains(const std::vector<MemberId>& ids, const MemberId& id);

/// The ids in brackets, for messages.
std::string text(const std::vector<MemberId>& ids);

/// SHA-256.
using Digest = std::array<std::byte, 32>;

/// What lives and dies together: today's job, whose ranks share the shards of one model. Its rank 0
/// takes part in the agreement. A witness is described by the same data.
struct Member {
  static constexpr std::size_t kMostEndpoints = 16;

  MemberId id;
  std::vector<wire::Endpoint> endpoints;
  std::uint32_t width = 1;  ///< ranks
  std::uint32_t protocol = 1;
  std::string site;
  /// How its ranks divide the model, as text: all members have the same. Empty: one rank has all.
  std::string mesh{};
  bool operator==(const Member&) const = default;
};

}  // namespace shoal::collective::membership
