#include "shoal/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/ring.h"
#include "shoal/plan/calculators/goodput.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/operations.h"
#include "shoal/plan/search.h"
#include "shoal/plan/simulator.h"
#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "tests/error_text.h"
#include "tests/plan/published.h"
#include "tests/support/collective_closed_forms.h"

namespace shoal::plan::plan_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Training on(std::int64_t dp, std::int64_t tp, std::int64_t pp, std::int64_t global_batch) {
  Training training;
  training.degrees.dp_shard = dp;
  training.degrees.tp = tp;
  training.degrees.pp = pp;
  training.global_batch = global_batch;
  return training;
}

TEST(Plan, UtilisationIsFlopsOverPeakAndTime) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8, 1, 1, 32);
  training.sequence = 4096;
  training.zero_stage = 1;
  training.recompute = Recompute::kFull;
  const Plan plan = make_plan(PublishedEstimator(), spec, training,
                              with_devices(*cluster_preset("h100"), 8), {1e11, 0, 0, 2});
  EXPECT_DOUBLE_EQ(plan.mfu, plan.flops.model / (plan.time.all() * 8 * 989.4e12));
  EXPECT_GT(plan.hfu, plan.mfu);
  EXPECT_LT(plan.mfu_causal, plan.mfu);
  EXPECT_TRUE(plan.fits());
  ASSERT_TRUE(plan.run);
  EXPECT_NEAR(plan.run->days * 86400, 1e11 / (32 * 4096) * plan.time.all() / plan.run->goodput,
              1e-3);
  EXPECT_NEAR(plan.run->device_hours, plan.run->days * 24 * 8, 1e-9);
  EXPECT_DOUBLE_EQ(plan.run->data_bytes, 2e11);
  EXPECT_DOUBLE_EQ(plan.run->cost, plan.run->device_hours * 3);
  // The same run from the other budgets.
  EXPECT_NEAR(
      make_plan(PublishedEstimator(), spec, training, plan.cluster, {0, plan.run->days * 24, 0, 2})
          .run->tokens,
      1e11, 1);
  EXPECT_NEAR(
      make_plan(PublishedEstimator(), spec, training, plan.cluster, {0, 0, plan.run->cost, 2})
          .run->tokens,
      1e11, 1);
}

// On a rank of two: 16 query and 4 key heads of 128, in 16 bits, read and written, and read twice
// and written on the way back; the inputs are kept.
TEST(Plan, NormsOfQueriesAndKeysMoveAndKeepThem) {
  const ModelSpec with = *named_model("qwen3-8b");
  ModelSpec without = with;
  without.qk_norm = false;
  Training training = on(1, 2, 1, 1);
  training.sequence = 4096;
  training.flash_attention = true;
  const double pass = 2.0 * 4096 * (16 + 4) * 128;
  const auto plain = block_operations(without, training);
  const auto normed = block_operations(with, training);
  ASSERT_EQ(normed.size(), plain.size() + 1);
  for (std::size_t i = 0; i < normed.size(); ++i) {
    if (i == 2) continue;
    EXPECT_STREQ(normed[i].what, plain[i < 2 ? i : i - 1].what);
  }
  EXPECT_STREQ(normed[1].what, "queries, keys, values");
  EXPECT_STREQ(normed[2].what, "norms of queries and keys");
  EXPECT_FALSE(normed[2].product);
  EXPECT_DOUBLE_EQ(normed[2].work, 2 * pass);
  EXPECT_DOUBLE_EQ(normed[2].backward, 3 * pass);
  EXPECT_DOUBLE_EQ(
      block_activation_bytes(with, training) - block_activation_bytes(without, training), pass);
  EXPECT_GT(
      make_plan(PublishedEstimator(), with, training, with_devices(*cluster_preset("h100"), 2))
          .time.all(),
      make_plan(PublishedEstimator(), without, training, with_devices(*cluster_preset("h100"), 2))
          .time.all());
}

TEST(Plan, HybridShardingIsNamed) {
  Training training = on(16, 1, 1, 16);
  training.zero_stage = 3;
  training.degrees.shard_over(8, training.degrees.dp());
  const Cluster cluster = with_devices(*cluster_preset("a100"), 16);
  const ModelSpec spec = *named_model("gpt2-1.5b");
  EXPECT_THAT(to_text(make_plan(PublishedEstimator(), spec, training, cluster)),
              HasSubstr("ZeRO 3 over 8 ranks, mixed"));
  EXPECT_THAT(to_json(make_plan(PublishedEstimator(), spec, training, cluster)),
              HasSubstr("\"shard\": 8"));
  training.degrees.shard_over(16, training.degrees.dp());
  EXPECT_THAT(to_text(make_plan(PublishedEstimator(), spec, training, cluster)),
              HasSubstr("ZeRO 3, mixed"));
}

// A reader must know whether the times are those of this machine's kernels. The estimator says it;
// systems of the literature have none.
TEST(Plan, SaysWhatItsTimesArePredictedFrom) {
  const auto said = [](const char* preset, bool measured) {
    Training training;
    training.degrees = {.dp_shard = 2, .ep = 2};
    training.global_batch = 2;
    training.precision = "fp32";
    const Cluster cluster = with_devices(*cluster_preset(preset), 2);
    Plan plan = make_plan(PublishedEstimator(), *named_model("moe-tiny"), training, cluster);
    EXPECT_FALSE(plan.time.of_measured_kernels);
    plan.time.of_measured_kernels = measured;
    const char* word = measured ? "true" : "false";
    EXPECT_THAT(to_json(plan),
                HasSubstr(fmt::format("\"step_time_of_measured_kernels\": {}", word)));
    return to_text(plan);
  };
  EXPECT_THAT(said("cpu", true), HasSubstr("predicted from   measured kernels of Shoal\n"));
  EXPECT_THAT(said("cpu", false), HasSubstr("predicted from   published formulas"));
  EXPECT_THAT(said("a100", false), Not(HasSubstr("predicted from")));
}

TEST(Plan, WhatDoesNotFitComesWithRemediesThatDo) {
  const ModelSpec spec = *named_model("llama-8b");
  Training training = on(8, 1, 1, 8);
  training.sequence = 8192;
  const Cluster cluster = with_devices(*cluster_preset("h100"), 8);
  const Plan plan = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_FALSE(plan.fits());
  ASSERT_FALSE(plan.remedies.empty());
  EXPECT_THAT(plan.remedies, ::testing::Contains(HasSubstr("--zero 3")));
  training.zero_stage = 3;
  EXPECT_TRUE(make_plan(PublishedEstimator(), spec, training, cluster).fits());
}

// A perceptron's optimizer states weigh more than its activations, so its device is fullest while a
// checkpoint is written: they are reported all the same. It saves its input, and every layer's
// output before and after the activation, in two bytes.
TEST(Plan, ActivationsAreReportedWhateverThePeakIs) {
  const ModelSpec spec = *named_model("mlp-digits");
  const Plan plan = make_plan(PublishedEstimator(), spec, on(1, 1, 1, 1),
                              with_devices(*cluster_preset("h100"), 1));
  EXPECT_EQ(plan.peak().activations, 0) << "else this test shows nothing";
  double width = static_cast<double>(spec.inputs);
  for (const std::int64_t size : spec.widths) width += 2.0 * static_cast<double>(size);
  EXPECT_DOUBLE_EQ(plan.activation_bytes(), 2 * width);
  EXPECT_THAT(
      to_json(plan),
      HasSubstr("\"activation_bytes\": " + std::to_string(static_cast<int>(2 * width)) + ".0"));
}

TEST(Plan, NonsenseIsNamed) {
  const ModelSpec spec = *named_model("gpt2-124m");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const auto reject = [&](auto change) {
    Training training = on(8, 1, 1, 8);
    change(training);
    return error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); });
  };
  EXPECT_EQ(reject([](Training&) {}), "");
  EXPECT_THAT(reject([](Training& t) { t.degrees.tp = 5; }),
              HasSubstr("tp = 5: must divide heads = 12"));
  EXPECT_THAT(reject([](Training& t) { t.degrees.dp_shard = 4; }),
              HasSubstr("devices = 8: the mesh dp 4 x tp 1 x pp 1 x cp 1 has 4"));
  EXPECT_THAT(reject([](Training& t) { t.global_batch = 12; }),
              HasSubstr("global-batch = 12: must be a multiple of dp x micro-batch = 8"));
  EXPECT_THAT(reject([](Training& t) { t.micro_batch = -1; }), HasSubstr("micro-batch = -1"));
  EXPECT_THAT(reject([](Training& t) { t.zero_stage = 4; }), HasSubstr("zero = 4"));
  EXPECT_THAT(reject([](Training& t) { t.sequence = 2048; }),
              HasSubstr("seq-len = 2048: the model has 1024 learned positions"));
  EXPECT_THAT(reject([](Training& t) { t.degrees.ep = 2; }),
              HasSubstr("ep = 2: the model has no experts"));
  EXPECT_THAT(reject([](Training& t) { t.precision = "fp12"; }), HasSubstr("precision = fp12"));
  EXPECT_THAT(reject([](Training& t) { t.schedule = "2f2b"; }), HasSubstr("schedule = 2f2b"));
  Cluster broken = cluster;
  broken.between.bandwidth = 0;
  EXPECT_THAT(error_text([&] { validate(broken); }),
              HasSubstr("between.bandwidth = 0: must be positive"));
  broken = cluster;
  broken.device.efficiency.matmul = 1.2;
  EXPECT_THAT(error_text([&] { validate(broken); }),
              HasSubstr("efficiency.matmul = 1.2: must lie in (0, 1]"));
  EXPECT_THAT(error_text([&] {
                make_plan(PublishedEstimator(), spec, on(8, 1, 1, 8), cluster, {1e9, 5, 0, 2});
              }),
              HasSubstr("only one of tokens, hours and money"));
  EXPECT_THAT(error_text([&] { with_devices(cluster, 12); }),
              HasSubstr("devices = 12: must be a multiple of the 8 devices"));
}

// The closed form of the step against the schedule's own table, for equal stages: head and
// embedding weigh little in a tall narrow vocabulary.
TEST(Plan, ClosedFormAndSimulationAgree) {
  ModelSpec spec = *named_model("gpt3-13b");
  spec.vocab = 128;
  for (const std::int64_t v : {1, 5}) {
    Training training = on(1, 1, 8, 64);
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
    Training training = on(1, 1, 4, micro_batches);
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
    Training training = on(1, 1, 4, 16);
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

// Every preset plans a job on one host, at no more than its peak and no less than a thousandth of
// it.
TEST(Plan, EveryPresetPlansAJob) {
  for (const std::string& name : cluster_names()) {
    SCOPED_TRACE(name);
    const Cluster preset = *cluster_preset(name);
    validate(preset);
    const Cluster cluster = with_devices(preset, preset.devices_per_host);
    Training training = on(cluster.devices(), 1, 1, 4 * cluster.devices());
    training.precision = name == "v100" ? "fp16" : "mixed";
    const Plan plan = make_plan(PublishedEstimator(), *named_model("gpt2-124m"), training, cluster);
    EXPECT_TRUE(plan.fits());
    EXPECT_GT(plan.mfu, 0.001);
    EXPECT_LT(plan.hfu, 1);
  }
}

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
  const Training training = on(1, 1, 8, 32);
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const auto even = simulate_step(PublishedEstimator(), spec, training, cluster);
  const auto uneven = simulate_step(PublishedEstimator(), spec, training, cluster, {{4, 2.0}});
  EXPECT_GT(uneven.seconds, 1.7 * even.seconds);
  EXPECT_LT(uneven.seconds, 2.1 * even.seconds);
  EXPECT_THROW(simulate_step(PublishedEstimator(), spec, training, cluster, {{8, 2.0}}), Error);
  EXPECT_THROW(simulate_step(PublishedEstimator(), spec, training, cluster, {{1, 0.0}}), Error);
}

// ZeRO++ (Wang et al., 2023, table 1): between hosts 0.75 of the parameters a step where ZeRO-3
// sends 3, in units of 16 bits; the price is a second set of shards on each host.
TEST(Plan, ZeroPlusPlusSendsAQuarter) {
  constexpr std::int64_t kMany = 1 << 20;
  EXPECT_NEAR(zero_plus_plus_bytes(kMany, 8).shards / 2, 0.75, 1e-5);
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training = on(64, 1, 1, 64);
  training.zero_stage = 3;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 64);
  const Plan plain = make_plan(PublishedEstimator(), spec, training, cluster);
  training.zero_plus_plus = true;
  const Plan plus = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_NEAR(traffic_bytes(plus.traffic, "shard") / traffic_bytes(plain.traffic, "shard"), 0.25,
              1e-9);
  EXPECT_NEAR(traffic_bytes(plus.traffic, "second shard"),
              2 * 7.0 / 8 * static_cast<double>(plus.parameters), 1e6);
  EXPECT_NEAR(plus.peak().parameters - plain.peak().parameters,
              2.0 / 8 * static_cast<double>(plus.parameters), 1e6);
  EXPECT_LT(plus.time.data_exposed + plus.time.data_hidden,
            0.5 * (plain.time.data_exposed + plain.time.data_hidden));
  training.zero_stage = 2;
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("zero = 2: ZeRO++ is a way of stage 3"));
}

// DeepSpeed Ulysses (Jacobs et al., 2023): 4 N h / P elements a rank forward, of a sequence of N
// tokens over P ranks, and as many backward.
TEST(Plan, UlyssesExchangesHeadsForPositions) {
  const double n = 65536;
  const double h = 5120;
  const double p = 8;
  EXPECT_NEAR(ulysses_elements(8, 1, n / p, h, h), 2 * 4 * n * h / p * (p - 1) / p, 1);
  ModelSpec spec = *named_model("gpt3-13b");
  spec.positions = Positions::kRotary;
  Training training = on(1, 1, 1, 1);
  training.degrees.cp = 8;
  training.sequence = 65536;
  training.recompute = Recompute::kFull;
  training.zero_stage = 3;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const Plan gathered = make_plan(PublishedEstimator(), spec, training, cluster);
  training.ulysses = true;
  const Plan ulysses = make_plan(PublishedEstimator(), spec, training, cluster);
  // Every key and value goes to every rank, or every head's part to one: with as many key heads as
  // query heads, and the forward pass repeated, (2 + 2 + 4) s h against (4 + 4 + 4) s h / 8.
  EXPECT_NEAR(
      traffic_bytes(ulysses.traffic, "context") / traffic_bytes(gathered.traffic, "context"),
      12.0 / 8 / 8, 1e-9);
  EXPECT_LT(ulysses.time.communication, gathered.time.communication);
  spec.kv_heads = 4;
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("cp = 8: an exchange of heads gives every rank whole key-value heads"));
}

TEST(Plan, OffloadedParametersLeaveTheDevice) {
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training = on(8, 1, 1, 8);
  training.zero_stage = 3;
  training.offload_optimizer = true;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const Plan there = make_plan(PublishedEstimator(), spec, training, cluster);
  training.offload_parameters = true;
  const Plan away = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_NEAR(there.peak().all() - away.peak().all(),
              2.0 / 8 * static_cast<double>(there.parameters), 1e6)
      << "16 bits of an eighth";
  // Gathered twice from the host, where the optimizer's result came over the link once.
  EXPECT_NEAR((traffic_bytes(away.traffic, "offload") - traffic_bytes(there.traffic, "offload")) /
                  (2.0 / 8 * static_cast<double>(there.parameters)),
              1, 1e-9);
  const auto exchanged = [](const Plan& plan) {
    return plan.time.data_exposed + plan.time.data_hidden;
  };
  EXPECT_GT(exchanged(away), exchanged(there));
  training.offload_optimizer = false;
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("offload-optimizer"));
}

// What leaves the device must find room in its host: eight devices leave fp32 masters and moments
// of all parameters there.
TEST(Plan, OffloadedStatesFillTheHost) {
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training = on(8, 1, 1, 8);
  training.zero_stage = 1;
  training.offload_optimizer = true;
  Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const Plan roomy = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_NEAR(roomy.host_bytes, 12.0 * static_cast<double>(roomy.parameters), 1);
  EXPECT_TRUE(roomy.fits());
  cluster.host.memory_bytes = roomy.host_bytes - 1;
  EXPECT_FALSE(make_plan(PublishedEstimator(), spec, training, cluster).fits());
  SearchSpace space;
  space.tensor = space.pipeline = {1};
  space.zero_stage = {1};
  space.offload = {true};
  training.offload_optimizer = false;
  EXPECT_TRUE(search(PublishedEstimator(), spec, training, cluster, space).best.empty());
  cluster.host.memory_bytes += 2;
  EXPECT_FALSE(search(PublishedEstimator(), spec, training, cluster, space).best.empty());
  training.offload_optimizer = true;
  cluster.host = {};
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("does not describe its hosts' memory"));
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

// A schedule that went through a file takes as long as the same one that was generated; another one
// as long as its own simulation.
TEST(Simulator, ScheduleFilesTakeTheirOwnTime) {
  const ModelSpec spec = *named_model("gpt3-13b");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 4);
  const Training training = on(1, 1, 4, 16);
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
  EXPECT_THAT(error_text([&] { step(of_file(on(2, 1, 2, 16), "1f1b", 1, 16)); }),
              HasSubstr("pp = 2: schedule file.csv is of 4 ranks"));
}

/// Three stages on two ranks, one of which has two of them.
TEST(Simulator, AJobsOwnTableMayGiveRanksOtherNumbersOfStages) {
  const Cluster cluster = with_devices(*cluster_preset("a100"), 2);
  Training training = on(1, 1, 2, 1);
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
}  // namespace shoal::plan::plan_test
