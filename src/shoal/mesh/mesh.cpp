#include "shoal/mesh/mesh.h"

#include <algorithm>
#include <array>

#include "shoal/base/check.h"

namespace shoal::mesh {
namespace {

/// The sets of axes that have a group. Every further set costs a communicator on each rank of a job
/// that uses its axes, so techniques add theirs here when they come.
constexpr std::array kGroups{
    AxisSet(Axis::kPipeline),
    AxisSet(Axis::kReplicate),
    AxisSet(Axis::kShard),
    AxisSet(Axis::kContext),
    AxisSet(Axis::kTensor),
    // The ranks that hold the same parameters, and may shard them: matrices that tp cuts, and what
    // is replicated along tp too.
    Axis::kShard | Axis::kContext,
    AxisSet{Axis::kShard, Axis::kContext, Axis::kTensor},
    // All ranks that hold the same part of a matrix that tp cuts: its gradient is their sum.
    AxisSet{Axis::kReplicate, Axis::kShard, Axis::kContext},
    // A pipeline stage.
    plan::kStageAxes,
    AxisSet(Axis::kExpert),
    AxisSet(Axis::kExpertData),
};

}  // namespace

Mesh::Mesh(comm::Group world, const Degrees& degrees)
    : world_(std::move(world)), degrees_(degrees) {
  double ranks = 1;
  for (const Axis axis :
       {Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor}) {
    SHOAL_USER_CHECK(degrees.extent(axis) >= 1, "mesh", "{} = {}: at least 1", name(axis),
                     degrees.extent(axis));
    ranks *= static_cast<double>(degrees.extent(axis));
  }
  SHOAL_USER_CHECK(ranks == world_.size(), "mesh",
                   "pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {} is {} ranks, but there "
                   "are {}",
                   degrees.pp, degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.tp,
                   ranks, world_.size());
  SHOAL_USER_CHECK(degrees.ep >= 1 && degrees.stage_ranks() % degrees.ep == 0, "mesh",
                   "ep = {}: experts are folded into the {} ranks of a stage", degrees.ep,
                   degrees.stage_ranks());
  for (const AxisSet& set : kGroups) {
    const AxisSet axes = effective(set);
    // A set without an axis of several ranks needs no group: `along` knows that of one rank.
    if (axes.empty() || groups_.count(axes) != 0) continue;
    const auto ranks_of = plan::members(degrees_, axes, world_.rank());
    // split() is collective: all ranks see the same degrees, and therefore skip and split in the
    // same order.
    if (static_cast<int>(ranks_of.size()) == world_.size()) {
      groups_.emplace(axes, world_);
    } else {
      groups_.emplace(axes,
                      world_.split(static_cast<int>(ranks_of.front()), world_.rank(), axes.text()));
    }
  }
}

AxisSet Mesh::effective(AxisSet axes) const {
  AxisSet rest = axes;
  for (const Axis axis : axes.axes())
    if (degrees_.extent(axis) == 1) rest = rest.without(axis);
  return rest;
}

int Mesh::coordinate(Axis axis) const {
  return static_cast<int>(plan::coordinate(degrees_, axis, world_.rank()));
}

const comm::Group& Mesh::along(AxisSet axes) const {
  static const comm::Group one;
  const AxisSet rest = effective(axes);
  if (rest.empty()) return one;
  const auto found = groups_.find(rest);
  SHOAL_CHECK(found != groups_.end(), "the mesh makes no group along {}", axes.text());
  return found->second;
}

}  // namespace shoal::mesh
