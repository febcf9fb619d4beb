// Figures of a plan and of the run around it, worked out by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shoal/plan/calculators/goodput.h"
#include "shoal/plan/flops.h"
#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "shoal/plan/simulator.h"
#include "tests/error_text.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::plan_figures_test {
namespace {

using ::testing::HasSubstr;

TEST(StepFlops, OfAMixture) {
  ModelSpec spec = small();
  spec.experts = 8;
  spec.experts_per_token = 2;
  spec.kv_heads = 2;
  const BlockFlops block = block_forward_flops(spec, 3, 128);
  const double tokens = 3 * 128;
  EXPECT_DOUBLE_EQ(block.products,
                   tokens * (2 * 64 * (2 * 64 + 2 * 32) + 2 * (4 * 64 * 256) + 2.0 * 64 * 8));
  EXPECT_DOUBLE_EQ(block.core, 4 * tokens * 128 * 64);
  spec.gated = true;
  EXPECT_DOUBLE_EQ(block_forward_flops(spec, 3, 128).products - block.products,
                   tokens * 2 * 2.0 * 64 * 256);
}

// Every named model, of which some have dense blocks before those with experts: what one rank holds
// is what the model lists, and the blocks' products with the head are its training FLOPs.
TEST(StepFlops, AndParametersAreThoseOfTheModel) {
  for (const std::string& name : model::model_names()) {
    const ModelSpec spec = *model::named_model(name);
    double held = 0;
    for (const HeldParameters& rank : held_by_rank(spec, on(1))) held += rank.all();
    const auto listed = static_cast<double>(model::parameter_count(spec));
    EXPECT_NEAR(held, listed, 1e-9 * listed) << name;
    if (spec.family == Family::kMlp) continue;
    const double products =
        static_cast<double>(spec.layers) * block_forward_flops(spec, 1, 1).products +
        2.0 * static_cast<double>(spec.hidden * spec.vocab);
    const double scores = 12.0 * static_cast<double>(spec.layers * spec.heads * spec.head_size);
    const double all = model::training_flops_per_token(spec, 1, false);
    EXPECT_NEAR(3 * products + scores, all, 1e-9 * all) << name;
  }
}

TEST(StepFlops, OfWhatIsRecomputed) {
  const ModelSpec spec = small();
  Training training = on(1);
  training.flash_attention = false;
  const BlockFlops block = block_forward_flops(spec, 24, 128);
  const double forward = 4 * (block.products + block.core);
  const double head = 2.0 * 24 * 128 * 64 * 512;
  EXPECT_DOUBLE_EQ(step_flops(spec, training).model, 3 * (forward + head));
  EXPECT_DOUBLE_EQ(step_flops(spec, training).hardware, 3 * (forward + head));
  EXPECT_DOUBLE_EQ(step_flops(spec, training).model_causal,
                   3 * (forward + head) - 3 * 4 * block.core / 2);
  training.recompute = Recompute::kSelective;
  EXPECT_DOUBLE_EQ(step_flops(spec, training).hardware, 3 * (forward + head) + 4 * block.core);
  training.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(step_flops(spec, training).hardware, 4 * forward + 3 * head);
  EXPECT_DOUBLE_EQ(step_flops(spec, training).hardware_causal,
                   4 * (forward - 4 * block.core / 2) + 3 * head);
}

TEST(RunEstimates, OfTokens) {
  const ModelSpec spec = small();
  const Cluster cluster = cluster_of(8);
  const Plan plan = make_plan(PublishedEstimator(), spec, on(4, 2), cluster,
                              {.tokens = 3e9, .bytes_per_token = 4});
  ASSERT_TRUE(plan.run);
  const RunEstimate& run = *plan.run;
  const double step = plan.time.all();
  const double tokens = 24 * 128;
  // Eight devices fail every 100 h; parameters, master and moments are 14 bytes each.
  const double bytes = 14 * count_of(spec);
  EXPECT_DOUBLE_EQ(run.checkpoint_bytes, bytes);
  EXPECT_DOUBLE_EQ(run.failures.mtbf_s, 100 * 3600);
  EXPECT_DOUBLE_EQ(run.failures.checkpoint_s, bytes / 5e5);
  EXPECT_DOUBLE_EQ(run.failures.restart_s, 180 + bytes / 1e6);
  EXPECT_DOUBLE_EQ(run.checkpoint_interval_s, daly_interval_s(run.failures));
  EXPECT_DOUBLE_EQ(run.goodput, goodput(run.failures, run.checkpoint_interval_s));
  EXPECT_LT(run.goodput, 1);
  EXPECT_EQ(run.tokens, 3e9);
  EXPECT_DOUBLE_EQ(run.steps, 3e9 / tokens);
  const double seconds = 3e9 / tokens * step / run.goodput;
  EXPECT_DOUBLE_EQ(run.days, seconds / 86400);
  EXPECT_DOUBLE_EQ(run.device_hours, 8 * seconds / 3600);
  EXPECT_DOUBLE_EQ(run.energy_kwh, run.device_hours / 2);
  EXPECT_DOUBLE_EQ(run.cost, run.device_hours * 2);
  EXPECT_DOUBLE_EQ(run.data_bytes, 12e9);
  EXPECT_DOUBLE_EQ(run.read_bytes_per_s, 4 * tokens / step);
  const auto json = nlohmann::json::parse(to_json(plan));
  for (const auto& [key, value] : {std::pair<const char*, double>{"tokens", run.tokens},
                                   {"steps", run.steps},
                                   {"days", run.days},
                                   {"device_hours", run.device_hours},
                                   {"energy_kwh", run.energy_kwh},
                                   {"cost", run.cost},
                                   {"goodput", run.goodput},
                                   {"checkpoint_interval_s", run.checkpoint_interval_s},
                                   {"checkpoint_bytes", run.checkpoint_bytes},
                                   {"data_bytes", run.data_bytes},
                                   {"read_bytes_per_s", run.read_bytes_per_s}})
    EXPECT_DOUBLE_EQ(json["run"][key].get<double>(), value) << key;
  const std::string text = to_text(plan);
  EXPECT_THAT(text, HasSubstr(fmt::format("3e+09 tokens in {:.4g} steps: {:.4g} days", run.steps,
                                          run.days)));
  EXPECT_THAT(text, HasSubstr(fmt::format("goodput {:.2f} % with a checkpoint of {:.4g} GB",
                                          100 * run.goodput, bytes / 1e9)));
  EXPECT_THAT(text, HasSubstr(fmt::format("12 GB of data, read at {:.4g} MB/s",
                                          run.read_bytes_per_s / 1e6)));
}

TEST(RunEstimates, WithoutFailuresPricesOrStorage) {
  Cluster cluster = cluster_of(8);
  cluster.device.hours_between_failures = 0;
  Training training = on(8);
  training.micro_batch = 3;
  EXPECT_EQ(make_plan(PublishedEstimator(), small(), training, cluster).run, std::nullopt);
  const auto planned = [&](const Budget& budget) {
    return *make_plan(PublishedEstimator(), small(), training, cluster, budget).run;
  };
  RunEstimate estimate = planned({.hours = 3});
  EXPECT_EQ(estimate.checkpoint_interval_s, 3600) << "never fails";
  EXPECT_DOUBLE_EQ(estimate.goodput, 3600 / (3600 + estimate.failures.checkpoint_s));
  EXPECT_DOUBLE_EQ(estimate.days, 3 / 24.0);
  EXPECT_DOUBLE_EQ(estimate.device_hours, 24);
  EXPECT_DOUBLE_EQ(planned({.money = 48}).days, 3 / 24.0);
  cluster.storage = {};
  estimate = planned({.hours = 3});
  EXPECT_EQ(estimate.goodput, 1);
  EXPECT_EQ(estimate.checkpoint_interval_s, 0);
  EXPECT_EQ(estimate.failures.restart_s, 180);
  cluster.device.price_per_hour = 0;
  EXPECT_EQ(planned({.hours = 3}).cost, 0);
  EXPECT_THAT(error_text([&] { planned({.money = 48}); }), HasSubstr("money = 48: cluster"));
}

// Checkpoints that take longer than steps last are written after every step at most.
TEST(RunEstimates, CheckpointsAreAStepApartAtLeast) {
  Cluster cluster = cluster_of(8);
  cluster.device.hours_between_failures = 1e-6;
  cluster.storage.write_bandwidth = 1e15;
  Training training = on(8);
  training.micro_batch = 3;
  const Plan plan = make_plan(PublishedEstimator(), small(), training, cluster, {.hours = 3});
  ASSERT_GT(plan.time.all(), daly_interval_s(plan.run->failures));
  EXPECT_DOUBLE_EQ(plan.run->checkpoint_interval_s, plan.time.all());
}

TEST(Budgets, AreOnePositiveNumber) {
  Training training = on(8);
  training.micro_batch = 3;
  const auto refusal = [&](const Budget& budget) {
    return error_text(
        [&] { make_plan(PublishedEstimator(), small(), training, cluster_of(8), budget); });
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({.tokens = -1}), HasSubstr("tokens = -1: must not be negative"));
  EXPECT_THAT(refusal({.hours = -1}), HasSubstr("hours = -1: must not be negative"));
  EXPECT_THAT(refusal({.money = -1}), HasSubstr("money = -1: must not be negative"));
  EXPECT_THAT(refusal({.hours = NAN}), HasSubstr("hours = nan"));
  EXPECT_THAT(refusal({.tokens = INFINITY}), HasSubstr("tokens = inf"));
  EXPECT_THAT(refusal({.bytes_per_token = 0}), HasSubstr("bytes-per-token = 0: must be positive"));
  EXPECT_THAT(refusal({.bytes_per_token = INFINITY}), HasSubstr("bytes-per-token = inf"));
  EXPECT_THAT(refusal({.tokens = 1, .money = 1}), HasSubstr("only one of"));
  EXPECT_THAT(refusal({.hours = 1, .money = 1}), HasSubstr("only one of"));
}

TEST(LimitingPart, IsTheLargest) {
  const Cluster cluster = cluster_of(8);
  StepTime time{.pipeline = 10, .bubble = 1, .communication = 1, .recomputed = 1};
  const auto part = [&] { return limiting_part(small(), on(1), cluster, time); };
  const std::string computing = part();
  EXPECT_TRUE(computing == "products" || computing == "memory traffic and launches") << computing;
  time.bubble = 9;
  EXPECT_EQ(part(), "pipeline bubbles");
  time.bubble = 0;
  time.communication = 9;
  EXPECT_EQ(part(), "exchange inside blocks and between stages");
  time.communication = 0;
  time.recomputed = 9;
  EXPECT_EQ(part(), "recomputation");
  time.data_exposed = 11;
  EXPECT_EQ(part(), "gradient and parameter exchange");
  time.optimizer = 12;
  EXPECT_EQ(part(), "optimizer");
  time.data_hidden = 100;
  EXPECT_EQ(part(), "optimizer") << "what is hidden limits nothing";
}

// Computation is divided by what its kernels take: one link of the chain is made slow at a time.
TEST(LimitingPart, DividesComputation) {
  Cluster cluster = cluster_of(8);
  cluster.device.efficiency.operation_s = 0;
  const StepTime time{.pipeline = 10};
  cluster.device.memory_bandwidth = 1e6;
  EXPECT_EQ(limiting_part(small(), on(1), cluster, time), "memory traffic and launches");
  cluster.device.memory_bandwidth = 1e30;
  EXPECT_EQ(limiting_part(small(), on(1), cluster, time), "products");
}

// Every second of a run is training, a checkpoint, lost or a restart.
TEST(SimulatedRuns, AccountForEverySecond) {
  const FailureModel failures{.mtbf_s = 3000, .checkpoint_s = 20, .restart_s = 100};
  const SimulatedRun run = simulate_run(2, 10050, 600, failures, 3);
  EXPECT_GT(run.failures, 0);
  EXPECT_EQ(run.checkpoints, 33) << "of 33.5 intervals, none behind the last step";
  EXPECT_GT(run.lost_s, 0);
  EXPECT_NEAR(run.seconds,
              20100 + 33 * 20.0 + run.lost_s + 100.0 * static_cast<double>(run.failures), 1e-6)
      << "none behind the last step";
  EXPECT_NEAR(run.goodput(20100), 20100 / run.seconds, 1e-12);
  EXPECT_NE(error_text([&] { simulate_run(0, 1, 1, failures, 0); }), "");
  EXPECT_NE(error_text([&] { simulate_run(1, -1, 1, failures, 0); }), "");
  EXPECT_NE(error_text([&] { simulate_run(1, 1, 0, failures, 0); }), "");
  EXPECT_EQ(simulate_run(1, 0, 1, failures, 0).seconds, 0);
}

TEST(CheckpointIntervals, HaveTheirLimits) {
  EXPECT_EQ(daly_interval_s({.mtbf_s = 10, .checkpoint_s = 20}), 10);
  EXPECT_EQ(daly_interval_s({.mtbf_s = 10, .checkpoint_s = 30}), 10);
  const double ratio = 19.0 / 20;
  EXPECT_NEAR(daly_interval_s({.mtbf_s = 10, .checkpoint_s = 19}),
              std::sqrt(380.0) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - 19, 1e-12);
  EXPECT_EQ(goodput({.mtbf_s = 0, .checkpoint_s = 10}, 30), 0.75);
  EXPECT_THAT(error_text([] { goodput({.mtbf_s = 1, .checkpoint_s = 1}, 0); }),
              HasSubstr("must be positive"));
}

TEST(PlanText, LeavesOutTheMiddleOfADeepPipeline) {
  ModelSpec spec = small();
  spec.layers = 8;
  const auto stages = [&](std::int64_t pipeline) {
    Training training = on(8 / pipeline, 1, pipeline);
    training.micro_batch = 1;
    training.global_batch = 8;
    const std::string text =
        to_text(make_plan(PublishedEstimator(), spec, training, cluster_of(8)));
    std::vector<std::int64_t> list;
    for (std::int64_t rank = 0; rank < pipeline; ++rank) {
      if (text.find(fmt::format("\n  {:<5} steady state", rank)) != std::string::npos)
        list.push_back(rank);
    }
    return list;
  };
  EXPECT_THAT(stages(8), ::testing::ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(stages(4), ::testing::ElementsAre(0, 1, 2, 3));
}

TEST(PlanText, NamesTheWholeMesh) {
  Training training = on(3, 2, 4);
  EXPECT_EQ(describe_mesh(training), "dp 3 x tp 2 x pp 4");
  training.degrees.cp = 2;
  training.degrees.ep = 2;
  training.virtual_stages = 2;
  EXPECT_EQ(describe_mesh(training), "dp 3 x tp 2 x pp 4 x cp 2, ep 2, 2 stages a rank");
}

}  // namespace
}  // namespace shoal::plan::plan_figures_test
