#pragma once

#include <map>

#include "shoal/comm/group.h"
#include "shoal/plan/degrees.h"

namespace shoal::mesh {

using plan::Axis;
using plan::AxisSet;
using plan::Degrees;

/// The ranks of a job as a grid: `plan::Axis` says which axes there are and how ranks are numbered.
/// Holds the groups of ranks that act together. Construction is collective.
class Mesh {
 public:
  /// One rank.
  Mesh() = default;
  /// Throws Error(usage) unless the degrees are positive, multiply to the size of `world`, and ep
  /// divides the ranks of a stage.
  Mesh(comm::Group world, const Degrees& degrees);

  const Degrees& degrees() const { return degrees_; }
  const comm::Group& world() const { return world_; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }

  int extent(AxisSet axes) const { return static_cast<int>(degrees_.extent(axes)); }
  int coordinate(Axis axis) const;
  /// The ranks that differ from this one along `axes` only, in ascending order. Sets that need no
  /// communicator of their own (one rank, all ranks, the same ranks as another set) have none.
  /// Throws Error(internal) for a set of which the mesh makes no group: see kGroups in mesh.cpp.
  const comm::Group& along(AxisSet axes) const;

 private:
  /// Leaves out the axes along which there is one rank.
  AxisSet effective(AxisSet axes) const;

  comm::Group world_;
  Degrees degrees_;
  std::map<AxisSet, comm::Group> groups_;  ///< by effective set
};

}  // namespace shoal::mesh
