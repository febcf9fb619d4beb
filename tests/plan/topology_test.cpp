// Groups of ranks on hosts, and what a collective of each takes, by figures that are worked out by
// hand.
#include "shoal/plan/topology.h"

#include <gtest/gtest.h>

namespace shoal::plan::topology_test {
namespace {

void expect_shape(GroupShape shape, std::int64_t inside, std::int64_t hosts) {
  EXPECT_EQ(shape.inside, inside);
  EXPECT_EQ(shape.hosts, hosts);
  EXPECT_EQ(shape.ranks(), inside * hosts);
}

Cluster hosts_of(std::int64_t devices) {
  Cluster cluster;
  cluster.devices_per_host = devices;
  return cluster;
}

TEST(GroupShapes, FillHostsByTheirStride) {
  const Cluster cluster = hosts_of(8);
  expect_shape(group_shape(cluster, 1, 1), 1, 1);
  expect_shape(group_shape(cluster, 8, 1), 8, 1);
  expect_shape(group_shape(cluster, 16, 1), 8, 2);
  expect_shape(group_shape(cluster, 3, 1), 3, 1);
  expect_shape(group_shape(cluster, 12, 1), 8, 2);
  expect_shape(group_shape(cluster, 4, 2), 4, 1);
  expect_shape(group_shape(cluster, 8, 2), 4, 2);
  expect_shape(group_shape(cluster, 4, 8), 1, 4);
  expect_shape(group_shape(cluster, 4, 64), 1, 4);
}

TEST(GroupShapes, OfEveryDimension) {
  const Cluster cluster = hosts_of(8);
  Training training;
  Degrees& degrees = training.degrees;
  degrees.tp = 2;
  degrees.cp = 2;
  degrees.dp_shard = 4;
  expect_shape(tensor_group(cluster, degrees), 2, 1);
  expect_shape(context_group(cluster, degrees), 2, 1);
  expect_shape(shard_group(cluster, degrees), 4, 2);
  expect_shape(replica_group(cluster, degrees), 1, 1);
  expect_shape(dense_ranks(cluster, training).shards, 4, 2);
  expect_shape(dense_ranks(cluster, training).replicas, 1, 1);
  degrees.cp = 8;
  expect_shape(context_group(cluster, degrees), 4, 2);
  degrees.cp = 2;
  degrees.shard_over(2, degrees.dp());
  expect_shape(shard_group(cluster, degrees), 2, 1);
  expect_shape(replica_group(cluster, degrees), 2, 2);
  expect_shape(dense_ranks(cluster, training).shards, 4, 2);
  training.zero_stage = 1;
  expect_shape(dense_ranks(cluster, training).shards, 2, 1);
  expect_shape(dense_ranks(cluster, training).replicas, 2, 2);
}

TEST(GroupShapes, OfExperts) {
  const Cluster cluster = hosts_of(8);
  Training training;
  Degrees& degrees = training.degrees;
  degrees.tp = 2;
  degrees.cp = 2;
  degrees.dp_shard = 4;
  degrees.ep = 2;
  expect_shape(expert_group(cluster, training), 2, 1);
  expect_shape(expert_ranks(cluster, training).shards, 4, 2);
  expect_shape(expert_ranks(cluster, training).replicas, 1, 1);
  training.zero_stage = 1;
  expect_shape(expert_ranks(cluster, training).shards, 4, 2);
  degrees.shard_over(2, degrees.dp());
  expect_shape(expert_ranks(cluster, training).shards, 2, 1);
  expect_shape(expert_ranks(cluster, training).replicas, 2, 2);
  // Shoal cuts them over all ranks that hold the same ones, those of other copies included.
  Cluster own = cluster;
  own.runtime = Runtime::kShoal;
  expect_shape(expert_ranks(own, training).shards, 4, 2);
  expect_shape(expert_ranks(own, training).replicas, 1, 1);
  // The 16 ranks hold each expert twice: fewer than the 8 that shard dense parameters.
  degrees.shard_over(degrees.dp() * degrees.cp, degrees.dp());
  degrees.ep = 4;
  training.expert_tensor = 2;
  expect_shape(expert_group(cluster, training), 4, 1);
  expect_shape(expert_tensor_group(cluster, training), 2, 1);
  expect_shape(expert_ranks(cluster, training).shards, 1, 2);
  expect_shape(expert_ranks(cluster, training).replicas, 1, 1);
  degrees.ep = 8;
  expect_shape(expert_group(cluster, training), 4, 2);
}

TEST(Pipelines, CrossHostsWhereAStageFillsOne) {
  const Cluster cluster = hosts_of(8);
  Degrees degrees;
  degrees.pp = 4;
  degrees.tp = 2;
  degrees.cp = 2;
  EXPECT_FALSE(pipeline_crosses_hosts(cluster, degrees));
  degrees.dp_shard = 2;
  EXPECT_TRUE(pipeline_crosses_hosts(cluster, degrees));
  degrees.dp_shard = 4;
  EXPECT_TRUE(pipeline_crosses_hosts(cluster, degrees));
}

/// 100 bytes take 1 s inside a host and 10 s between hosts, at half of each link's bandwidth.
Cluster slow_hosts() {
  Cluster cluster = hosts_of(4);
  cluster.inside = {0.001, 200};
  cluster.between = {0.01, 20};
  cluster.device.efficiency.link_inside = 0.5;
  cluster.device.efficiency.link_between = 0.5;
  return cluster;
}

TEST(Links, HaveTheShareThatCollectivesReach) {
  Cluster cluster = slow_hosts();
  cluster.device.efficiency.link_inside = 0.25;
  EXPECT_DOUBLE_EQ(inside_link(cluster).alpha, 0.001);
  EXPECT_DOUBLE_EQ(inside_link(cluster).beta, 0.02);
  EXPECT_DOUBLE_EQ(inside_link(cluster).gamma, 0);
  EXPECT_DOUBLE_EQ(between_link(cluster).alpha, 0.01);
  EXPECT_DOUBLE_EQ(between_link(cluster).beta, 0.1);
  EXPECT_DOUBLE_EQ(between_link(cluster).gamma, 0);
}

TEST(CollectiveTimes, OfAllReduce) {
  const Cluster cluster = slow_hosts();
  EXPECT_EQ(all_reduce_s(cluster, {1, 1}, 100), 0);
  // Two rounds of halving and two of doubling; three ranks go round a ring.
  EXPECT_DOUBLE_EQ(all_reduce_s(cluster, {4, 1}, 100), 4 * 0.001 + 1.5);
  EXPECT_DOUBLE_EQ(all_reduce_s(cluster, {3, 1}, 100), 4 * 0.001 + 4.0 / 3);
  EXPECT_DOUBLE_EQ(all_reduce_s(cluster, {1, 4}, 100), 4 * 0.01 + 15);
  EXPECT_DOUBLE_EQ(all_reduce_s(cluster, {1, 3}, 100), 4 * 0.01 + 40.0 / 3);
  // Each of four exchanges a quarter between hosts.
  EXPECT_NEAR(all_reduce_s(cluster, {4, 4}, 100), 6 * 0.001 + 1.5 + 4 * 0.01 + 15.0 / 4, 1e-12);
  EXPECT_NEAR(all_reduce_s(cluster, {4, 3}, 100), 6 * 0.001 + 1.5 + 4 * 0.01 + 40.0 / 12, 1e-12);
}

TEST(CollectiveTimes, OfAllGather) {
  const Cluster cluster = slow_hosts();
  EXPECT_EQ(all_gather_s(cluster, {1, 1}, 100), 0);
  EXPECT_DOUBLE_EQ(all_gather_s(cluster, {4, 1}, 100), 2 * 0.001 + 0.75);
  EXPECT_DOUBLE_EQ(all_gather_s(cluster, {3, 1}, 100), 2 * 0.001 + 2.0 / 3);
  EXPECT_DOUBLE_EQ(all_gather_s(cluster, {1, 4}, 100), 2 * 0.01 + 7.5);
  EXPECT_NEAR(all_gather_s(cluster, {4, 2}, 100), 3 * 0.001 + 0.75 + 0.01 + 5.0 / 4, 1e-12);
  EXPECT_NEAR(flat_all_gather_s(cluster, {4, 1}, 100), 3 * 0.001 + 0.75, 1e-12);
  EXPECT_NEAR(flat_all_gather_s(cluster, {4, 2}, 100), 7 * 0.01 + 8.75, 1e-12);
}

// What stays in the host and what leaves it go at the same time.
TEST(CollectiveTimes, OfAllToAll) {
  Cluster cluster = slow_hosts();
  EXPECT_EQ(all_to_all_s(cluster, {1, 1}, 100), 0);
  EXPECT_DOUBLE_EQ(all_to_all_s(cluster, {4, 1}, 100), 3 * 0.001 + 0.75);
  EXPECT_NEAR(all_to_all_s(cluster, {4, 2}, 100), 4 * 0.01 + 5, 1e-12);
  EXPECT_NEAR(all_to_all_s(cluster, {1, 4}, 100), 3 * 0.01 + 7.5, 1e-12);
  cluster.between.bandwidth = 2e6;
  EXPECT_NEAR(all_to_all_s(cluster, {4, 2}, 100), 3 * 0.001 + 0.375, 1e-12);
}

}  // namespace
}  // namespace shoal::plan::topology_test
