#pragma once

#include <cstdint>

#include "shoal/plan/cluster.h"
#include "shoal/plan/collective_cost.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

/// The placement of a group of ranks: `inside` of them on each of `hosts` hosts.
struct GroupShape {
  std::int64_t inside = 1;
  std::int64_t hosts = 1;

  std::int64_t ranks() const { return inside * hosts; }
};

/// Returns the shape of a group of `ranks` devices that are `stride` apart.
GroupShape group_shape(const Cluster& cluster, std::int64_t ranks, std::int64_t stride);

GroupShape tensor_group(const Cluster& cluster, const Degrees& degrees);
GroupShape context_group(const Cluster& cluster, const Degrees& degrees);
/// Returns the ranks over which ZeRO shards.
GroupShape shard_group(const Cluster& cluster, const Degrees& degrees);
/// Returns the ranks over which hybrid sharding replicates the shards: the members where there are
/// such.
GroupShape replica_group(const Cluster& cluster, const Degrees& degrees);
GroupShape expert_group(const Cluster& cluster, const Training& training);
GroupShape expert_tensor_group(const Cluster& cluster, const Training& training);

/// The data ranks of the same parameters: those over which ZeRO shards them (stage 0: all), and
/// those over which the shards are replicated.
struct DataRanks {
  GroupShape shards;
  GroupShape replicas;
};
DataRanks dense_ranks(const Cluster& cluster, const Training& training);
/// Returns the data ranks of what every tensor rank has whole (norms, routers, shared experts).
/// If the cluster runs Shoal, tensor ranks are among them: each has the gradient of its own rows of
/// the stream.
DataRanks replicated_ranks(const Cluster& cluster, const Training& training);
/// Returns the data ranks of the routed experts, which have fewer: Training::expert_data. If the
/// cluster runs Shoal, all of them cut the state of experts that are divided, so that hybrid
/// sharding has no copies of it; experts that are not divided lie as what is replicated does.
DataRanks expert_ranks(const Cluster& cluster, const Training& training);
/// Return true where every such group lies on one host, whose memory its ranks share.
bool tensor_ranks_share_memory(const Cluster& cluster, const Degrees& degrees);
bool context_ranks_share_memory(const Cluster& cluster, const Degrees& degrees);
bool expert_ranks_share_memory(const Cluster& cluster, const Training& training);
bool pipeline_crosses_hosts(const Cluster& cluster, const Degrees& degrees);

/// Return the links as collectives use them, with the device's measured share of the bandwidth.
AlphaBeta inside_link(const Cluster& cluster);
AlphaBeta between_link(const Cluster& cluster);

// Each function returns the time of the cheapest algorithm that applies: ring or halving-doubling
// inside one host or across hosts with one member each, two-level where hosts hold several members.
double all_reduce_s(const Cluster& cluster, GroupShape group, double bytes);
/// A reduce-scatter takes as long.
double all_gather_s(const Cluster& cluster, GroupShape group, double bytes);
double all_to_all_s(const Cluster& cluster, GroupShape group, double bytes);
/// Returns the time of an all-gather or reduce-scatter around one ring of all devices, host after
/// host: one device's link between hosts carries every byte.
double flat_all_gather_s(const Cluster& cluster, GroupShape group, double bytes);

}  // namespace shoal::plan
