#include "shoal/plan/topology.h"

#include <algorithm>

namespace shoal::plan {
namespace {

/// Returns true where each group of `ranks` devices that are `stride` apart lies on one host. The
/// first may do so and the next one not: two of three devices, and the third with one elsewhere.
bool on_one_host(const Cluster& cluster, std::int64_t ranks, std::int64_t stride) {
  return cluster.hosts == 1 || cluster.devices_per_host % (ranks * stride) == 0;
}

}  // namespace

GroupShape group_shape(const Cluster& cluster, std::int64_t ranks, std::int64_t stride) {
  // Ranks are numbered host by host, so every stride-th device of a host belongs to the group.
  const std::int64_t inside = std::clamp<std::int64_t>(cluster.devices_per_host / stride, 1, ranks);
  return {inside, (ranks + inside - 1) / inside};
}

GroupShape tensor_group(const Cluster& cluster, const Degrees& degrees) {
  return group_shape(cluster, degrees.tp, 1);
}
GroupShape context_group(const Cluster& cluster, const Degrees& degrees) {
  return group_shape(cluster, degrees.cp, degrees.tp);
}
GroupShape shard_group(const Cluster& cluster, const Degrees& degrees) {
  return group_shape(cluster, degrees.shard_ranks(), degrees.tp);
}
GroupShape replica_group(const Cluster& cluster, const Degrees& degrees) {
  return group_shape(cluster, degrees.dp() * degrees.cp / degrees.shard_ranks(),
                     degrees.tp * degrees.shard_ranks());
}
GroupShape expert_group(const Cluster& cluster, const Training& training) {
  return group_shape(cluster, training.degrees.ep, training.expert_tensor);
}
GroupShape expert_tensor_group(const Cluster& cluster, const Training& training) {
  return group_shape(cluster, training.expert_tensor, 1);
}

bool tensor_ranks_share_memory(const Cluster& cluster, const Degrees& degrees) {
  return on_one_host(cluster, degrees.tp, 1);
}
bool context_ranks_share_memory(const Cluster& cluster, const Degrees& degrees) {
  return on_one_host(cluster, degrees.cp, degrees.tp);
}
bool expert_ranks_share_memory(const Cluster& cluster, const Training& training) {
  return on_one_host(cluster, training.degrees.ep, training.expert_tensor);
}

DataRanks dense_ranks(const Cluster& cluster, const Training& training) {
  const Degrees degrees = training.reducing();
  if (training.zero_stage == 0)
    return {group_shape(cluster, degrees.dp() * degrees.cp, degrees.tp), {}};
  // Shards lie on neighbouring ranks, so that the larger exchange stays inside hosts; replicas are
  // a shard group apart.
  return {shard_group(cluster, degrees), replica_group(cluster, degrees)};
}

DataRanks replicated_ranks(const Cluster& cluster, const Training& training) {
  if (cluster.runtime != Runtime::kShoal) return dense_ranks(cluster, training);
  const Degrees degrees = training.reducing();
  const std::int64_t all = degrees.dp() * degrees.cp * degrees.tp;
  if (training.zero_stage == 0) return {group_shape(cluster, all, 1), {}};
  return {group_shape(cluster, degrees.shard_ranks() * degrees.tp, 1),
          replica_group(cluster, degrees)};
}

DataRanks expert_ranks(const Cluster& cluster, const Training& training) {
  const Degrees& degrees = training.degrees;
  // No matrix of an expert is cut along tp there.
  if (cluster.runtime == Runtime::kShoal && degrees.ep == 1 && training.expert_tensor == 1)
    return replicated_ranks(cluster, training);
  const std::int64_t all = training.expert_data();
  const std::int64_t stride = degrees.ep * training.expert_tensor;
  // An expert has `all` data ranks, which may be fewer than ZeRO would shard over. Shoal cuts the
  // state of divided experts over all of them, those of other copies included.
  const bool all_cut =
      training.zero_stage == 0 || (cluster.runtime == Runtime::kShoal && degrees.ep > 1);
  const std::int64_t shards = all_cut ? all : std::min(all, degrees.shard_ranks());
  return {group_shape(cluster, shards, stride),
          group_shape(cluster, all / shards, stride * shards)};
}

bool pipeline_crosses_hosts(const Cluster& cluster, const Degrees& degrees) {
  // Stages are the outermost axis: neighbours in the pipeline are this many ranks apart.
  return degrees.tp * degrees.cp * degrees.dp() >= cluster.devices_per_host;
}

AlphaBeta inside_link(const Cluster& cluster) {
  return {cluster.inside.latency_s,
          1 / (cluster.inside.bandwidth * cluster.device.efficiency.link_inside), 0};
}
AlphaBeta between_link(const Cluster& cluster) {
  return {cluster.between.latency_s,
          1 / (cluster.between.bandwidth * cluster.device.efficiency.link_between), 0};
}

double all_reduce_s(const Cluster& cluster, GroupShape group, double bytes) {
  const std::int64_t n = group.ranks();
  if (n <= 1) return 0;
  const AlphaBeta inside = inside_link(cluster);
  const AlphaBeta between = between_link(cluster);
  if (group.hosts > 1 && group.inside > 1) {
    // Rings and recursive doubling across hosts: few bytes take the one with fewer rounds.
    const double across = halving_doubling_all_reduce_s(group.hosts, bytes / group.inside, between);
    const double in_host = 2 * ring_all_gather_s(group.inside, bytes, inside);
    return std::min(two_level_all_reduce_s(group.inside, group.hosts, bytes, inside, between),
                    in_host + across);
  }
  const AlphaBeta link = group.hosts > 1 ? between : inside;
  return std::min(ring_all_reduce_s(n, bytes, link), halving_doubling_all_reduce_s(n, bytes, link));
}

double all_gather_s(const Cluster& cluster, GroupShape group, double bytes) {
  const std::int64_t n = group.ranks();
  if (n <= 1) return 0;
  const AlphaBeta inside = inside_link(cluster);
  const AlphaBeta between = between_link(cluster);
  if (group.hosts > 1 && group.inside > 1)
    return two_level_all_gather_s(group.inside, group.hosts, bytes, inside, between);
  const AlphaBeta link = group.hosts > 1 ? between : inside;
  // Recursive doubling moves as many bytes in log n rounds.
  const double ring = ring_all_gather_s(n, bytes, link);
  const double doubling = halving_doubling_all_reduce_s(n, bytes, link) / 2;
  return std::min(ring, doubling);
}

double flat_all_gather_s(const Cluster& cluster, GroupShape group, double bytes) {
  return ring_all_gather_s(group.ranks(), bytes,
                           group.hosts > 1 ? between_link(cluster) : inside_link(cluster));
}

double all_to_all_s(const Cluster& cluster, GroupShape group, double bytes) {
  const std::int64_t n = group.ranks();
  if (n <= 1) return 0;
  const AlphaBeta inside = inside_link(cluster);
  const AlphaBeta between = between_link(cluster);
  if (group.hosts == 1) return pairwise_all_to_all_s(n, bytes, inside);
  // Traffic that leaves the host and traffic that stays overlap: the slower of the two counts.
  const double away = bytes * (n - group.inside) / n;
  const double near = bytes * (group.inside - 1) / n;
  return std::max((n - group.inside) * between.alpha + away * between.beta,
                  (group.inside - 1) * inside.alpha + near * inside.beta);
}

}  // namespace shoal::plan
