// Figures of a plan, of the run around it and of a search, worked out by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "shoal/model/model_spec.h"
#include "shoal/plan/calculators/goodput.h"
#include "shoal/plan/flops.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "shoal/plan/simulator.h"
#include "tests/complaint.h"
#include "tests/plan/published.h"

namespace shoal::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ModelSpec small() {
  ModelSpec spec;
  spec.layers = 4;
  spec.hidden = 64;
  spec.heads = spec.kv_heads = 4;
  spec.head_size = 16;
  spec.ffn = 256;
  spec.vocab = 512;
  spec.sequence = 128;
  return spec;
}

Training on(std::int64_t data, std::int64_t tensor = 1, std::int64_t pipeline = 1) {
  Training training;
  training.mesh.data = data;
  training.mesh.tensor = tensor;
  training.mesh.pipeline = pipeline;
  training.micro_batch = 2;
  training.global_batch = 24;
  return training;
}

Cluster cluster_of(std::int64_t devices) {
  Cluster cluster = with_devices(*cluster_preset("a100"), devices);
  cluster.device.price_per_hour = 2;
  cluster.device.power_w = 500;
  cluster.device.hours_between_failures = 800;
  cluster.storage = {.read_bandwidth = 1e6, .write_bandwidth = 5e5};
  return cluster;
}

double count_of(const ModelSpec& spec) { return static_cast<double>(model::parameter_count(spec)); }

// ---- memory ------------------------------------------------------------------------------------

const MemoryUse& phase(const std::vector<RankMemory>& ranks, std::size_t rank, const char* name) {
  for (const MemoryPhase& one : ranks.at(rank).phases)
    if (one.name == name) return one.use;
  throw Error(ErrorKind::kInternal, "test", name);
}

TEST(PublishedMemory, OfOneRank) {
  const ModelSpec spec = small();
  const double p = count_of(spec);
  const auto ranks = published_memory(spec, on(1));
  ASSERT_EQ(ranks.size(), 1u);
  const MemoryUse& running = phase(ranks, 0, "backward");
  EXPECT_DOUBLE_EQ(running.parameters, 2 * p);
  EXPECT_DOUBLE_EQ(running.gradients, 2 * p);
  EXPECT_DOUBLE_EQ(running.optimizer, 12 * p);
  EXPECT_EQ(running.gathered, 0);
  EXPECT_EQ(running.communication, 0) << "nobody to send to";
  // 256 tokens: in each block four inputs of norms and products, queries, keys and values, the
  // input of the output product, those of the activation and the down product, and a fp32 number of
  // each head's row; then norm and product of the head, and fp32 logits.
  const double block = 256 * (2.0 * (4 * 64 + 3 * 64 + 64 + 2 * 256) + 4 * 4);
  EXPECT_DOUBLE_EQ(running.activations, 4 * block + 256 * (2.0 * 2 * 64 + 4 * 512));
  EXPECT_DOUBLE_EQ(running.workspace, 256 * 512 * 6) << "the gradient of the logits, in both types";
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "steady state").activations, running.activations);
  EXPECT_EQ(phase(ranks, 0, "steady state").workspace, 0);
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "optimizer").all(), 16 * p);
  // A block beside the states: parameter, master and moments.
  const double of_block = 4.0 * 64 * 64 + 4 * 64 + 2.0 * 64 * 256 + 256 + 64 + 4 * 64;
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "checkpoint").staging, 14 * of_block);
  EXPECT_DOUBLE_EQ(phase(ranks, 0, "checkpoint").all(), 16 * p + 14 * of_block);
}

TEST(PublishedMemory, OfWhatIsRecomputed) {
  const ModelSpec spec = small();
  Training training = on(1);
  const double block = 256 * (2.0 * (4 * 64 + 3 * 64 + 64 + 2 * 256) + 4 * 4);
  const double head = 256 * (2.0 * 2 * 64 + 4 * 512);
  training.recompute = Recompute::kFull;
  const MemoryUse full = phase(published_memory(spec, training), 0, "backward");
  EXPECT_DOUBLE_EQ(full.activations, 4 * 256 * 2.0 * 64 + head);
  EXPECT_DOUBLE_EQ(full.workspace, std::max(block, 256.0 * 512 * 6));
  // Blocks that weigh more than the logits.
  ModelSpec wide = spec;
  wide.vocab = 64;
  EXPECT_DOUBLE_EQ(phase(published_memory(wide, training), 0, "backward").workspace, block);
  training.recompute = Recompute::kSelective;
  training.flash_attention = false;
  const double scores = 2.0 * 256 * 4 * 128;
  EXPECT_DOUBLE_EQ(phase(published_memory(wide, training), 0, "backward").workspace, scores);
}

TEST(PublishedMemory, OfBuffersAndMessages) {
  const ModelSpec spec = small();
  const auto buffers = [&](const Training& training) {
    return phase(published_memory(spec, training), 0, "backward").communication;
  };
  constexpr double kBuckets = 2 * 25.0 * 1024 * 1024;
  constexpr double kMessage = 2 * 256 * 64;
  EXPECT_DOUBLE_EQ(buffers(on(2)), kBuckets);
  Training training = on(1);
  training.mesh.context = 2;
  EXPECT_DOUBLE_EQ(buffers(training), kBuckets);
  EXPECT_DOUBLE_EQ(buffers(on(1, 2)), kMessage);
  EXPECT_DOUBLE_EQ(buffers(on(1, 1, 2)), 4 * kMessage);
  training = on(1, 2, 2);
  EXPECT_DOUBLE_EQ(buffers(training), kMessage + 4 * kMessage / 2);
  training.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(buffers(training), 5 * kMessage);
}

TEST(PublishedMemory, OfWholeUnits) {
  ModelSpec spec = small();
  Training training = on(4);
  const auto gathered = [&] {
    return phase(published_memory(spec, training), 0, "backward").gathered;
  };
  training.zero_stage = 2;
  EXPECT_EQ(gathered(), 0);
  training.zero_stage = 3;
  // The largest unit is a block; one more is gathered ahead of it.
  const double block = held_by_block(spec, training).all();
  ASSERT_GT(block, held_by_embedding(spec, training).all());
  EXPECT_DOUBLE_EQ(gathered(), 2 * 2 * block);
  training.gather_ahead = 2;
  EXPECT_DOUBLE_EQ(gathered(), 2 * 3 * block);
  training.gather_ahead = 100;
  EXPECT_DOUBLE_EQ(gathered(), 2 * count_of(spec)) << "there is no more";
  training.gather_ahead = 0;
  spec.vocab = 5120;
  EXPECT_DOUBLE_EQ(gathered(), 2 * held_by_embedding(spec, training).all());
  training.mesh.shard = 1;
  EXPECT_EQ(gathered(), 0) << "whole already";
}

TEST(PublishedMemory, OfShardsInACheckpoint) {
  Training training = on(4);
  const double whole = phase(published_memory(small(), training), 0, "checkpoint").staging;
  training.zero_stage = 1;
  EXPECT_DOUBLE_EQ(phase(published_memory(small(), training), 0, "checkpoint").staging, whole / 4);
}

TEST(PublishedMemory, OfDroppedEmbeddings) {
  ModelSpec spec = small();
  Training training = on(1, 2, 2);
  training.schedule = "gpipe";
  const auto first = [&] {
    return phase(published_memory(spec, training), 0, "backward").activations -
           2 * 12 * block_activation_bytes(spec, training);
  };
  EXPECT_NEAR(first(), 0, 1e-6);
  spec.dropout = 0.1;
  EXPECT_NEAR(first(), 12 * 256 * 64 / 2.0, 1e-6) << "a byte an element of twelve micro-batches";
  training.sequence_parallel = false;
  EXPECT_NEAR(first(), 12 * 256 * 64, 1e-6);
}

TEST(PublishedMemory, PeaksAreTheLargest) {
  RankMemory one{0, {{"a", {}}, {"b", {}}, {"c", {}}}};
  one.phases[1].use.activations = 5;
  one.phases[2].use.parameters = 3;
  EXPECT_EQ(one.peak().name, "b");
  RankMemory other{1, {{"a", {}}}};
  other.phases[0].use.staging = 6;
  EXPECT_EQ(worst({one, other}).rank, 1);
  EXPECT_EQ(worst({other, one}).rank, 1);
}

// ---- FLOPs ------------------------------------------------------------------------------------

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

// ---- runs -------------------------------------------------------------------------------------

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
  EXPECT_THAT(complaint([&] { planned({.money = 48}); }), HasSubstr("money = 48: cluster"));
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
    return complaint(
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

// ---- remedies ---------------------------------------------------------------------------------

/// The plan on devices with a byte less memory than it needs, or with `share` of it.
std::vector<std::string> remedies(const ModelSpec& spec, const Training& training,
                                  std::int64_t devices, double share = 0) {
  Cluster cluster = cluster_of(devices);
  const double peak = make_plan(PublishedEstimator(), spec, training, cluster).peak().all();
  cluster.device.memory_bytes = share > 0 ? share * peak : peak - 1;
  return make_plan(PublishedEstimator(), spec, training, cluster).remedies;
}

TEST(Remedies, AreAllSingleChangesThatFit) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8);
  training.sequence = 2048;
  training.micro_batch = 3;
  training.flash_attention = false;
  const auto list = remedies(spec, training, 8);
  for (const char* remedy : {"--zero 1 (", "--zero 2 (", "--zero 3 (", "--recompute selective (",
                             "--recompute full (", "--micro-batch 1 (", "--offload-optimizer (",
                             "--tp 2 --dp 4 (", "--tp 4 --dp 2 (", "--tp 8 --dp 1 ("})
    EXPECT_THAT(list, Contains(StartsWith(remedy)));
  EXPECT_THAT(list, Not(Contains(HasSubstr("together"))));
  training.zero_stage = 2;
  training.recompute = Recompute::kFull;
  training.micro_batch = 1;
  training.offload_optimizer = true;
  const auto fewer = remedies(spec, training, 8);
  EXPECT_THAT(fewer, Contains(StartsWith("--zero 3 (")));
  for (const char* remedy : {"--zero 1", "--zero 2", "--recompute", "--micro-batch", "--offload"})
    EXPECT_THAT(fewer, Not(Contains(StartsWith(remedy)))) << "is so already";
}

// The memory that a remedy names is that of the changed plan.
TEST(Remedies, NameTheMemoryThatRemains) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8);
  training.sequence = 2048;
  training.micro_batch = 3;
  const auto list = remedies(spec, training, 8);
  const auto expect = [&](const char* remedy, const Training& changed) {
    const double gib =
        make_plan(PublishedEstimator(), spec, changed, cluster_of(8)).peak().all() / 1073741824.0;
    EXPECT_THAT(list, Contains(fmt::format("{} ({:.1f} GiB)", remedy, gib)));
  };
  Training changed = training;
  changed.micro_batch = 1;
  expect("--micro-batch 1", changed);
  changed = training;
  changed.zero_stage = 2;
  expect("--zero 2", changed);
  changed = training;
  changed.mesh.tensor = 4;
  changed.mesh.data = 2;
  expect("--tp 4 --dp 2", changed);
  changed = training;
  changed.mesh.pipeline = 2;
  changed.mesh.data = 4;
  expect("--pp 2 --dp 4", changed);
}

TEST(Remedies, AreTriedTogetherWhereNoneIsEnough) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(2);
  training.sequence = 2048;
  training.micro_batch = 4;
  Training everything = training;
  everything.micro_batch = 1;
  everything.recompute = Recompute::kFull;
  everything.zero_stage = 3;
  Cluster cluster = cluster_of(2);
  cluster.host.link_bandwidth = 0;
  const double least = make_plan(PublishedEstimator(), spec, everything, cluster).peak().all();
  cluster.device.memory_bytes = least;
  const auto list = make_plan(PublishedEstimator(), spec, training, cluster).remedies;
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0], fmt::format("--zero 3 --recompute full --micro-batch 1 together ({:.1f} GiB)",
                                 least / 1073741824.0));
  cluster.device.memory_bytes = least - 1;
  const Plan none = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_TRUE(none.remedies.empty());
  EXPECT_THAT(to_text(none), HasSubstr("no single change makes it fit"));
}

// What leaves the devices must find room in their host.
TEST(Remedies, OffloadOnlyWhatTheHostTakes) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8);
  training.sequence = 2048;
  training.micro_batch = 3;
  Training offloaded = training;
  offloaded.offload_optimizer = true;
  Cluster cluster = cluster_of(8);
  cluster.device.memory_bytes =
      make_plan(PublishedEstimator(), spec, training, cluster).peak().all() - 1;
  const double needed = offloaded_bytes(spec, offloaded, cluster);
  const auto list = [&](double host) {
    cluster.host.memory_bytes = host;
    return make_plan(PublishedEstimator(), spec, training, cluster).remedies;
  };
  EXPECT_THAT(list(needed), Contains(StartsWith("--offload-optimizer (")));
  EXPECT_THAT(list(needed - 1), Not(Contains(StartsWith("--offload-optimizer"))));
}

TEST(Remedies, NoneWhereThePlanFits) {
  Training training = on(8);
  training.micro_batch = 3;
  Cluster cluster = cluster_of(8);
  Plan plan = make_plan(PublishedEstimator(), small(), training, cluster);
  cluster.device.memory_bytes = plan.peak().all();
  plan = make_plan(PublishedEstimator(), small(), training, cluster);
  EXPECT_TRUE(plan.fits());
  EXPECT_TRUE(plan.remedies.empty());
  cluster.device.memory_bytes -= 1;
  EXPECT_FALSE(make_plan(PublishedEstimator(), small(), training, cluster).fits());
}

// ---- what limits a step -----------------------------------------------------------------------

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

// ---- search -----------------------------------------------------------------------------------

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
      found.insert(one.training.mesh.context);
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
    const Mesh& mesh = one.training.mesh;
    meshes.insert({mesh.tensor, mesh.pipeline, mesh.data});
    if (mesh.data == 2) micro_batches.insert(one.training.micro_batch);
    EXPECT_EQ(one.training.schedule, "1f1b");
  }
  // Four heads and four blocks; eight pipeline stages would be one too many.
  EXPECT_EQ(
      meshes,
      (std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
          {1, 1, 8}, {1, 2, 4}, {1, 4, 2}, {2, 1, 4}, {2, 2, 2}, {2, 4, 1}, {4, 1, 2}, {4, 2, 1}}));
  EXPECT_EQ(micro_batches, (std::set<std::int64_t>{1, 2, 4})) << "powers of two that divide 12";
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
      found.insert({one.training.zero_stage, one.training.mesh.shard});
    return found;
  };
  using Found = std::set<std::pair<int, std::int64_t>>;
  EXPECT_EQ(shards(16, false), (Found{{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
  EXPECT_EQ(shards(16, true), (Found{{0, 0}, {1, 0}, {1, 4}, {2, 0}, {2, 4}, {3, 0}, {3, 4}}));
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
    experts.insert(one.training.mesh.expert);
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
    found.insert({one.training.schedule, one.training.mesh.virtual_stages});
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

// ---- simulated runs, intervals, texts ---------------------------------------------------------

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
  EXPECT_NE(complaint([&] { simulate_run(0, 1, 1, failures, 0); }), "");
  EXPECT_NE(complaint([&] { simulate_run(1, -1, 1, failures, 0); }), "");
  EXPECT_NE(complaint([&] { simulate_run(1, 1, 0, failures, 0); }), "");
  EXPECT_EQ(simulate_run(1, 0, 1, failures, 0).seconds, 0);
}

TEST(CheckpointIntervals, HaveTheirLimits) {
  EXPECT_EQ(daly_interval_s({.mtbf_s = 10, .checkpoint_s = 20}), 10);
  EXPECT_EQ(daly_interval_s({.mtbf_s = 10, .checkpoint_s = 30}), 10);
  const double ratio = 19.0 / 20;
  EXPECT_NEAR(daly_interval_s({.mtbf_s = 10, .checkpoint_s = 19}),
              std::sqrt(380.0) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - 19, 1e-12);
  EXPECT_EQ(goodput({.mtbf_s = 0, .checkpoint_s = 10}, 30), 0.75);
  EXPECT_THAT(complaint([] { goodput({.mtbf_s = 1, .checkpoint_s = 1}, 0); }),
              HasSubstr("must be positive"));
}

// A rank of the interleaved schedule has all of its stages' micro-batches at once where there are
// only as many as ranks.
TEST(InFlight, OfAsManyMicroBatchesAsRanks) {
  ModelSpec spec = small();
  spec.layers = 8;
  Training training = on(1, 1, 4);
  training.micro_batch = 1;
  training.mesh.virtual_stages = 2;
  training.schedule = "interleaved";
  for (const std::int64_t m : {4, 8}) {
    training.global_batch = m;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const double chunks = m == 4 ? 8 : 2.0 * static_cast<double>(3 - rank) + 5;
      EXPECT_DOUBLE_EQ(in_flight(spec, training, rank), chunks / 2) << m << " on " << rank;
    }
  }
  training.mesh.virtual_stages = 1;
  training.schedule = "1f1b";
  training.global_batch = 2;
  EXPECT_EQ(in_flight(spec, training, 0), 2) << "no more than there are";
  EXPECT_EQ(in_flight(spec, training, 3), 1);
}

// 256 tokens on two tensor ranks that hold halves of the experts' width: each visits two experts.
TEST(SavedTensors, OfExperts) {
  ModelSpec spec = small();
  spec.experts = 8;
  spec.experts_per_token = 2;
  Training training = on(1, 2);
  training.mesh.expert_tensor = 2;
  training.expert_imbalance = 1.5;
  const double visits = 256 * 2 * 1.5;
  const std::map<std::string, double> expected{
      {"input of the router", 2.0 * 256 * 64},
      {"router's probabilities", 4.0 * 256 * 8},
      {"tokens sent to experts", 2 * 2 * visits * 64},
      {"input of the experts' activation", 2 * visits * 256},
      {"input of the experts' down product", 2 * visits * 256},
      {"outputs of the experts", 2 * visits * 64}};
  std::size_t found = 0;
  for (const SavedTensor& tensor : saved_tensors(spec, training)) {
    const auto one = expected.find(tensor.what);
    if (one == expected.end()) continue;
    ++found;
    EXPECT_DOUBLE_EQ(tensor.bytes, one->second) << tensor.what;
    EXPECT_EQ(tensor.division, Division::kSequence) << tensor.what;
  }
  EXPECT_EQ(found, expected.size());
  spec.gated = true;
  for (const SavedTensor& tensor : saved_tensors(spec, training)) {
    if (std::string(tensor.what) == "input of the experts' activation") {
      EXPECT_DOUBLE_EQ(tensor.bytes, 2 * 2 * visits * 256);
    }
  }
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
  EXPECT_THAT(stages(8), testing::ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(stages(4), testing::ElementsAre(0, 1, 2, 3));
}

TEST(PlanText, NamesTheWholeMesh) {
  Training training = on(3, 2, 4);
  EXPECT_EQ(describe_mesh(training), "dp 3 x tp 2 x pp 4");
  training.mesh.context = 2;
  training.mesh.expert = 2;
  training.mesh.virtual_stages = 2;
  EXPECT_EQ(describe_mesh(training), "dp 3 x tp 2 x pp 4 x cp 2, ep 2, 2 stages a rank");
}

// What offloading keeps in a host is that of its fullest rank, for all of its devices.
TEST(OffloadedBytes, AreThoseOfTheFullestRank) {
  ModelSpec spec = small();
  spec.tied_embeddings = false;
  Training training = on(1, 1, 2);
  training.stage_layers = {3, 1};
  training.offload_optimizer = true;
  double most = 0;
  for (const HeldParameters& held : held_by_rank(spec, training)) most = std::max(most, held.all());
  ASSERT_EQ(most, held_by_rank(spec, training).front().all());
  EXPECT_DOUBLE_EQ(offloaded_bytes(spec, training, cluster_of(2)), 2 * 12 * most);
}

}  // namespace
}  // namespace shoal::plan
