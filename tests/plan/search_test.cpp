#include "shoal/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shoal/plan/memory.h"
#include "shoal/plan/plan.h"
#include "tests/plan/published.h"

namespace shoal::plan::search_test {
namespace {

TEST(Search, FindsWhatTryingEverythingFinds) {
  const ModelSpec spec = *named_model("llama-3b");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 16);
  Training start;
  start.global_batch = 64;
  start.sequence = 4096;
  SearchSpace space;
  space.schedules = {"1f1b"};
  const SearchResult found = search(PublishedEstimator(), spec, start, cluster, space, 3, 1.0);
  ASSERT_EQ(found.best.size(), 3u);
  double fastest = 1e30;
  int tried = 0;
  for (const std::int64_t tp : {1, 2, 4, 8}) {
    for (const std::int64_t pp : {1, 2, 4, 8, 16}) {
      for (const std::int64_t micro : {1, 2, 4, 8, 16, 32, 64}) {
        for (int zero = 0; zero < 4; ++zero) {
          for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
            Training training = start;
            if (16 % (tp * pp) != 0) continue;
            training.degrees.tp = tp;
            training.degrees.pp = pp;
            training.degrees.dp_shard = 16 / tp / pp;
            training.micro_batch = micro;
            training.zero_stage = zero;
            training.recompute = recompute;
            if (64 % (training.degrees.dp() * micro) != 0 ||
                (zero > 0 && training.degrees.dp() == 1))
              continue;
            const Plan plan = make_plan(PublishedEstimator(), spec, training, cluster);
            ++tried;
            if (plan.fits()) fastest = std::min(fastest, plan.time.all());
          }
        }
      }
    }
  }
  EXPECT_GT(tried, 300);
  EXPECT_DOUBLE_EQ(found.best[0].time.all(), fastest);
  EXPECT_LE(found.best[0].time.all(), found.best[1].time.all());
  for (const Candidate& candidate : found.best)
    EXPECT_LE(candidate.peak_bytes, cluster.device.memory_bytes);
}

TEST(Search, SaysHowFarNothingFits) {
  Training start;
  start.global_batch = 8;
  start.sequence = 4096;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const SearchResult found =
      search(PublishedEstimator(), *named_model("llama-405b"), start, cluster, {});
  EXPECT_TRUE(found.best.empty());
  EXPECT_GT(found.least_bytes, cluster.device.memory_bytes);
  EXPECT_EQ(found.too_large, found.considered);
}

TEST(Search, WhatIsFixedStays) {
  const ModelSpec spec = *named_model("llama-3b");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 16);
  Training start;
  start.global_batch = 64;
  start.sequence = 4096;
  SearchSpace space;
  space.data = {4};
  space.shard = {2};
  space.recompute = {Recompute::kNone};
  space.offload = {true};
  const auto found = search(PublishedEstimator(), spec, start, cluster, space, 1000).best;
  ASSERT_FALSE(found.empty());
  for (const Candidate& one : found) {
    EXPECT_EQ(one.training.degrees.dp(), 4);
    EXPECT_EQ(one.training.degrees.shard_ranks(), 2);
    EXPECT_GE(one.training.zero_stage, 1) << "stage 0 shards nothing";
    EXPECT_EQ(one.training.recompute, Recompute::kNone);
    EXPECT_TRUE(one.training.offload_optimizer);
  }
  space.data = {3};
  EXPECT_EQ(search(PublishedEstimator(), spec, start, cluster, space).considered, 0);
  space.data = {};
  space.virtual_stages = {2};
  for (const Candidate& one : search(PublishedEstimator(), spec, start, cluster, space, 1000).best)
    EXPECT_EQ(one.training.virtual_stages, 2);
}

// Schedules without a closed form are carried out once for all ways that share their pipeline, and
// not at all where a step without bubbles would be too long already: the answer is that of pricing
// every way on its own.
TEST(Search, WhatIsRememberedAndPrunedChangesNothing) {
  const ModelSpec spec = *named_model("llama-3b");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 16);
  Training start;
  start.global_batch = 64;
  start.sequence = 4096;
  SearchSpace space;
  space.schedules = {"zb-h1", "zb-h2", "zb-v", "dualpipe-v", "gpipe"};
  space.hybrid_sharding = true;
  space.offload = {false, true};
  const auto found = search(PublishedEstimator(), spec, start, cluster, space, 200, 1.0).best;
  ScheduleCache cache;
  for (const Candidate& candidate :
       every_strategy(PublishedEstimator(), spec, start, cluster, space, cache)) {
    EXPECT_DOUBLE_EQ(candidate.time.all(),
                     published_step_time(spec, candidate.training, cluster).all());
    EXPECT_DOUBLE_EQ(candidate.peak_bytes,
                     worst(published_memory(spec, candidate.training, cluster)).peak().use.all());
  }
  ASSERT_EQ(found.size(), 200u);
  for (const Candidate& one : found)
    EXPECT_DOUBLE_EQ(one.time.all(), published_step_time(spec, one.training, cluster).all());
  const auto more = search(PublishedEstimator(), spec, start, cluster, space, 100000, 1.0).best;
  ASSERT_GT(more.size(), 1000u) << "nothing is pruned where all are wanted";
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_DOUBLE_EQ(found[i].time.all(), more[i].time.all());
}

}  // namespace
}  // namespace shoal::plan::search_test
