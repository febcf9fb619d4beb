#pragma once

namespace shoal::parallel {

/// The rank that lies `steps` behind `rank` in a ring of `ranks`, or before it if negative.
inline int rank_in_ring(int rank, int steps, int ranks) {
  return (rank + steps % ranks + ranks) % ranks;
}

/// The direction in which RingAttention visits the other ranks' keys and values: in step s of a
/// pass, rank r has those of rank_in_ring(r, direction * s, ranks). For that each rank passes what
/// it has to rank_in_ring(r, -direction, ranks). In a backward pass the gradient of a block goes
/// the same way, behind each step but the first.
inline constexpr int kForwardVisits = 1;
inline constexpr int kBackwardVisits = -1;

}  // namespace shoal::parallel
