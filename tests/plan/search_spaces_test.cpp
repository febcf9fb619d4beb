// The meshes that a search looks at.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::search_spaces_test {
namespace {

std::vector<Candidate> candidates(const ModelSpec& spec, const Training& start,
                                  const Cluster& cluster, const SearchSpace& space) {
  return search(PublishedEstimator(), spec, start, cluster, space, 100000, 1e9).best;
}

TEST(SearchSpaces, LeaveAShareOfTheMemory) {
  EXPECT_EQ(kMemoryShare, 0.94);
  Training start = on(8);
  SearchSpace space;
  space.tensor = space.pipeline = {1};
  space.micro_batch = {3};
  space.zero_stage = {0};
  space.recompute = {Recompute::kNone};
  Cluster cluster = cluster_of(8);
  Training training = start;
  training.micro_batch = 3;
  const double peak = make_plan(PublishedEstimator(), small(), training, cluster).peak().all();
  cluster.device.memory_bytes = peak / 0.94 * 1.000001;
  SearchResult found = search(PublishedEstimator(), small(), start, cluster, space);
  ASSERT_EQ(found.best.size(), 1u);
  EXPECT_EQ(found.considered, 1);
  EXPECT_EQ(found.too_large, 0);
  EXPECT_DOUBLE_EQ(found.least_bytes, peak);
  EXPECT_DOUBLE_EQ(found.best[0].peak_bytes, peak);
  EXPECT_FALSE(found.best[0].limited_by.empty());
  cluster.device.memory_bytes = peak / 0.94 * 0.999999;
  found = search(PublishedEstimator(), small(), start, cluster, space);
  EXPECT_TRUE(found.best.empty());
  EXPECT_EQ(found.too_large, 1);
  EXPECT_DOUBLE_EQ(found.least_bytes, peak);
}

TEST(SearchSpaces, ReturnFiveAtMost) {
  const SearchResult found = search(PublishedEstimator(), small(), on(8), cluster_of(8), {});
  ASSERT_EQ(found.best.size(), 5u);
  for (std::size_t i = 1; i < 5; ++i)
    EXPECT_LE(found.best[i - 1].time.all(), found.best[i].time.all());
}

// A rank keeps 4096 tokens of a cut sequence at least.
TEST(SearchSpaces, CutLongSequences) {
  ModelSpec spec = small();
  spec.positions = Positions::kRotary;
  Training start;
  start.global_batch = 8;
  const auto sizes = [&](std::int64_t length) {
    start.sequence = length;
    SearchSpace space;
    space.tensor = space.pipeline = {1};
    std::set<std::int64_t> found;
    for (const Candidate& one : candidates(spec, start, cluster_of(8), space))
      found.insert(one.training.degrees.cp);
    return found;
  };
  EXPECT_EQ(sizes(8191), (std::set<std::int64_t>{1}));
  EXPECT_EQ(sizes(8192), (std::set<std::int64_t>{1, 2}));
  EXPECT_EQ(sizes(16384), (std::set<std::int64_t>{1, 2, 4}));
}

TEST(SearchSpaces, HoldEverySizeThatDivides) {
  SearchSpace space;
  space.zero_stage = {0};
  space.schedules = {"1f1b"};
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> meshes;
  std::set<std::int64_t> micro_batches;
  Training start = on(8);
  for (const Candidate& one : candidates(small(), start, cluster_of(8), space)) {
    const Degrees& degrees = one.training.degrees;
    meshes.insert({degrees.tp, degrees.pp, degrees.dp()});
    if (degrees.dp() == 2) micro_batches.insert(one.training.micro_batch);
    EXPECT_EQ(one.training.schedule, "1f1b");
  }
  // Four heads and four blocks; eight pipeline stages would be one too many.
  EXPECT_EQ(
      meshes,
      (std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
          {1, 1, 8}, {1, 2, 4}, {1, 4, 2}, {2, 1, 4}, {2, 2, 2}, {2, 4, 1}, {4, 1, 2}, {4, 2, 1}}));
  EXPECT_EQ(micro_batches, (std::set<std::int64_t>{1, 2, 4})) << "powers of two that divide 12";
}

// A rank alone has nobody to shard with.
TEST(SearchSpaces, OneRankShardsNothing) {
  Training start;
  start.global_batch = 4;
  const auto all = candidates(small(), start, cluster_of(1), {});
  EXPECT_FALSE(all.empty());
  for (const Candidate& one : all) EXPECT_EQ(one.training.zero_stage, 0);
}

TEST(SearchSpaces, ShardOverHostsWhereAsked) {
  const auto shards = [&](std::int64_t devices, bool hybrid) {
    SearchSpace space;
    space.tensor = {2};
    space.pipeline = {1};
    space.micro_batch = {1};
    space.hybrid_sharding = hybrid;
    std::set<std::pair<int, std::int64_t>> found;
    Training start;
    start.global_batch = 16;
    for (const Candidate& one : candidates(small(), start, cluster_of(devices), space))
      found.insert({one.training.zero_stage, one.training.degrees.shard_ranks()});
    return found;
  };
  using Found = std::set<std::pair<int, std::int64_t>>;
  EXPECT_EQ(shards(16, false), (Found{{0, 8}, {1, 8}, {2, 8}, {3, 8}}));
  EXPECT_EQ(shards(16, true), (Found{{0, 8}, {1, 8}, {1, 4}, {2, 8}, {2, 4}, {3, 8}, {3, 4}}));
  EXPECT_EQ(shards(8, true), shards(8, false)) << "one host holds all";
}

TEST(SearchSpaces, PlaceExpertsWhereTheyDivide) {
  ModelSpec spec = small();
  spec.experts = 6;
  spec.experts_per_token = 2;
  SearchSpace space;
  space.tensor = {1};
  space.pipeline = {2};
  space.micro_batch = {1};
  space.zero_stage = {0};
  std::set<std::int64_t> experts;
  Training start;
  start.global_batch = 12;
  for (const Candidate& one : candidates(spec, start, cluster_of(8), space))
    experts.insert(one.training.degrees.ep);
  EXPECT_EQ(experts, (std::set<std::int64_t>{1, 2})) << "of six experts and four ranks";
}

TEST(SearchSpaces, RecomputeAsLittleAsFits) {
  Training start = on(8);
  start.flash_attention = false;
  SearchSpace space;
  space.tensor = space.pipeline = {1};
  space.micro_batch = {3};
  space.zero_stage = {0};
  const auto chosen = [&](Recompute most) {
    Training training = start;
    training.micro_batch = 3;
    training.recompute = most;
    Cluster cluster = cluster_of(8);
    cluster.device.memory_bytes =
        make_plan(PublishedEstimator(), small(), training, cluster).peak().all();
    const SearchResult found = search(PublishedEstimator(), small(), start, cluster, space, 5, 1.0);
    EXPECT_EQ(found.best.size(), 1u);
    return found.best.empty() ? Recompute::kNone : found.best[0].training.recompute;
  };
  EXPECT_EQ(chosen(Recompute::kNone), Recompute::kNone);
  EXPECT_EQ(chosen(Recompute::kSelective), Recompute::kSelective);
  EXPECT_EQ(chosen(Recompute::kFull), Recompute::kFull);
}

TEST(SearchSpaces, InterleaveWholeStages) {
  ModelSpec spec = small();
  spec.layers = 8;
  SearchSpace space;
  space.tensor = {1};
  space.pipeline = {2};
  space.micro_batch = {1};
  space.zero_stage = {0};
  std::set<std::pair<std::string, std::int64_t>> found;
  Training start;
  start.global_batch = 16;
  for (const Candidate& one : candidates(spec, start, cluster_of(8), space))
    found.insert({one.training.schedule, one.training.virtual_stages});
  EXPECT_EQ(found, (std::set<std::pair<std::string, std::int64_t>>{
                       {"1f1b", 1}, {"interleaved", 2}, {"interleaved", 4}}));
}

// The states that a job describes are those of its own precision alone.
TEST(SearchSpaces, StatesBelongToTheirPrecision) {
  SearchSpace space;
  space.tensor = space.pipeline = {1};
  space.micro_batch = {1};
  space.zero_stage = {0};
  space.precisions = {"fp32", "bf16"};
  Training start;
  start.global_batch = 8;
  start.precision = "fp32";
  start.states = StateBytes{};
  const auto all = candidates(small(), start, cluster_of(8), space);
  ASSERT_EQ(all.size(), 2u);
  for (const Candidate& one : all)
    EXPECT_EQ(one.training.states.has_value(), one.training.precision == "fp32");
}

}  // namespace
}  // namespace shoal::plan::search_spaces_test
