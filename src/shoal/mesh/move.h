#pragma once

#include <cstdint>
#include <vector>

#include "shoal/mesh/layout.h"

namespace shoal::mesh {

/// How a tensor gets from one placement along an axis to another: the operation of the ranks along
/// that axis. Plain data, so that the planner and tests count what travels.
struct Move {
  enum class Kind {
    kNone,
    kSlice,       ///< replicate to shard: every rank keeps its part; nothing travels
    kPad,         ///< shard to partial: zeros around the own part; nothing travels
    kGather,      ///< shard to replicate
    kScatterSum,  ///< partial to shard
    kReduce,      ///< partial to replicate
    kExchange,    ///< a shard to another shard
  };
  Kind kind = Kind::kNone;
  Placement from;
  Placement to;
};

/// Returns the move between two placements. Throws Error(usage) from replicate to partial, which
/// would be the gradient of values that all ranks compute alike, and for partials that are no sums.
Move move_between(const Placement& from, const Placement& to);

/// Returns the move of the gradient: from the dual of `to` to the dual of `from`.
Move backward_of(const Move& move);

/// Returns the elements that rank `rank` of `ranks` sends in a move of a tensor that has the shape
/// `whole` before the axis cuts it: each to one peer, with the algorithms that send least.
std::int64_t elements_sent(const Move& move, const std::vector<std::int64_t>& whole, int ranks,
                           int rank);

/// Returns the boxes of a tensor of shape `whole` that rank `rank` of `ranks` holds with this
/// placement, in the order of its local tensor: the whole unless it is a shard.
std::vector<Box> boxes_along(const std::vector<std::int64_t>& whole, const Placement& placement,
                             int ranks, int rank);

}  // namespace shoal::mesh
