#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "shoal/collective/operation.h"
#include "shoal/plan/degrees.h"
#include "shoal/plan/placement.h"

namespace shoal::mesh {

using collective::Reduction;
using plan::Axis;
using plan::AxisSet;
using plan::dual;
using plan::Placement;

/// A box of a global tensor: `[begin, end)` in every dimension.
struct Box {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;

  std::int64_t count() const;
  bool operator==(const Box&) const = default;
};

/// Returns the elements that two boxes of one tensor share; none: a box of no elements.
Box intersection(const Box& a, const Box& b);

/// The layout of a tensor on a mesh: a placement along each axis. It is the same on all ranks;
/// which elements one rank holds follows from its coordinates. Default: replicated everywhere.
class Layout {
 public:
  Layout() = default;
  Layout(std::initializer_list<std::pair<Axis, Placement>> placements);

  const Placement& along(Axis axis) const { return placements_[static_cast<std::size_t>(axis)]; }
  Layout& set(Axis axis, const Placement& placement);
  /// The axes over which what the dimension cuts leave is divided flat, row-major. The beginning of
  /// a rank's range depends on the flat unit, so an OwnedRange holds it.
  AxisSet flat() const { return flat_; }
  Layout& set_flat(AxisSet axes);

  std::string text() const;  ///< "tp: shard(0), flat over dp_shard x cp"; "replicated"
  bool operator==(const Layout&) const = default;

 private:
  std::array<Placement, plan::kAxes> placements_;
  AxisSet flat_;
};

/// Returns the dimension that kShard cuts of a tensor of `dims` dimensions, counted from the first.
/// Throws Error(usage) when the tensor does not have it.
int cut_dim(const Placement& placement, std::size_t dims);

/// Cuts `[0, size)` into `parts` as evenly as possible, earlier parts never smaller, and returns
/// part `index`.
std::pair<std::int64_t, std::int64_t> even_part(std::int64_t size, std::int64_t parts,
                                                std::int64_t index);

/// Returns the boxes of a tensor of `shape` that `rank` holds, in the order of their elements: one,
/// or with zigzag cuts several. Axes cut in the order of their enumeration: a dimension that two
/// axes cut is divided by the first, and each part by the second. A flat range is cut afterwards,
/// by boxes_of. Throws Error(usage) for a dimension that the tensor does not have.
std::vector<Box> local_boxes(const std::vector<std::int64_t>& shape, const Layout& layout,
                             const plan::Degrees& degrees, std::int64_t rank);

/// Divides a row-major element range of `box` into the fewest boxes (at most 2 dimensions - 1), in
/// order.
std::vector<Box> boxes_of(const Box& box, std::int64_t begin, std::int64_t end);

}  // namespace shoal::mesh
