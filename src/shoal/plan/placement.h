#pragma once

#include <cstdint>
#include <string>

#include "shoal/collective/operation.h"

namespace shoal::plan {

using collective::Reduction;

/// The placement of a tensor along one mesh axis.
struct Placement {
  enum class Kind { kReplicate, kShard, kPartial };
  /// How kShard divides a dimension among n ranks: in n parts as even as possible, earlier ones
  /// larger; or in 2n such chunks, of which rank r holds r and 2n - 1 - r, so that under a causal
  /// mask all ranks have the same work.
  enum class Cut { kEven, kZigzag };

  Kind kind = Kind::kReplicate;
  int dim = 0;  ///< kShard: the tensor dimension that is cut; negative: counted from the last
  Cut cut = Cut::kEven;
  /// kPartial: the reduction that makes the full value of the ranks' values.
  Reduction reduction = Reduction::kSum;

  static Placement replicate() { return {}; }
  static Placement shard(int dim, Cut cut = Cut::kEven) {
    return {.kind = Kind::kShard, .dim = dim, .cut = cut};
  }
  static Placement partial(Reduction reduction = Reduction::kSum) {
    return {.kind = Kind::kPartial, .reduction = reduction};
  }
  std::string text() const;  ///< "shard(0)"
  bool operator==(const Placement&) const = default;
};

/// Returns the placement of a gradient whose value has this placement: replicated values have
/// gradients that are partial sums, and the other way round; a shard has its own part.
Placement dual(const Placement& placement);

}  // namespace shoal::plan
