#pragma once

#include <cstdint>

#include "shoal/plan/cluster.h"
#include "shoal/plan/collective_cost.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

/// A group of a mesh axis as it lies on the hosts: `inside` members on each of `hosts` hosts.
struct GroupShape {
  std::int64_t inside = 1;
  std::int64_t hosts = 1;

  std::int64_t ranks() const { return inside * hosts; }
};

/// `ranks` devices `stride` apart.
GroupShape group_shape(const Cluster& cluster, std::int64_t ranks, std::int64_t stride);

GroupShape tensor_group(const Cluster& cluster, const Mesh& mesh);
GroupShape context_group(const Cluster& cluster, const Mesh& mesh);
GroupShape shard_group(const Cluster& cluster, const Mesh& mesh);  ///< over which ZeRO shards
GroupShape replica_group(const Cluster& cluster,
                         const Mesh& mesh);  ///< hybrid sharding: over which shards are replicated
GroupShape expert_group(const Cluster& cluster, const Mesh& mesh);
GroupShape expert_tensor_group(const Cluster& cluster, const Mesh& mesh);

/// The data ranks that hold the same parameters: those over which ZeRO shards them (stage 0: all),
/// and over which the shards are replicated.
struct DataRanks {
  GroupShape shards;
  GroupShape replicas;
};
DataRanks dense_ranks(const Cluster& cluster, const Training& training);
/// Routed experts have fewer: Mesh::expert_data.
DataRanks expert_ranks(const Cluster& cluster, const Training& training);
bool pipeline_crosses_hosts(const Cluster& cluster, const Mesh& mesh);

/// The links as collectives see them, with the device's measured share of the bandwidth.
AlphaBeta inside_link(const Cluster& cluster);
AlphaBeta between_link(const Cluster& cluster);

// The cheapest of the algorithms that apply: ring or halving-doubling inside one host or across
// hosts with one member each, two-level where hosts hold several members.
double all_reduce_s(const Cluster& cluster, GroupShape group, double bytes);
double all_gather_s(const Cluster& cluster, GroupShape group,
                    double bytes);  ///< reduce-scatter alike
double all_to_all_s(const Cluster& cluster, GroupShape group, double bytes);
/// One ring of all devices, host after host: an all-gather or reduce-scatter as fast as one
/// device's link between hosts.
double flat_all_gather_s(const Cluster& cluster, GroupShape group, double bytes);

}  // namespace shoal::plan
