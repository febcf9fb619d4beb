// What `shoal plan` prints of a made-up plan in which no two figures are alike, to the letter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "shoal/base/units.h"
#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::plan_text_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

Plan made_up() {
  Plan plan;
  plan.spec = small();
  plan.spec.name = "tiny";
  plan.training = on(2);
  plan.training.degrees.dp_replicate = 3;
  plan.training.zero_stage = 1;
  plan.cluster = cluster_of(16);
  plan.parameters = 1'500'000'000;
  MemoryUse use;
  use.parameters = 1 * kGiB;
  use.gradients = 2 * kGiB;
  use.optimizer = 3 * kGiB;
  use.activations = 4 * kGiB;
  use.gathered = 5 * kGiB;
  use.communication = 6 * kGiB;
  use.workspace = 7 * kGiB;
  use.staging = 8 * kGiB;
  plan.memory = {{0, {{"steady state", use}}}};
  plan.capacity_bytes = 40 * kGiB;
  plan.host_bytes = 9 * kGiB;
  plan.flops = {1e15, 9e14, 1.25e15, 1.125e15};
  plan.traffic = {{"data", 3e9, 1e9}, {"tensor", 2e9, 0}};
  plan.time = {.pipeline = 10, .bubble = 2, .communication = 1, .recomputed = 0.5};
  plan.time.data_exposed = 3;
  plan.time.data_hidden = 4;
  plan.time.optimizer = 2;
  plan.mfu = 0.5;
  plan.mfu_causal = 0.45;
  plan.hfu = 0.625;
  plan.limited_by = "products";
  return plan;
}

TEST(PlanText, HasEveryFigureInItsPlace) {
  Plan plan = made_up();
  EXPECT_EQ(to_text(plan),
            R"(tiny: 1500000000 parameters (1.5 billion)
16 a100 devices on 2 hosts: dp 6 x tp 1 x pp 1
ZeRO 1 over 2 ranks, mixed, recomputation none, schedule 1f1b, 2 micro-batches of 2, global batch 24 x 128 tokens

Memory of one device, GiB (of 40.0)
  stage when                    weights gradients optimizer activations gathered buffers workspace staging      all
  0     steady state               1.00      2.00      3.00        4.00     5.00    6.00      7.00    8.00    36.00
  peak 36.00 GiB: fits
  offloaded to a host: 9.00 GiB of its 2048.00 GiB

One step
  model FLOPs      1e+15 (all of attention counted; 9e+14 at its causal half)
  hardware FLOPs   1.25e+15 (with what is recomputed, none)
  time             15 s: pipeline 10, exposed gradient and parameter exchange 3, optimizer 2
  in the pipeline  exchange 1 s, recomputation 0.5 s, bubbles 2 s (20.0 %)
  utilisation      MFU 50.0 % (causal 45.0 %), HFU 62.5 %, 4.2 TFLOP/s a device
  limited by       products
  one device sends data 3 GB (1 between hosts) tensor 2 GB
)");
  plan.cluster.runtime = Runtime::kShoal;
  EXPECT_THAT(to_text(plan), HasSubstr("\n  predicted from   published formulas: no kernels were "
                                       "measured for such a step\n"));
  plan.time.of_measured_kernels = true;
  EXPECT_THAT(to_text(plan), HasSubstr("\n  predicted from   measured kernels of Shoal\n"));
  plan.traffic.clear();
  EXPECT_THAT(to_text(plan), Not(HasSubstr("one device sends")));
  EXPECT_THAT(to_text(plan), Not(HasSubstr("made-up")));
  plan.cluster.name = "cpu";
  EXPECT_THAT(to_text(plan), HasSubstr("\ncpu is a made-up host, not this machine: `shoal plan "
                                       "calibrate` measures yours\n"));
  Plan little = plan;
  little.memory[0].phases[0].use = {};
  little.memory[0].phases[0].use.parameters = 12.5e6;
  EXPECT_THAT(to_text(little), HasSubstr("Memory of one device, MB (of 42950)\n"));
  EXPECT_THAT(to_text(little), HasSubstr("\n  peak 12.50 MB: fits\n"));
  plan.capacity_bytes = 35.9 * kGiB;
  EXPECT_THAT(to_text(plan), HasSubstr("\n  peak 36.00 GiB: DOES NOT FIT\n"));
  EXPECT_THAT(to_text(plan), HasSubstr("\n  no single change makes it fit: more devices, or "));
  plan.remedies = {"--zero 2 (1 GiB)", "--zero 3 (1 GiB)"};
  EXPECT_THAT(to_text(plan), HasSubstr("\n  would fit with --zero 2 (1 GiB)\n  would fit with "));
  EXPECT_THAT(to_text(plan), Not(HasSubstr("no single change")));
  plan.cluster.hosts = 1;
  plan.spec.name = "";
  plan.training.degrees.dp_replicate = 1;
  plan.host_bytes = 0;
  EXPECT_EQ(to_text(plan).rfind("the model: ", 0), 0u);
  EXPECT_THAT(to_text(plan), HasSubstr("8 a100 devices on 1 host: dp 2 x"));
  EXPECT_THAT(to_text(plan), HasSubstr("\nZeRO 1, mixed"));
  EXPECT_THAT(to_text(plan), Not(HasSubstr("offloaded")));
}

// Scripts read it: the keys are a contract.
TEST(PlanJson, HasEveryFigureUnderItsName) {
  const json found = json::parse(to_json(made_up()));
  const json expected = json::parse(R"({
      "model": "tiny", "cluster": "a100", "devices": 16,
      "mesh": {"dp": 6, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "shard": 2},
      "zero": 1, "precision": "mixed", "recompute": "none", "schedule": "1f1b", "micro_batch": 2,
      "global_batch": 24, "seq_len": 128, "parameters": 1500000000,
      "model_state_bytes": 6442450944.0, "activation_bytes": 4294967296.0,
      "peak_bytes": 38654705664.0, "capacity_bytes": 42949672960.0, "host_bytes": 9663676416.0,
      "fits": true, "remedies": [],
      "flops_convention": "all of attention counted; *_causal counts its causal half",
      "model_flops": 1e15, "model_flops_causal": 9e14, "hardware_flops": 1.25e15,
      "hardware_flops_causal": 1.125e15,
      "traffic_bytes": {"data": 3e9, "tensor": 2e9},
      "traffic_between_hosts": {"data": true, "tensor": false},
      "traffic_between_hosts_bytes": {"data": 1e9, "tensor": 0.0},
      "bubble_fraction": 0.2, "step_time_s": 15.0,
      "step_time_parts_s": {"pipeline": 10.0, "bubble": 2.0, "communication": 1.0,
                            "recomputed": 0.5, "data_exposed": 3.0, "data_hidden": 4.0,
                            "optimizer": 2.0},
      "step_time_of_measured_kernels": false, "mfu": 0.5, "mfu_causal": 0.45, "hfu": 0.625,
      "limited_by": "products",
      "memory": [{"stage": 0, "phases": {"steady state": {
          "parameters": 1073741824.0, "gradients": 2147483648.0, "optimizer": 3221225472.0,
          "activations": 4294967296.0, "gathered": 5368709120.0, "communication": 6442450944.0,
          "workspace": 7516192768.0, "staging": 8589934592.0, "all": 38654705664.0}}}]})");
  for (const auto& [key, value] : expected.items())
    EXPECT_EQ(found.value(key, json()), value) << key;
  EXPECT_EQ(found.size(), expected.size());
}

TEST(PlanText, SaysWhatLimitsTheStep) {
  const Plan plan = make_plan(PublishedEstimator(), small(), on(4, 2), cluster_of(8));
  EXPECT_FALSE(plan.limited_by.empty());
  EXPECT_EQ(plan.limited_by, limiting_part(plan.spec, plan.training, plan.cluster, plan.time));
}

}  // namespace
}  // namespace shoal::plan::plan_text_test
