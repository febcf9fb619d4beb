#include "shoal/plan/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/ring.h"
#include "shoal/plan/calculators/goodput.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/plan.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "tests/error_text.h"
#include "tests/plan/published.h"
#include "tests/plan/training_on.h"
#include "tests/support/collective_closed_forms.h"

namespace shoal::plan::simulator_test {
namespace {

using ::testing::HasSubstr;

// The closed form of the step against the schedule's own table, for equal stages: head and
// embedding weigh little in a tall narrow vocabulary.
TEST(Plan, ClosedFormAndSimulationAgree) {
  ModelSpec spec = *named_model("gpt3-13b");
  spec.vocab = 128;
  for (const std::int64_t v : {1, 5}) {
    Training training = training_on(1, 1, 8, 64);
    training.virtual_stages = v;
    training.schedule = v > 1 ? "interleaved" : "1f1b";
    const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
    const double simulated =
        simulate_step(PublishedEstimator(), spec, training, cluster).timeline.makespan();
    EXPECT_NEAR(published_step_time(spec, training, cluster).pipeline / simulated, 1, 0.02)
        << "v=" << v;
  }
}

// The closed form is that of the table, with stages of different costs too: of 18 blocks two stages
// have five, and the last one has the head.
TEST(Plan, InTurnAStepTakesTheSumOfAllStages) {
  ModelSpec spec = *named_model("gpt3-13b");
  spec.layers = 18;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 4);
  for (const int micro_batches : {1, 5, 16}) {
    Training training = training_on(1, 1, 4, micro_batches);
    training.schedule = "in_turn";
    const StepTime time = published_step_time(spec, training, cluster);
    const double simulated =
        simulate_step(PublishedEstimator(), spec, training, cluster).timeline.makespan();
    EXPECT_NEAR(time.pipeline / simulated, 1, 1e-9) << micro_batches;
    EXPECT_NEAR(time.bubble / time.pipeline, 0.75, 1e-9) << micro_batches;
    training.schedule = "gpipe";
    const double piped = published_step_time(spec, training, cluster).pipeline;
    EXPECT_GE(time.pipeline, (micro_batches > 1 ? 1.5 : 1 - 1e-9) * piped) << micro_batches;
  }
}

TEST(Plan, InFlightFollowsTheScheduleTables) {
  const ModelSpec spec = *named_model("gpt3-13b");
  for (const char* name :
       {"in_turn", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"}) {
    Training training = training_on(1, 1, 4, 16);
    training.schedule = name;
    if (training.schedule == "interleaved") training.virtual_stages = 2;
    const int chunks = static_cast<int>(training.chunks());
    schedule::StageCost cost{1, 1, 1, 1.0 / chunks, 1.0 / chunks};
    const auto peaks =
        schedule::activation_peak(schedule::make_schedule(name, 4, chunks, 16), {{cost}, 0, 0, {}});
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_NEAR(in_flight(spec, training, rank), peaks[rank], 1e-9) << name << " rank " << rank;
  }
}

TEST(Simulator, AnEvenRingTakesItsClosedForm) {
  const AlphaBeta link{3e-6, 1e-9, 2e-10};
  for (const int n : {1, 2, 5, 8, 64}) {
    const std::size_t count = 1000 * n;
    const auto times = simulate_collective(collective::ring_all_reduce(n, count), 4, link);
    for (const double time : times)
      EXPECT_NEAR(time, ring_all_reduce_s(n, 4.0 * count, link), 1e-12) << n;
  }
}

// Every rank exchanges its whole buffer in each of log2 n rounds.
TEST(Simulator, EvenDoublingTakesItsClosedForm) {
  const AlphaBeta link{5e-6, 1 / 25e9, 1 / 100e9};
  for (const int n : {2, 4, 32}) {
    const std::size_t count = 1 << 16;
    std::vector<int> hosts(static_cast<std::size_t>(n));
    std::iota(hosts.begin(), hosts.end(), 0);
    const auto table = collective::make_table(collective::Algorithm::kRecursiveDoubling,
                                              collective::Kind::kAllReduce, count, 0, hosts);
    const double expected = recursive_doubling_all_reduce_s(n, 4.0 * count, link);
    for (const double seconds : simulate_collective(table, 4, link))
      EXPECT_NEAR(seconds / expected, 1, 1e-9) << n;
  }
}

TEST(Simulator, OneSlowRankHoldsUpTheRing) {
  const AlphaBeta link{3e-6, 1e-9, 0};
  std::vector<double> slow(8, 1);
  slow[3] = 4;
  const auto table = collective::ring_all_reduce(8, 80000);
  const auto even = simulate_collective(table, 4, link);
  const auto uneven = simulate_collective(table, 4, link, slow);
  for (int rank = 0; rank < 8; ++rank) EXPECT_GT(uneven[rank], 2 * even[rank]) << "everybody waits";
  const auto thousands = simulate_collective(collective::ring_all_reduce(1024, 1 << 20), 4, link);
  EXPECT_NEAR(thousands[17] / ring_all_reduce_s(1024, 4.0 * (1 << 20), link), 1, 1e-9);
}

TEST(Simulator, AStragglerSlowsThePipeline) {
  ModelSpec spec = *named_model("gpt3-13b");
  spec.vocab = 128;  // equal stages
  const Training training = training_on(1, 1, 8, 32);
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const auto even = simulate_step(PublishedEstimator(), spec, training, cluster);
  const auto uneven = simulate_step(PublishedEstimator(), spec, training, cluster, {{4, 2.0}});
  EXPECT_GT(uneven.seconds, 1.7 * even.seconds);
  EXPECT_LT(uneven.seconds, 2.1 * even.seconds);
  EXPECT_THROW(simulate_step(PublishedEstimator(), spec, training, cluster, {{8, 2.0}}), Error);
  EXPECT_THROW(simulate_step(PublishedEstimator(), spec, training, cluster, {{1, 0.0}}), Error);
}

// A schedule that went through a file takes as long as the same one that was generated; another one
// as long as its own simulation.
TEST(Simulator, ScheduleFilesTakeTheirOwnTime) {
  const ModelSpec spec = *named_model("gpt3-13b");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 4);
  const Training training = training_on(1, 1, 4, 16);
  const auto step = [&](const Training& one) {
    return simulate_step(PublishedEstimator(), spec, one, cluster);
  };
  const auto of_file = [](Training one, const char* name, int chunks, int micro_batches) {
    one.table = std::make_shared<const schedule::Schedule>(schedule::from_csv(
        schedule::to_csv(schedule::make_schedule(name, 4, chunks, micro_batches)), "file.csv"));
    return one;
  };
  EXPECT_NEAR(step(of_file(training, "1f1b", 1, 16)).seconds / step(training).seconds, 1, 1e-9);
  Training interleaved = training;
  interleaved.schedule = "interleaved";
  interleaved.virtual_stages = 2;
  EXPECT_NEAR(step(of_file(training, "interleaved", 2, 16)).timeline.makespan() /
                  step(interleaved).timeline.makespan(),
              1, 1e-9);
  EXPECT_THAT(error_text([&] { step(of_file(training, "1f1b", 1, 8)); }),
              HasSubstr("8 micro-batches, and a step has 16"));
  EXPECT_THAT(error_text([&] { step(of_file(training_on(2, 1, 2, 16), "1f1b", 1, 16)); }),
              HasSubstr("pp = 2: schedule file.csv is of 4 ranks"));
}

/// Three stages on two ranks, one of which has two of them.
TEST(Simulator, AJobsOwnTableMayGiveRanksOtherNumbersOfStages) {
  const Cluster cluster = with_devices(*cluster_preset("a100"), 2);
  Training training = training_on(1, 1, 2, 1);
  training.table = std::make_shared<const schedule::Schedule>(
      schedule::from_csv("0F0,2F0,2B0,0B0\n1F0,1B0\n", "file.csv"));
  const SimulatedStep step =
      simulate_step(PublishedEstimator(), *named_model("gpt3-13b"), training, cluster);
  EXPECT_GT(step.timeline.makespan(), 0);
  // Each rank holds what all of its stages keep of the one micro-batch.
  ScheduleCache cache;
  EXPECT_EQ(in_flight_by_rank(*named_model("gpt3-13b"), training, cache),
            (std::vector<double>{1, 1}));
}

TEST(Simulator, RandomFailuresMeetDalysModel) {
  const FailureModel failures{4 * 3600.0, 60, 300};
  const double interval = daly_interval_s(failures);
  const double useful = 10 * 200000;
  double mean = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    mean += simulate_run(10, 200000, interval, failures, seed).goodput(useful) / 20;
  EXPECT_NEAR(mean, goodput(failures, interval), 0.005) << "20 runs of about 140 failures each";
  EXPECT_EQ(simulate_run(10, 1000, interval, failures, 7).seconds,
            simulate_run(10, 1000, interval, failures, 7).seconds);
  const SimulatedRun calm = simulate_run(10, 100, 100, {0, 5, 0}, 1);
  EXPECT_DOUBLE_EQ(calm.seconds, 1000 + 9 * 5);
  EXPECT_EQ(calm.failures, 0);
  EXPECT_EQ(calm.checkpoints, 9) << "the last of 10 segments writes none";
}

}  // namespace
}  // namespace shoal::plan::simulator_test
