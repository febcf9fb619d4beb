#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/collective/operation.h"

namespace shoal::mesh {

using collective::Reduction;

/// The placement of a tensor along one mesh axis.
struct Placement {
  enum class Kind { kReplicate, kShard, kPartial, kFlat };

  Kind kind = Kind::kReplicate;
  /// kShard: the tensor dimension that is cut, as evenly as possible, earlier ranks larger.
  int dim = 0;
  /// kPartial: the reduction that makes the full value of the ranks' values.
  Reduction reduction = Reduction::kSum;
  /// kFlat: this rank's element range of the (already dimension-sharded) parameter, row-major.
  std::int64_t begin = 0;
  std::int64_t end = 0;

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {.kind = Kind::kShard, .dim = dim}; }
  static Placement partial(Reduction reduction = Reduction::kSum) {
    return {.kind = Kind::kPartial, .reduction = reduction};
  }
  static Placement flat(std::int64_t begin, std::int64_t end) {
    return {.kind = Kind::kFlat, .begin = begin, .end = end};
  }
  bool operator==(const Placement&) const = default;
};

/// A box of a global tensor: `[begin, end)` in every dimension.
struct Box {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;

  std::int64_t count() const;
  bool operator==(const Box&) const = default;
};

/// The layout of a tensor on a mesh: one placement per axis, in the mesh's axis order. Empty means
/// replicated everywhere.
struct Layout {
  std::vector<Placement> axes;

  bool replicated() const;
  std::string text() const;  ///< "(replicate, shard(0))"
  bool operator==(const Layout&) const = default;
};

/// Cuts `[0, size)` into `parts` as evenly as possible, earlier parts never smaller, and returns
/// part `index`.
std::pair<std::int64_t, std::int64_t> even_part(std::int64_t size, std::int64_t parts,
                                                std::int64_t index);

/// Returns the box of a tensor of `shape` that the rank at `coordinate` (one index per axis, of a
/// mesh of `extent`) holds. Partial and replicated axes do not cut; a flat range is cut afterwards,
/// by boxes_of.
Box local_box(const std::vector<std::int64_t>& shape, const Layout& layout,
              const std::vector<int>& extent, const std::vector<int>& coordinate);

/// Divides a row-major element range of `box` into the fewest boxes (at most 2 dimensions - 1), in
/// order.
std::vector<Box> boxes_of(const Box& box, std::int64_t begin, std::int64_t end);

}  // namespace shoal::mesh
