#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::mesh {

/// One named axis of a mesh.
struct Axis {
  std::string name;  ///< "replicate", "shard", "tensor", "pipeline", "context", "expert"
  int size = 1;
};

/// Ranks as a grid with named axes, the last axis varying fastest: rank = ((c0 * n1) + c1) * n2 +
/// c2 ... Holds the group of every axis (the ranks that differ in that coordinate only) and of all
/// ranks. Construction is collective.
class Mesh {
 public:
  /// One rank, no axes.
  Mesh() = default;
  /// Throws Error(usage) unless the sizes multiply to the size of `world` and names differ.
  Mesh(comm::Group world, std::vector<Axis> axes);

  const std::vector<Axis>& axes() const { return axes_; }
  const comm::Group& world() const { return world_; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }

  bool has(std::string_view axis) const;
  int extent(std::string_view axis) const;      ///< 1 for an axis that the mesh does not have
  int coordinate(std::string_view axis) const;  ///< 0 for an axis that the mesh does not have
  /// The ranks along one axis; a group of one for an axis that the mesh does not have.
  const comm::Group& group(std::string_view axis) const;

 private:
  int index_of(std::string_view axis) const;  ///< -1: none

  comm::Group world_;
  std::vector<Axis> axes_;
  std::vector<int> coordinates_;
  std::vector<comm::Group> groups_;
};

}  // namespace shoal::mesh
