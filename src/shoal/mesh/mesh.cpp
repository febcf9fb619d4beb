#include "shoal/mesh/mesh.h"

#include "shoal/base/check.h"

namespace shoal::mesh {

Mesh::Mesh(comm::Group world, std::vector<Axis> axes)
    : world_(std::move(world)), axes_(std::move(axes)) {
  int product = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    SHOAL_USER_CHECK(axes_[i].size >= 1, "mesh", "axis '{}' has size {}", axes_[i].name,
                     axes_[i].size);
    SHOAL_USER_CHECK(index_of(axes_[i].name) == static_cast<int>(i), "mesh",
                     "two axes are called '{}'", axes_[i].name);
    product *= axes_[i].size;
  }
  SHOAL_USER_CHECK(product == world_.size(), "mesh",
                   "the axes multiply to {}, but there are {} ranks", product, world_.size());
  // The rank number in mixed radix, the last axis fastest.
  coordinates_.resize(axes_.size());
  int rest = world_.rank();
  for (std::size_t i = axes_.size(); i-- > 0; rest /= axes_[i].size)
    coordinates_[i] = rest % axes_[i].size;
  int stride = world_.size();
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    stride /= axes_[i].size;
    // The rank with this coordinate set to zero names the group: all that differ only here give the
    // same color.
    const int color = world_.rank() - coordinates_[i] * stride;
    // split() is collective: all ranks see the same axes and therefore skip and split in the same
    // order. Neither an axis of one rank nor one of all ranks needs a communicator of its own.
    if (axes_[i].size == 1) {
      groups_.emplace_back();
    } else if (axes_[i].size == world_.size()) {
      groups_.push_back(world_);
    } else {
      groups_.push_back(world_.split(color, coordinates_[i]));
    }
  }
}

int Mesh::index_of(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis) return static_cast<int>(i);
  return -1;
}

bool Mesh::has(std::string_view axis) const { return index_of(axis) >= 0; }
int Mesh::extent(std::string_view axis) const { return has(axis) ? axes_[index_of(axis)].size : 1; }
int Mesh::coordinate(std::string_view axis) const {
  return has(axis) ? coordinates_[index_of(axis)] : 0;
}

const comm::Group& Mesh::group(std::string_view axis) const {
  // An axis that the mesh does not have is one rank: techniques need not ask whether it is there.
  static const comm::Group one;
  return has(axis) ? groups_[index_of(axis)] : one;
}

}  // namespace shoal::mesh
