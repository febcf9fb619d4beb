// Every option of `shoal plan` in the figure that it decides.
#include "apps/shoal/plan/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/plan/collective.h"
#include "tests/error_text.h"

namespace shoal::apps::options_test {
namespace {

using testing::HasSubstr;

PlanOptions parsed(const std::string& words) {
  CLI::App app;
  PlanOptions options;
  add_plan_options(app, options);
  app.parse(words);
  return options;
}

constexpr const char* kShape = "--layers 8 --hidden 64 --heads 4 --vocab 128 ";

plan::Training training(const std::string& words, std::int64_t devices = 8) {
  const PlanOptions options = parsed(kShape + words);
  return training_of(options, model_of(options), devices);
}

std::string refusal(const std::string& words) {
  try {
    parsed(words);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(PlanOptions, ShapesAreTheirOptions) {
  const auto spec = [](const std::string& words) { return model_of(parsed(kShape + words)); };
  const model::ModelSpec plain = spec("");
  EXPECT_EQ(plain.layers, 8);
  EXPECT_EQ(plain.hidden, 64);
  EXPECT_EQ(plain.heads, 4);
  EXPECT_EQ(plain.kv_heads, 4);
  EXPECT_EQ(plain.head_size, 16);
  EXPECT_EQ(plain.ffn, 256);
  EXPECT_EQ(plain.vocab, 128);
  EXPECT_EQ(plain.sequence, 2048);
  EXPECT_TRUE(plain.tied_embeddings);
  EXPECT_FALSE(plain.gated);
  EXPECT_EQ(plain.experts, 0);
  EXPECT_EQ(plain.experts_per_token, 0);
  EXPECT_EQ(plain.dropout, 0);
  EXPECT_EQ(spec("--kv-heads 2").kv_heads, 2);
  EXPECT_EQ(spec("--ffn 100").ffn, 100);
  EXPECT_EQ(spec("--seq-len 77").sequence, 77);
  EXPECT_FALSE(spec("--untied").tied_embeddings);
  EXPECT_TRUE(spec("--gated").gated);
  EXPECT_EQ(spec("--dropout 0.25").dropout, 0.25);
  EXPECT_EQ(spec("--experts 6").experts, 6);
  EXPECT_EQ(spec("--experts 6").experts_per_token, 2);
  EXPECT_EQ(spec("--experts 6 --experts-per-token 3").experts_per_token, 3);
  EXPECT_EQ(model_of(parsed("--model gpt2-124m --dropout 0.5")).dropout, 0.5);
}

TEST(PlanOptions, AModelIsNamedOrShaped) {
  const auto refused = [](const std::string& words) {
    return error_text([&] { model_of(parsed(words)); });
  };
  const char* both = "name a --model, or give a shape";
  EXPECT_THAT(refused(""), HasSubstr(both));
  for (const char* one : {"--layers 1", "--hidden 64", "--heads 1"})
    EXPECT_THAT(refused(fmt::format("--model gpt2-124m {}", one)), HasSubstr(both)) << one;
  EXPECT_THAT(refused("--model gpt9"), HasSubstr("--model gpt9: no such model"));
  EXPECT_THAT(refused("--model llama3-70b"), HasSubstr("did you mean llama-70b? There are "));
  EXPECT_THAT(refused("--model xyzzy"), HasSubstr("Hint: there are "));
  EXPECT_THAT(refused("--model none.json"), HasSubstr("none.json: no such file"));
}

TEST(PlanOptions, WhatIsNotGivenHasItsDefault) {
  const plan::Training plain = training("");
  plan::Training expected;
  expected.degrees.dp_shard = 8;
  expected.global_batch = 8;
  EXPECT_EQ(plain, expected);
  const PlanOptions options = parsed("");
  EXPECT_EQ(options.count, 5u);
  EXPECT_EQ(options.budget.bytes_per_token, 2);
  EXPECT_EQ(options.failures, std::nullopt);
  EXPECT_FALSE(options.json || options.search || options.gathers);
}

TEST(PlanOptions, TrainingIsThatOfItsOptions) {
  plan::Training expected;
  expected.degrees.dp_shard = 8;
  expected.global_batch = 8;
  const auto expect = [&](const char* words, auto change) {
    plan::Training changed = expected;
    change(changed);
    EXPECT_EQ(training(words), changed) << words;
  };
  using plan::Training;
  expect("--zero 3", [](Training& t) { t.zero_stage = 3; });
  expect("--zero 0", [](Training& t) { t.zero_stage = 0; });
  expect("--shard 4", [](Training& t) { t.degrees.shard_over(4, t.degrees.dp()); });
  expect("--micro-batch 3", [](Training& t) { t.micro_batch = 3, t.global_batch = 24; });
  expect("--global-batch 32", [](Training& t) { t.global_batch = 32; });
  expect("--seq-len 77", [](Training& t) { t.sequence = 77; });
  expect("--recompute selective", [](Training& t) { t.recompute = plan::Recompute::kSelective; });
  expect("--recompute full", [](Training& t) { t.recompute = plan::Recompute::kFull; });
  expect("--recompute none", [](Training&) {});
  expect("--schedule gpipe", [](Training& t) { t.schedule = "gpipe"; });
  expect("--precision fp8", [](Training& t) { t.precision = "fp8"; });
  expect("--optimizer momentum", [](Training& t) { t.optimizer = plan::Optimizer::kMomentum; });
  expect("--optimizer sgd", [](Training& t) { t.optimizer = plan::Optimizer::kSgd; });
  expect("--attention plain", [](Training& t) { t.flash_attention = false; });
  expect("--no-sequence-parallel", [](Training& t) { t.sequence_parallel = false; });
  expect("--no-overlap", [](Training& t) { t.overlap_data = false; });
  expect("--keep-gathered", [](Training& t) { t.reshard_after_forward = false; });
  expect("--offload-optimizer", [](Training& t) { t.offload_optimizer = true; });
  expect("--offload-parameters", [](Training& t) { t.offload_parameters = true; });
  expect("--zero-plus-plus", [](Training& t) { t.zero_plus_plus = true; });
  expect("--ulysses", [](Training& t) { t.ulysses = true; });
  expect("--flat-rings", [](Training& t) { t.flat_rings = true; });
  expect("--reduce-every-micro-batch", [](Training& t) { t.reduce_every_micro_batch = true; });
  expect("--prefetch 0", [](Training& t) { t.gather_ahead = 0; });
  expect("--prefetch 5", [](Training& t) { t.gather_ahead = 5; });
  expect("--expert-imbalance 1.5", [](Training& t) { t.expert_imbalance = 1.5; });
}

TEST(PlanOptions, TheMeshIsThatOfItsOptions) {
  const plan::Training all = training("--tp 2 --pp 4 --vpp 2 --cp 5 --ep 6 --etp 3", 80);
  EXPECT_EQ(all.degrees, (plan::Degrees{.pp = 4, .dp_shard = 2, .cp = 5, .tp = 2, .ep = 6}));
  EXPECT_EQ(all.virtual_stages, 2);
  EXPECT_EQ(all.expert_tensor, 3);
  EXPECT_THAT(error_text([] { training("--shard 3"); }),
              HasSubstr("shard = 3: must divide dp x cp = 8"));
  EXPECT_EQ(training("--vpp 2 --pp 4").schedule, "interleaved");
  EXPECT_EQ(training("--pp 4").schedule, "1f1b");
  EXPECT_EQ(training("--dp 3").degrees.dp(), 3);
  // A step of as many micro-batches as there are stages.
  EXPECT_EQ(training("--pp 4 --micro-batch 3").global_batch, 2 * 3 * 4);
  const auto refused = [](const std::string& words, std::int64_t devices = 8) {
    return error_text([&] { training(words, devices); });
  };
  EXPECT_THAT(refused("--tp 3"), HasSubstr("--devices 8: tp x pp x cp = 3 must divide it"));
  EXPECT_EQ(refused("--tp 3 --dp 2"), "");
  for (const char* option :
       {"tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro-batch", "global-batch"}) {
    EXPECT_THAT(refused(fmt::format("--{} -1", option)),
                HasSubstr(fmt::format("--{} -1: must be positive", option)));
    EXPECT_THAT(refused(fmt::format("--{} 10000001", option)),
                HasSubstr(fmt::format("--{} 10000001: must be at most 10000000", option)));
  }
  EXPECT_EQ(refused("--tp 10000000 --dp 1"), "");
  EXPECT_THAT(refused("--tp 5000000 --cp 3"),
              HasSubstr("tp 5000000 x pp 1 x cp 3: must be at most 10000000"));
}

TEST(PlanOptions, WordsAndNumbersAreChecked) {
  EXPECT_THAT(error_text([] { training("--recompute some"); }),
              HasSubstr("--recompute some: must be none, selective or full"));
  EXPECT_THAT(error_text([] { training("--optimizer adamw"); }),
              HasSubstr("--optimizer adamw: must be adam, momentum or sgd"));
  EXPECT_THAT(error_text([] { training("--attention fast"); }),
              HasSubstr("--attention fast: must be flash or plain"));
  for (const char* option :
       {"--parameters",  "--layers",       "--hidden",  "--heads",   "--kv-heads", "--ffn",
        "--vocab",       "--experts",      "--seq-len", "--devices", "--dp",       "--tp",
        "--pp",          "--vpp",          "--cp",      "--ep",      "--etp",      "--shard",
        "--micro-batch", "--global-batch", "--tokens",  "--hours",   "--money"})
    EXPECT_THAT(refusal(fmt::format("{} 0", option)), HasSubstr("must not be 0")) << option;
  EXPECT_THAT(refusal("--zero 4"), HasSubstr("not in range"));
  EXPECT_THAT(refusal("--zero -1"), HasSubstr("not in range"));
  EXPECT_THAT(refusal("--prefetch -1"), HasSubstr("not in range"));
  EXPECT_THAT(refusal("--prefetch 1001"), HasSubstr("not in range"));
  EXPECT_EQ(refusal("--prefetch 1000"), "");
  EXPECT_THAT(refusal("--count 0"), HasSubstr("not in range"));
  EXPECT_THAT(refusal("--count 1001"), HasSubstr("not in range"));
  EXPECT_EQ(refusal("--count 1000"), "");
  EXPECT_THAT(refusal("--failures 4611686018427387905"), HasSubstr("not in range"));
  EXPECT_EQ(refusal("--failures 0"), "");
}

TEST(PlanOptions, TheClusterHasTheDevicesOfTheMesh) {
  const auto cluster = [](const std::string& words) { return cluster_of(parsed(words)); };
  EXPECT_EQ(cluster("").name, plan::cluster_preset("a100")->name);
  EXPECT_EQ(cluster("").devices(), 1);
  EXPECT_EQ(cluster("--devices 16").hosts, 2);
  EXPECT_EQ(cluster("--cluster h100 --devices 16").device.name,
            plan::cluster_preset("h100")->device.name);
  EXPECT_EQ(cluster("--dp 4 --tp 2 --pp 2 --cp 3 --cluster h100").devices(), 48);
  EXPECT_EQ(cluster("--tp 4").devices(), 4);
  EXPECT_EQ(cluster("--ep 4 --vpp 2").devices(), 1);
  EXPECT_THAT(error_text([&] { cluster("--cp 10000001"); }),
              HasSubstr("--cp 10000001: must be at most 10000000"));
  EXPECT_THAT(error_text([&] { cluster("--dp 10000 --tp 2000"); }),
              HasSubstr("--tp 2000: the mesh would have more than 10000000 devices"));
}

TEST(PlanOptions, ASearchKeepsWhatIsGiven) {
  const plan::Cluster host = *plan::cluster_preset("a100");
  const plan::SearchSpace open = space_of(parsed("--search"), host);
  EXPECT_TRUE(open.data.empty() && open.tensor.empty() && open.pipeline.empty());
  EXPECT_TRUE(open.context.empty() && open.expert.empty() && open.virtual_stages.empty());
  EXPECT_TRUE(open.micro_batch.empty() && open.zero_stage.empty() && open.recompute.empty());
  EXPECT_TRUE(open.precisions.empty() && open.shard.empty());
  EXPECT_EQ(open.schedules, (std::vector<std::string>{"1f1b", "interleaved"}));
  EXPECT_TRUE(open.hybrid_sharding);
  EXPECT_EQ(open.offload, (std::vector<bool>{false, true}));
  plan::Cluster bare = host;
  bare.host = {};
  EXPECT_EQ(space_of(parsed("--search"), bare).offload, (std::vector<bool>{false}));
  const plan::SearchSpace fixed =
      space_of(parsed("--search --dp 1 --shard 2 --tp 3 --pp 4 --cp 5 --ep 6 --vpp 7 "
                      "--micro-batch 8 --zero 0 --recompute full --schedule gpipe "
                      "--offload-optimizer --precisions bf16,fp8"),
               host);
  using One = std::vector<std::int64_t>;
  EXPECT_EQ(fixed.data, One{1});
  EXPECT_EQ(fixed.shard, One{2});
  EXPECT_EQ(fixed.tensor, One{3});
  EXPECT_EQ(fixed.pipeline, One{4});
  EXPECT_EQ(fixed.context, One{5});
  EXPECT_EQ(fixed.expert, One{6});
  EXPECT_EQ(fixed.virtual_stages, One{7});
  EXPECT_EQ(fixed.micro_batch, One{8});
  EXPECT_EQ(fixed.zero_stage, std::vector<int>{0});
  EXPECT_EQ(fixed.recompute, std::vector<plan::Recompute>{plan::Recompute::kFull});
  EXPECT_EQ(fixed.schedules, std::vector<std::string>{"gpipe"});
  EXPECT_EQ(fixed.precisions, (std::vector<std::string>{"bf16", "fp8"}));
  EXPECT_EQ(fixed.offload, std::vector<bool>{true});
  EXPECT_EQ(space_of(parsed("--precisions all"), host).precisions, plan::precision_names());
  EXPECT_THAT(error_text([&] { space_of(parsed("--precisions bf16,fp4"), host); }),
              HasSubstr("--precisions fp4: must be among fp32"));
  EXPECT_THAT(error_text([&] { space_of(parsed("--schedules 1f1b,2f2b"), host); }),
              HasSubstr("--schedules 2f2b: must be among"));
  EXPECT_THAT(error_text([&] { space_of(parsed("--tp -2"), host); }),
              HasSubstr("--search: -2: sizes must be positive"));
}

/// A job file of its own.
struct JobFile {
  JobFile()
      : path(std::filesystem::temp_directory_path() / fmt::format("options_{}.toml", getpid())) {
    std::ofstream(path) << "[model]\nname = \"gpt2-tiny\"\n[data]\nfolders = [\"a\"]\n"
                           "[training]\nglobal_batch_sequences = 16\nmicro_batch = 2\nsteps = 10\n"
                           "sequence_length = 64\n[parallelism]\nranks = 4\nzero_stage = 3\n"
                           "gather_ahead = 2\nreshard_after_forward = false\n"
                           "[optimizer]\nname = \"sgd\"\nmomentum = 0.0\n"
                           "[activation_checkpoint]\nmode = \"full\"\n";
  }
  ~JobFile() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

TEST(PlanOptions, OfAJobReplaceItsKeys) {
  const JobFile file;
  const auto options_of = [&](const std::string& words) {
    return parsed(fmt::format("--model {} {}", file.path.string(), words));
  };
  const auto planned = [&](const std::string& words) {
    const PlanOptions options = options_of(words);
    return training_of(options, model_of(options), cluster_of(options).devices());
  };
  const plan::Training divided = planned(
      "--set parallelism.context_parallel_degree=2 --set "
      "parallelism.context_parallel_method=heads");
  EXPECT_EQ(divided.degrees.cp, 2);
  EXPECT_EQ(divided.degrees.dp(), 2);
  EXPECT_TRUE(divided.ulysses);
  const plan::Training whole = planned(
      "--cp 1 --set parallelism.context_parallel_degree=2 --set "
      "parallelism.context_parallel_method=heads");
  EXPECT_EQ(whole.degrees.dp(), 4);
  EXPECT_FALSE(whole.ulysses);
  const plan::Training own = planned("");
  EXPECT_EQ(own.degrees.dp(), 4);
  EXPECT_EQ(own.micro_batch, 2);
  EXPECT_EQ(own.global_batch, 16);
  EXPECT_EQ(own.zero_stage, 3);
  EXPECT_EQ(own.gather_ahead, 2);
  EXPECT_FALSE(own.reshard_after_forward);
  EXPECT_EQ(own.optimizer, plan::Optimizer::kSgd);
  EXPECT_EQ(own.recompute, plan::Recompute::kFull);
  EXPECT_EQ(own.kept, std::vector<plan::Keep>(4, plan::Keep::kInput));
  EXPECT_EQ(own.sequence, 64);
  ASSERT_TRUE(own.states);
  EXPECT_EQ(own.states->moments, 0);
  EXPECT_EQ(planned("--devices 8").degrees.dp(), 8);
  EXPECT_EQ(planned("--dp 2").degrees.dp(), 2);
  EXPECT_EQ(planned("--global-batch 32").global_batch, 32);
  EXPECT_EQ(planned("--micro-batch 4").micro_batch, 4);
  EXPECT_EQ(planned("--zero 1").zero_stage, 1);
  EXPECT_EQ(planned("--prefetch 0").gather_ahead, 0);
  EXPECT_EQ(planned("--shard 2").degrees.shard_ranks(), 2);
  EXPECT_TRUE(planned("--recompute none").kept.empty());
  EXPECT_EQ(planned("--recompute none").recompute, plan::Recompute::kNone);
  EXPECT_FALSE(planned("--precision bf16").states);
  EXPECT_FALSE(planned("--optimizer adam").states);
  EXPECT_EQ(planned("--optimizer adam").optimizer, plan::Optimizer::kAdam);
  EXPECT_EQ(planned("--set training.global_batch_sequences=24").global_batch, 24);
  // Its ranks share a host's figures among them.
  const plan::Cluster host = cluster_of(options_of(""));
  const plan::Cluster cpu = *plan::cluster_preset("cpu");
  EXPECT_EQ(host.devices_per_host, 4);
  EXPECT_DOUBLE_EQ(host.device.memory_bytes, cpu.device.memory_bytes / 4);
  EXPECT_DOUBLE_EQ(host.device.memory_bandwidth, cpu.device.memory_bandwidth / 4);
  for (const auto& [type, peak] : cpu.device.peak_flops)
    EXPECT_DOUBLE_EQ(host.peak(type), peak / 4);
  EXPECT_EQ(cluster_of(options_of("--cluster a100")).devices(), 4);
  // A search sizes the micro-batch itself.
  EXPECT_EQ(planned("--search").micro_batch, 4) << "sixteen samples on four ranks";
}

TEST(ClusterFile, EveryNumberHasItsPlace) {
  const plan::Cluster cluster = parse_cluster(
      "name = \"n\"\nsource = \"s\"\nhosts = 2\ndevices_per_host = 4\nruntime = \"shoal\"\n"
      "[device]\nname = \"d\"\nmemory_bytes = 1\nmemory_bandwidth = 2\npower_w = 3\n"
      "price_per_hour = 4\nhours_between_failures = 5\n[device.peak_flops]\nf32 = 6\nbf16 = 7\n"
      "[device.efficiency]\nmatmul = 0.1\nmatmul_ramp_flops = 8\nmemory = 0.2\noperation_s = 9\n"
      "link_inside = 0.3\nlink_between = 0.4\n[inside]\nlatency_s = 10\nbandwidth = 11\n"
      "[between]\nlatency_s = 12\nbandwidth = 13\n[host]\nmemory_bytes = 14\n"
      "memory_bandwidth = 15\nlink_bandwidth = 16\ndevices_at_once = 17\n[storage]\nread_bandwidth "
      "= 18\n"
      "write_bandwidth = 19\n[kernels.linear]\nstart_s = 20\nflop_s = 21\nweight_s = 22\n"
      "byte_s = 23\ntimed = [[1, 2, 3, 4]]\n",
      "c.toml");
  plan::Cluster expected;
  expected.name = "n";
  expected.source = "s";
  expected.hosts = 2;
  expected.devices_per_host = 4;
  expected.runtime = plan::Runtime::kShoal;
  expected.device.name = "d";
  expected.device.memory_bytes = 1;
  expected.device.memory_bandwidth = 2;
  expected.device.power_w = 3;
  expected.device.price_per_hour = 4;
  expected.device.hours_between_failures = 5;
  expected.device.peak_flops = {{ElementType::kF32, 6}, {ElementType::kBF16, 7}};
  expected.device.efficiency.matmul = 0.1;
  expected.device.efficiency.matmul_ramp_flops = 8;
  expected.device.efficiency.memory = 0.2;
  expected.device.efficiency.operation_s = 9;
  expected.device.efficiency.link_inside = 0.3;
  expected.device.efficiency.link_between = 0.4;
  expected.inside = {10, 11};
  expected.between = {12, 13};
  expected.host = {
      .memory_bytes = 14, .memory_bandwidth = 15, .link_bandwidth = 16, .devices_at_once = 17};
  expected.storage = {.read_bandwidth = 18, .write_bandwidth = 19};
  expected.kernels["linear"] = {20, 21, 22, 23, {{{1, 2, 3}, 4}}};
  EXPECT_EQ(cluster, expected);
}

TEST(Stragglers, AreRanksAndFactors) {
  const auto list = stragglers_of("3:1.5,0:2");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].rank, 3);
  EXPECT_EQ(list[0].slowdown, 1.5);
  EXPECT_EQ(list[1].rank, 0);
  EXPECT_EQ(list[1].slowdown, 2);
  EXPECT_TRUE(stragglers_of("").empty());
  for (const char* wrong : {"3", "3:", "3:1.5x", ":2", "a:2"}) {
    EXPECT_THAT(error_text([&] { stragglers_of(wrong); }),
                HasSubstr(fmt::format("--straggler {}: must be rank:factor", wrong)));
  }
}

}  // namespace
}  // namespace shoal::apps::options_test
