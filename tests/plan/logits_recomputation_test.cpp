// Where the head of a pipeline makes the gradient of its matrix.
#include "shoal/plan/logits_recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "shoal/plan/unit_costs.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::logits_recomputation_test {
namespace {

using schedule::Kind;
using ::testing::HasSubstr;

constexpr std::int64_t kLong = 1025;

ModelSpec long_model() {
  ModelSpec spec = small();
  spec.sequence = kLong;
  return spec;
}

Training pipeline_of(const char* schedule, std::int64_t micro_batches, std::int64_t ranks = 2) {
  Training training;
  training.degrees.pp = ranks;
  training.schedule = schedule;
  training.micro_batch = 1;
  training.global_batch = micro_batches;
  return training;
}

TEST(LogitsRecomputation, WhereSeveralMicroBatchesAreBetweenTheirPasses) {
  const ModelSpec spec = long_model();
  for (const std::int64_t m : {1, 2, 8}) {
    EXPECT_EQ(recomputes_logits(spec, pipeline_of("gpipe", m)), m > 1) << m;
    EXPECT_EQ(recomputes_logits(spec, pipeline_of("gpipe", m, 3)), m > 1) << m;
    // The last rank runs each backward pass right after its forward pass.
    EXPECT_FALSE(recomputes_logits(spec, pipeline_of("1f1b", m))) << m;
  }
  Training interleaved = pipeline_of("interleaved", 4);
  interleaved.virtual_stages = 2;
  EXPECT_FALSE(recomputes_logits(spec, interleaved));
}

TEST(LogitsRecomputation, NotWithoutAPipelineNorWithFewRows) {
  EXPECT_FALSE(recomputes_logits(long_model(), pipeline_of("gpipe", 4, 1)));
  Training training = pipeline_of("gpipe", 4);
  training.sequence = 1024;
  EXPECT_FALSE(recomputes_logits(long_model(), training));
  training.micro_batch = 2;
  training.global_batch = 8;
  EXPECT_TRUE(recomputes_logits(long_model(), training));
  // Context ranks have some columns each: 512 and 513 of two samples.
  training.degrees.cp = 2;
  EXPECT_FALSE(recomputes_logits(long_model(), training));
  training.sequence = kLong;
  EXPECT_TRUE(recomputes_logits(long_model(), training));
}

// One micro-batch on two ranks, with a, b and h FLOPs of the first stage, of the second without the
// head, and of the head: a + b + 3h forward, b and a back, and a for the first stage's weights; or
// one h less, and 2h with the second stage's weights beside the first stage's backward pass.
TEST(LogitsRecomputation, WhereWeightGradientsThatArePutOffMakeTheStepShorter) {
  ModelSpec spec = long_model();
  for (const std::int64_t vocab : {64, 2048, 32768}) {
    spec.vocab = vocab;
    const auto costs = unit_costs(spec, kLong);
    for (const std::int64_t blocks : {0, 2, 4}) {
      Training training = pipeline_of("zb-h1", 1);
      training.stage_layers = {blocks, 4 - blocks};
      const double a = costs[0] + static_cast<double>(blocks) * costs[1];
      const double b = static_cast<double>(4 - blocks) * costs[1];
      const double h = costs.back();
      const double forward = a + b + 3 * h + b + std::max(2 * a, b);
      const double late = a + b + 2 * h + b + std::max(2 * a, b + 2 * h);
      EXPECT_EQ(recomputes_logits(spec, training), late < forward) << vocab << " " << blocks;
    }
  }
  // Of many micro-batches each takes a fourth product, and the rank of the head has no time for it.
  spec.vocab = 2048;
  EXPECT_FALSE(recomputes_logits(spec, pipeline_of("zb-h1", 32)));
  EXPECT_TRUE(recomputes_logits(spec, pipeline_of("zb-h1", 1)));
}

// A stage is released when it has its input gradients.
TEST(LogitsRecomputation, NotWhereTheMatrixMayHaveBeenReleased) {
  const ModelSpec spec = long_model();
  for (const std::int64_t m : {1, 4}) {
    Training training = pipeline_of("zb-h1", m);
    training.zero_stage = 3;
    EXPECT_FALSE(recomputes_logits(spec, training));
    training.schedule = "gpipe";
    EXPECT_EQ(recomputes_logits(spec, training), m > 1);
  }
}

// A table of somebody's own, in which two passes of the head are open at once.
TEST(LogitsRecomputation, FollowsTheTable) {
  const ModelSpec spec = long_model();
  schedule::Schedule table{"by hand", 2, {0, 1}, {{}, {}}};
  for (const int rank : {0, 1}) {
    for (const Kind kind : {Kind::kForward, Kind::kInputGradient, Kind::kWeightGradient})
      for (const int micro_batch : {0, 1}) table.table[rank].push_back({kind, rank, micro_batch});
  }
  schedule::add_transfers(table);
  const Training training = pipeline_of("1f1b", 2);
  EXPECT_TRUE(recomputes_logits(spec, training, table, {3, 3}));
}

// The published formulas know neither form of the head: their plans say nothing of it.
TEST(LogitsRecomputation, APlanOfPublishedFormulasSaysNothing) {
  const Cluster cluster = with_devices(*cluster_preset("cpu"), 2);
  const Training training = pipeline_of("gpipe", 4);
  const Plan plan = make_plan(PublishedEstimator(), long_model(), training, cluster);
  EXPECT_EQ(plan.recompute_logits, std::nullopt);
  EXPECT_THAT(to_text(plan), ::testing::Not(HasSubstr("head:")));
}

/// Counts how often it is asked for the choice, and expects to be told its own answer.
class CountingEstimator : public Estimator {
 public:
  std::vector<RankMemory> memory(const ModelSpec& spec, const Training& training,
                                 const Cluster& cluster, ScheduleCache& cache) const override {
    EXPECT_EQ(training.recompute_logits, std::optional(true));
    ++memories;
    return published_memory(spec, training, cluster, cache);
  }
  StepTime step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                     ScheduleCache& cache, double cutoff_s) const override {
    EXPECT_EQ(training.recompute_logits, std::optional(true));
    return published_step_time(spec, training, cluster, cache, cutoff_s);
  }
  schedule::Costs stage_costs(const ModelSpec& spec, const Training& training,
                              const Cluster& cluster) const override {
    return PublishedEstimator().stage_costs(spec, training, cluster);
  }
  std::optional<bool> recomputes_logits(const ModelSpec&, const Training& training,
                                        const Cluster&) const override {
    EXPECT_EQ(training.recompute_logits, std::nullopt);
    ++choices;
    return true;
  }

  mutable int memories = 0;
  mutable int choices = 0;
};

// Finding it may take two simulations.
TEST(LogitsRecomputation, IsFoundOnceForAPlanAndForACandidate) {
  const Cluster cluster = with_devices(*cluster_preset("cpu"), 2);
  const Training training = pipeline_of("zb-h1", 4);
  const CountingEstimator planned;
  EXPECT_EQ(make_plan(planned, long_model(), training, cluster).recompute_logits,
            std::optional(true));
  EXPECT_EQ(planned.choices, 1);
  const CountingEstimator searched;
  SearchSpace space;
  space.schedules = {"zb-h1"};
  const SearchResult result = search(searched, long_model(), training, cluster, space, 10);
  ASSERT_FALSE(result.best.empty());
  EXPECT_GT(searched.choices, 0);
  EXPECT_EQ(searched.choices, searched.memories);
  // Whoever changes a candidate's options finds the choice anew.
  for (const Candidate& one : result.best) EXPECT_EQ(one.training.recompute_logits, std::nullopt);
}

// A choice that has been made stands.
TEST(LogitsRecomputation, IsNotFoundAnewWhereTheTrainingHasIt) {
  Training training = pipeline_of("1f1b", 4);
  training.recompute_logits = true;
  EXPECT_TRUE(recomputes_logits(long_model(), training));
}

}  // namespace
}  // namespace shoal::plan::logits_recomputation_test
