#include "shoal/plan/turning_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"
#include "tests/error_text.h"

namespace shoal::plan::turning_points_test {
namespace {

using ::testing::HasSubstr;

struct Question {
  const char* model;
  const char* cluster;
  std::int64_t devices;
  std::int64_t global_batch;
};

struct Asked {
  explicit Asked(const Question& question)
      : spec(*named_model(question.model)),
        cluster(with_devices(*cluster_preset(question.cluster), question.devices)) {
    start.global_batch = question.global_batch;
    start.sequence = std::min<std::int64_t>(4096, spec.sequence);
  }
  Candidate best() const {
    const auto found = search(PublishedEstimator(), spec, start, cluster, space, 1).best;
    EXPECT_FALSE(found.empty());
    return found.at(0);
  }
  /// The same question under another value of a condition.
  Asked with(const std::string& condition, double value) const {
    Asked changed = *this;
    if (condition == "links inside hosts") changed.cluster.inside.bandwidth = value;
    if (condition == "links between hosts") changed.cluster.between.bandwidth = value;
    if (condition == "device memory") changed.cluster.device.memory_bytes = value;
    if (condition == "micro-batch") changed.space.micro_batch = {static_cast<std::int64_t>(value)};
    return changed;
  }

  ModelSpec spec;
  Cluster cluster;
  Training start;
  SearchSpace space;
};

std::vector<std::int64_t> mesh_of(const Candidate& candidate) {
  const Degrees& degrees = candidate.training.degrees;
  return {degrees.dp(), degrees.tp, degrees.pp, degrees.cp, degrees.ep};
}

const Question kQuestions[] = {{"llama-3b", "a100", 16, 64},
                               {"llama-8b", "h100", 32, 64},
                               {"llama-13b", "wan", 16, 32},
                               {"moe-tiny", "cpu", 4, 16}};

// The reference is the search itself, asked again under the changed condition.
TEST(TurningPoints, SearchingAgainFindsTheOtherMesh) {
  int turns = 0;
  for (const Question& question : kQuestions) {
    const Asked asked(question);
    const auto present = mesh_of(asked.best());
    for (const TurningPoint& turn :
         sensitivity(PublishedEstimator(), asked.spec, asked.start, asked.cluster, asked.space)
             .turning_points) {
      SCOPED_TRACE(std::string(question.model) + ", " + turn.condition);
      const bool counted = turn.condition == "micro-batch";
      if (!turn.winner) {
        for (const double factor : {1 / kFarthestChange, kFarthestChange}) {
          if (counted) continue;
          const Asked far = asked.with(turn.condition, turn.now * factor);
          const auto found =
              search(PublishedEstimator(), far.spec, far.start, far.cluster, far.space, 1).best;
          if (found.empty()) continue;
          EXPECT_EQ(mesh_of(found[0]), present) << factor;
        }
        continue;
      }
      ++turns;
      const Candidate there = asked.with(turn.condition, turn.then).best();
      EXPECT_NE(mesh_of(there), present);
      EXPECT_EQ(mesh_of(*turn.winner), mesh_of(there));
      EXPECT_NEAR(turn.winner->time.all() / there.time.all(), 1, 1e-12);
      EXPECT_FALSE(turn.winner->limited_by.empty());
      // A sixteenth of a doubling nearer, the answer still stands.
      const double back = turn.then > turn.now ? std::exp2(-1.0 / 16) : std::exp2(1.0 / 16);
      if (counted) continue;
      EXPECT_EQ(mesh_of(asked.with(turn.condition, turn.then * back).best()), present)
          << turn.then / turn.now;
    }
  }
  EXPECT_GE(turns, 6) << "too few to have tested much";
}

TEST(TurningPoints, LimitsShareTheStep) {
  for (const Question& question : {kQuestions[0], kQuestions[1], kQuestions[2]}) {
    const Asked asked(question);
    const Candidate best = asked.best();
    const Limits limits =
        sensitivity(PublishedEstimator(), asked.spec, asked.start, asked.cluster, asked.space)
            .limits;
    EXPECT_NEAR(limits.compute + limits.recomputation + limits.communication + limits.bubbles, 1,
                1e-12);
    for (const double share : {limits.compute, limits.recomputation, limits.communication,
                               limits.bubbles, limits.memory}) {
      EXPECT_GE(share, 0) << question.model;
      EXPECT_LE(share, 1) << question.model;
    }
    const StepTime& time = best.time;
    EXPECT_NEAR(limits.recomputation, time.recomputed / time.all(), 1e-12) << question.model;
    EXPECT_NEAR(limits.communication, (time.communication + time.data_exposed) / time.all(), 1e-12)
        << question.model;
    EXPECT_NEAR(limits.bubbles, time.bubble / time.all(), 1e-12) << question.model;
    const double unlimited = asked.with("device memory", 1e18).best().time.all();
    EXPECT_NEAR(limits.memory, 1 - unlimited / best.time.all(), 1e-12) << question.model;
  }
}

TEST(TurningPoints, OnlyConditionsThatTheClusterHas) {
  const Asked one({"gpt2-124m", "a100", 1, 8});
  const auto turns =
      sensitivity(PublishedEstimator(), one.spec, one.start, one.cluster, one.space).turning_points;
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].condition, "device memory");
  EXPECT_FALSE(turns[0].winner) << "one device has one mesh";
  EXPECT_FALSE(turns[1].winner);
}

TEST(TurningPoints, NothingFitsIsNamed) {
  const Asked asked({"llama-405b", "a100", 8, 8});
  EXPECT_THAT(error_text([&] {
                sensitivity(PublishedEstimator(), asked.spec, asked.start, asked.cluster,
                            asked.space);
              }),
              HasSubstr("nothing fits"));
}

TEST(TurningPoints, AreSaidInWords) {
  Candidate other;
  other.training.degrees.dp_shard = 4;
  other.training.degrees.tp = 2;
  other.training.zero_stage = 2;
  other.training.micro_batch = 8;
  other.time.pipeline = 3;
  const double gib = 1024.0 * 1024 * 1024;
  Sensitivity answer;
  answer.limits = {.compute = 0.5,
                   .recomputation = 0.125,
                   .communication = 0.25,
                   .bubbles = 0.0625,
                   .memory = 0.03125};
  answer.turning_points = {{"links inside hosts", 2e9, 3e9, other},
                           {"device memory", 4 * gib, 6 * gib, other},
                           {"micro-batch", 2, 8, other},
                           {"links between hosts", 1e9, 0, std::nullopt},
                           {"micro-batch", 1, 0, std::nullopt}};
  EXPECT_EQ(to_text(answer),
            "the first spends 50.0 % of its step on computation, 25.0 % on exchange, 6.2 % in "
            "bubbles, 12.5 % on recomputation; memory without end would save 3.1 %\n"
            "what would make another mesh the fastest\n"
            "  links inside hosts   1.50 times, 3 GB/s: dp 4 x tp 2 x pp 1, ZeRO 2, micro-batch 8, "
            "3 s\n"
            "  device memory        1.50 times, 6 GiB: dp 4 x tp 2 x pp 1, ZeRO 2, micro-batch 8, "
            "3 s\n"
            "  micro-batch          8 instead of 2: dp 4 x tp 2 x pp 1, ZeRO 2, micro-batch 8, 3 "
            "s\n"
            "  links between hosts  nothing up to 8 times more or less\n"
            "  micro-batch          no other that fits\n");
}

}  // namespace
}  // namespace shoal::plan::turning_points_test
