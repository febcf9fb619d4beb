// The job as the planner sees it: each key in the figure that it decides.
#include "shoal/train/config/planned.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "shoal/forecast/estimator.h"
#include "shoal/parallel/recipe/division.h"
#include "shoal/plan/traffic.h"
#include "shoal/train/config/validate.h"
#include "tests/error_text.h"
#include "tests/parallel_recipe/written_out.h"

namespace shoal::train::planned_test {
namespace {

using plan::Training;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Sets = std::vector<std::string>;

Sets operator+(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

Job saved_job(const Sets& sets) {
  return parse_job(
      "[model]\nname = \"gpt2-tiny\"\n[data]\nfolders = [\"a\"]\n[training]\n"
      "global_batch_sequences = 24\nsteps = 10\nsequence_length = 64\n[checkpoint]\ninterval = "
      "10\n",
      "job.toml", sets);
}

Training planned(const Sets& sets, int ranks = 4) {
  const Job job = saved_job(sets);
  return planned_training(job, model_spec(job, {.vocab = 256}), ranks);
}

TEST(PlannedTraining, TakesItsFiguresFromTheKeys) {
  const Training plain = planned({});
  EXPECT_EQ(plain.degrees.dp(), 4);
  EXPECT_EQ(plain.degrees.shard_ranks(), 4);
  EXPECT_EQ(plain.zero_stage, 0);
  EXPECT_EQ(plain.global_batch, 24);
  EXPECT_EQ(plain.micro_batch, 6);
  EXPECT_EQ(plain.sequence, 64);
  EXPECT_EQ(plain.precision, "fp32");
  EXPECT_EQ(plain.optimizer, plan::Optimizer::kAdam);
  EXPECT_FALSE(plain.offload_optimizer);
  EXPECT_EQ(plain.gather_ahead, 1);
  EXPECT_TRUE(plain.reshard_after_forward);
  EXPECT_FALSE(plain.reduces_every_micro_batch());
  EXPECT_EQ(plain.recompute, plan::Recompute::kNone);
  EXPECT_EQ(plain.kept, std::vector<model::Keep>(4, model::Keep::kEverything));
  EXPECT_EQ(planned({"training.micro_batch=2"}).micro_batch, 2);
  EXPECT_EQ(planned({"parallelism.zero_stage=2"}).zero_stage, 2);
  EXPECT_EQ(planned({"parallelism.zero_stage=1"}).degrees.shard_ranks(), 4);
  EXPECT_EQ(planned({"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"})
                .degrees.shard_ranks(),
            2);
  EXPECT_THROW(
      planned({"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=3"}), Error)
      << "on four ranks";
  EXPECT_TRUE(planned({"optimizer.state_folder=x"}).offload_optimizer);
  EXPECT_EQ(planned({"parallelism.gather_ahead=3"}).gather_ahead, 3);
  EXPECT_FALSE(planned({"parallelism.reshard_after_forward=false"}).reshard_after_forward);
  EXPECT_TRUE(planned({"parallelism.reduce_every_micro_batch=true"}).reduces_every_micro_batch());
  EXPECT_EQ(planned({"optimizer.name=sgd"}).optimizer, plan::Optimizer::kMomentum);
  EXPECT_EQ(planned({"optimizer.name=sgd", "optimizer.momentum=0"}).optimizer,
            plan::Optimizer::kSgd);
}

TEST(PlannedTraining, HasTheDegreesOfTheJob) {
  const Training one =
      planned({"parallelism.pipeline_parallel_degree=2", "parallelism.context_parallel_degree=2",
               "parallelism.tensor_parallel_degree=2", "parallelism.zero_stage=1",
               "parallelism.data_parallel_replicate_degree=2"},
              16);
  EXPECT_EQ(one.degrees, (plan::Degrees{.pp = 2, .dp_replicate = 2, .cp = 2, .tp = 2}));
  EXPECT_EQ(one.global_batch, 24);
  EXPECT_EQ(one.micro_batch, 12) << "of two data-parallel ranks";
  EXPECT_EQ(one.schedule, "1f1b");
  EXPECT_EQ(one.stage_layers, (std::vector<std::int64_t>{2, 2})) << "blocks, of 3 + 3 units";
  EXPECT_FALSE(one.ulysses);
  // A head of many words costs more than four blocks: it is alone, unless units are counted.
  const std::vector<std::string> large{"parallelism.pipeline_parallel_degree=2",
                                       "training.micro_batch=2", "model.vocab=20000"};
  auto counted = large;
  counted.push_back("parallelism.pipeline_parallel_stages_by=count");
  EXPECT_EQ(planned(large).stage_layers, (std::vector<std::int64_t>{4, 0}));
  EXPECT_EQ(planned(counted).stage_layers, (std::vector<std::int64_t>{2, 2}));
  const Training cut = planned({"parallelism.pipeline_parallel_degree=2",
                                "parallelism.pipeline_parallel_schedule=interleaved",
                                "parallelism.pipeline_parallel_virtual_stages=2",
                                "parallelism.pipeline_parallel_stage_units=[1, 3, 1, 1]",
                                "parallelism.pipeline_parallel_gathered_stages=1",
                                "parallelism.zero_stage=3", "training.micro_batch=2"});
  EXPECT_EQ(cut.schedule, "interleaved");
  EXPECT_EQ(cut.virtual_stages, 2);
  EXPECT_EQ(cut.gathered_stages, 1);
  EXPECT_EQ(cut.stage_layers, (std::vector<std::int64_t>{0, 3, 1, 0}));
  // Three stages, of which one rank has two.
  const std::string file = testing::TempDir() + "/planned_table.csv";
  std::ofstream(file) << "0F0,2F0,2B0,0B0\n1F0,1B0\n";
  const Training of_file = planned({"parallelism.pipeline_parallel_degree=2",
                                    "parallelism.pipeline_parallel_schedule_csv=" + file});
  EXPECT_EQ(of_file.degrees.pp, 2);
  EXPECT_EQ(of_file.stages(), 3);
  EXPECT_EQ(of_file.stage_layers.size(), 3U);
  EXPECT_EQ(plan::rank_of_stage(of_file, 2), 0);
  EXPECT_EQ(of_file.schedule_name(), file);
  const std::string heads = "parallelism.context_parallel_method=heads";
  EXPECT_TRUE(planned({"parallelism.context_parallel_degree=2", heads}).ulysses);
  EXPECT_FALSE(planned({heads}).ulysses) << "there is nothing to exchange";
  EXPECT_TRUE(planned({}).stage_layers.empty());
  EXPECT_EQ(planned({}).threads, 1);
  EXPECT_EQ(planned({"parallelism.threads_per_rank=3"}).threads, 3);
}

TEST(PlannedTraining, RecomputationIsThatOfTheBlocks) {
  using model::Keep;
  EXPECT_EQ(planned({"activation_checkpoint.mode=full"}).recompute, plan::Recompute::kFull);
  EXPECT_EQ(planned({"activation_checkpoint.mode=selective"}).recompute,
            plan::Recompute::kSelective);
  const Training some =
      planned({"activation_checkpoint.mode=every_k", "activation_checkpoint.every_k=3"});
  EXPECT_EQ(some.kept, (std::vector<Keep>{Keep::kEverything, Keep::kEverything, Keep::kInput,
                                          Keep::kEverything}));
  EXPECT_EQ(some.recompute, plan::Recompute::kFull);
  const model::RecomputePolicy policy = recompute_policy(
      saved_job({"activation_checkpoint.mode=budget", "activation_checkpoint.budget_mb=1.5",
                 "activation_checkpoint.every_k=7"})
          .config);
  EXPECT_EQ(policy.mode, RecomputeMode::kBudget);
  EXPECT_EQ(policy.budget_bytes, 1.5e6);
  EXPECT_EQ(policy.every, 7);
  const Job mlp = parse_job(
      "[model]\nfamily = \"mlp\"\n[data]\nsource = \"digits\"\n[training]\n"
      "global_batch_sequences = 8\nsteps = 1\n",
      "job.toml");
  const Training no_blocks = planned_training(mlp, model_spec(mlp, {.inputs = 4, .outputs = 2}), 1);
  EXPECT_TRUE(no_blocks.kept.empty());
  EXPECT_EQ(no_blocks.recompute, plan::Recompute::kNone);
  EXPECT_EQ(no_blocks.sequence, 0) << "rows have no tokens";
}

// Bytes of a parameter, its gradient, its fp32 master and its moments.
TEST(PlannedTraining, StatesHaveTheTypesOfTheJob) {
  const auto states = [](const Sets& sets) { return *planned(sets).states; };
  using plan::StateBytes;
  EXPECT_EQ(states({}), (StateBytes{4, 4, 0, 8}));
  EXPECT_EQ(states({"precision.type=bf16"}), (StateBytes{2, 4, 4, 8}));
  EXPECT_EQ(states({"precision.type=fp16"}), (StateBytes{2, 4, 4, 8}));
  EXPECT_EQ(states({"precision.type=bf16", "precision.master_weights=false"}),
            (StateBytes{2, 4, 0, 8}));
  EXPECT_EQ(states({"precision.master_weights=true"}), (StateBytes{4, 4, 0, 8}));
  EXPECT_EQ(states({"precision.gradients=bf16"}), (StateBytes{4, 2, 0, 8}));
  EXPECT_EQ(states({"precision.moments=bf16"}), (StateBytes{4, 4, 0, 4}));
  EXPECT_EQ(states({"optimizer.name=sgd"}), (StateBytes{4, 4, 0, 4}));
  EXPECT_EQ(states({"optimizer.name=sgd", "optimizer.momentum=0"}), (StateBytes{4, 4, 0, 0}));
  EXPECT_EQ(planned({"precision.type=fp16"}).precision, "fp16");
  EXPECT_EQ(planned({"precision.type=bf16"}).precision, "bf16");
  EXPECT_EQ(planned({"precision.type=bf16", "precision.gradients=bf16"}).precision, "mixed");
  EXPECT_EQ(planned({"precision.type=bf16", "precision.moments=bf16"}).precision, "bf16-moments");
}

// A plan that is accepted can be run, and a job that can be run is planned.
TEST(PlannedTraining, IsRefusedWhereTheJobIs) {
  const std::string p = "parallelism.";
  const auto degree = [&](const char* axis, int ranks) {
    return fmt::format("parallelism.{}_parallel_degree={}", axis, ranks);
  };
  const std::string heads = p + "context_parallel_method=heads";
  const Sets mixture{"model.name=moe-tiny", "model.balance_loss=0", "model.capacity_factor=0"};
  struct Case {
    Sets sets;
    int ranks;
    bool runs;
  };
  for (const Case& one : std::vector<Case>{
           {{degree("context", 3)}, 3, true},
           {{degree("context", 3), degree("tensor", 2)}, 6, true},
           {{degree("context", 64)}, 64, true},
           {{degree("context", 65)}, 65, false},
           {{degree("context", 2), heads}, 2, true},
           {{degree("context", 3), heads}, 3, false},
           {{degree("context", 4), degree("tensor", 2), heads}, 8, false},
           {{degree("tensor", 3)}, 3, false},
           // Four blocks, embedding and head.
           {{degree("pipeline", 6)}, 6, true},
           {{degree("pipeline", 7)}, 7, false},
           {{degree("pipeline", 3), p + "pipeline_parallel_schedule=zb-v"}, 3, true},
           {{degree("pipeline", 4), p + "pipeline_parallel_schedule=zb-v"}, 4, false},
           {mixture + Sets{degree("expert", 2)}, 4, true},
           {mixture + Sets{degree("expert", 3)}, 3, false},
           {mixture + Sets{degree("expert", 4), p + "zero_stage=2",
                           p + "data_parallel_replicate_degree=2"},
            4, false},
           {mixture + Sets{degree("expert", 2), p + "zero_stage=2",
                           p + "data_parallel_replicate_degree=2"},
            4, true},
           {mixture + Sets{degree("context", 2)}, 2, true},
           {mixture + Sets{degree("context", 2), "model.capacity_factor=2"}, 2, true},
           {mixture + Sets{degree("context", 2), "model.balance_loss=0.1"}, 2, true}}) {
    const std::string job_says = error_text([&] { validate(saved_job(one.sets), one.ranks); });
    const std::string plan_says = error_text([&] {
      const Job job = saved_job(one.sets);
      const model::ModelSpec spec = model_spec(job, {.vocab = 256});
      plan::validate(spec, planned_training(job, spec, one.ranks), plan::Runtime::kShoal);
    });
    EXPECT_EQ(job_says.empty(), one.runs)
        << fmt::format("{} {}", fmt::join(one.sets, " "), job_says);
    EXPECT_EQ(plan_says.empty(), one.runs)
        << fmt::format("{} {}", fmt::join(one.sets, " "), plan_says);
  }
}

// A checkpoint is written behind training where one comes before the last step.
TEST(PlannedTraining, CopiesForACheckpointAreThoseBeforeTheEnd) {
  const auto staging = [](const Sets& sets) { return planned(sets).staging_bytes; };
  EXPECT_EQ(staging({}), 0) << "the only one is that of the last step";
  EXPECT_EQ(staging({"checkpoint.interval=9"}), 512e6);
  EXPECT_EQ(staging({"checkpoint.interval=9", "checkpoint.staging_mb=3"}), 3e6);
  EXPECT_EQ(staging({"checkpoint.interval=1"}), 512e6);
  EXPECT_EQ(staging({"checkpoint.interval=0"}), 0);
  EXPECT_EQ(staging({"checkpoint.interval=9", "checkpoint.asynchronous=false"}), 0);
  EXPECT_EQ(staging({"training.epochs=1"}), 512e6) << "how long that is nobody knows yet";
}

TEST(PlannedTraining, WhatIsCounted) {
  const auto counted = [](const Sets& sets) { return is_counted(saved_job(sets).config); };
  EXPECT_TRUE(counted({}));
  EXPECT_TRUE(counted({"parallelism.zero_stage=3"}));
  EXPECT_FALSE(counted({"precision.type=auto"}));
  EXPECT_FALSE(counted({"precision.parameters=[\"*=bf16\"]"}));
  EXPECT_FALSE(counted({"parallelism.zero_stage=3", "precision.gathers=bf16"}));
  EXPECT_FALSE(counted({"parallelism.zero_stage=1", "parallelism.shard_units=size"}));
  EXPECT_TRUE(counted({"parallelism.shard_units=size"})) << "nothing is sharded";
  EXPECT_TRUE(counted({"parallelism.pipeline_parallel_schedule_csv=a.csv"}));
  EXPECT_TRUE(counted({"parallelism.layouts=[\"*.mlp.*: weight replicate\"]"}));
}

const Sets kTwo{"parallelism.tensor_parallel_degree=2"};

Sets layouts(const std::vector<std::string>& rules) {
  return kTwo + Sets{fmt::format("parallelism.layouts=[\"{}\"]", fmt::join(rules, "\", \""))};
}

/// All figures of memory and traffic.
std::vector<double> figures(const Training& training, const model::ModelSpec& spec) {
  const plan::Cluster host = planned_hosts(4, 4, 1e9);
  std::vector<double> list;
  for (const plan::RankMemory& rank : forecast::ShoalEstimator().memory(spec, training, host)) {
    for (const plan::MemoryPhase& phase : rank.phases) {
      const plan::MemoryUse& use = phase.use;
      list.insert(list.end(), {use.parameters, use.gradients, use.optimizer, use.activations,
                               use.gathered, use.communication, use.workspace, use.staging});
    }
  }
  for (const plan::Traffic& one : plan::traffic(spec, training, host)) list.push_back(one.bytes);
  return list;
}

// Written out, the default recipe is not told from the default; and what is planned for any recipe
// is for this one what the closed forms say.
TEST(PlannedLayouts, TheDefaultRecipeIsPlannedAsTheDefault) {
  const auto written = [](bool gated) {
    std::vector<std::string> rules = parallel::kDefaultRules;
    if (gated) rules.insert(rules.begin(), "*.mlp.gate: weight shard(0)");
    return layouts(rules);
  };
  for (const Sets& more :
       {Sets{}, Sets{"activation_checkpoint.mode=full"},
        Sets{"activation_checkpoint.mode=selective"}, Sets{"activation_checkpoint.mode=every_k"},
        Sets{"parallelism.zero_stage=3"},
        Sets{"precision.type=bf16", "parallelism.zero_stage=2", "training.micro_batch=1"},
        Sets{"parallelism.pipeline_parallel_degree=2", "training.micro_batch=3"},
        Sets{"model.name=qwen3-tiny", "model.kv_heads=2", "model.dropout=0.1"}}) {
    const Job job = saved_job(kTwo + more);
    const model::ModelSpec spec = model_spec(job, {.vocab = 256});
    const Training plain = planned_training(job, spec, 4);
    EXPECT_EQ(planned(written(spec.gated) + more), plain) << fmt::format("{}", more);
    Training by_recipe = plain;
    by_recipe.division =
        std::make_shared<const model::TensorDivision>(parallel::division_of({}, spec, 2));
    EXPECT_EQ(figures(by_recipe, spec), figures(plain, spec)) << fmt::format("{}", more);
  }
}

// Of a block whose feed-forward layer every rank has, the matrices count whole on both ranks of tp,
// and as what four ranks hold alike; the rest as by default.
TEST(PlannedLayouts, StatesAreThoseOfTheRecipe) {
  const Sets replicated = layouts({"blocks.1.mlp.*: weight replicate"});
  const Job job = saved_job(replicated);
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  double cut = 0;
  double whole = 0;
  for (const model::ParameterSpec& parameter : model::parameters(spec)) {
    const std::string& name = parameter.name;
    const bool vector = name.find("norm") != std::string::npos ||
                        name == "embedding.positions.weight" || name.ends_with("out.bias") ||
                        name.ends_with("down.bias");
    const bool replicate = vector || name.starts_with("blocks.1.mlp");
    (replicate ? whole : cut) += static_cast<double>(parameter.count());
  }
  const auto held = plan::held_by_rank(spec, planned_training(job, spec, 4)).front();
  EXPECT_EQ(held.split, cut / 2);
  EXPECT_EQ(held.replicated, whole);
  EXPECT_EQ(held.expert, 0);
  const auto update = [&](const Sets& more) {
    const Training training = planned(replicated + more);
    return forecast::ShoalEstimator()
        .memory(spec, training, planned_hosts(4, 1, 1e9))
        .front()
        .phases.back()
        .use;
  };
  EXPECT_EQ(update({}).parameters, 4 * (cut / 2 + whole));
  EXPECT_EQ(update({}).optimizer, 8 * (cut / 2 + whole));
  EXPECT_EQ(update({"parallelism.zero_stage=3"}).optimizer, 8 * (cut / 4 + whole / 4));
}

TEST(PlannedLayouts, BudgetsCountWhatTheRecipeKeeps) {
  // Ranks that gather nothing keep less: with the same budget fewer blocks are computed again.
  const auto recomputed = [](const Sets& sets) {
    const auto kept = planned(sets + Sets{"activation_checkpoint.mode=budget",
                                          "activation_checkpoint.budget_mb=13.5"})
                          .kept;
    return std::count_if(kept.begin(), kept.end(),
                         [](model::Keep keep) { return keep != model::Keep::kEverything; });
  };
  EXPECT_LT(recomputed(layouts({"*.mlp.*: weight replicate", "*.attention.*: weight replicate"})),
            recomputed(kTwo));
}

TEST(PlannedLayouts, AJobThatCannotFitIsRefused) {
  const Job job = saved_job(layouts({"*.mlp.*: weight replicate"}));
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  EXPECT_THAT(error_text([&] { check_fits_here(job, spec, 2, 1e6); }),
              AllOf(HasSubstr("a rank would need"), HasSubstr("may take 1 MB")));
  EXPECT_NO_THROW(check_fits_here(job, spec, 2, 1e9));
}

TEST(PlannedHosts, AreThoseThatShareMemory) {
  const plan::Cluster one = planned_hosts(6, 6, 5e9);
  EXPECT_EQ(one.name, "this host");
  EXPECT_EQ(one.hosts, 1);
  EXPECT_EQ(one.devices_per_host, 6);
  EXPECT_EQ(one.device.memory_bytes, 5e9);
  EXPECT_EQ(one.runtime, plan::Runtime::kShoal);
  const plan::Cluster three = planned_hosts(6, 2, 5e9);
  EXPECT_EQ(three.name, "these hosts");
  EXPECT_EQ(three.hosts, 3);
  EXPECT_EQ(three.devices_per_host, 2);
}

TEST(MemoryUse, IsToldLargestFirstWithoutCrumbs) {
  plan::MemoryUse use;
  use.parameters = 20.8e6;
  use.gradients = 19.5e6;
  use.optimizer = 40e6;
  use.activations = 12.5e6;
  use.gathered = 3e6;
  use.communication = 1.2e6;
  use.workspace = 2e6;
  use.staging = 1e6;
  EXPECT_EQ(describe(use),
            "optimizer 40 MB, parameters 20.8 MB, gradients 19.5 MB, activations 12.5 MB, gathered "
            "3 MB, temporary 2 MB, buffers 1.2 MB")
      << "a hundredth itself is left out";
}

/// Of a rank of the job, as the check before a run has it.
double needed(const Sets& sets, int ranks, int sharers) {
  const Job job = saved_job(sets);
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  const std::string text = error_text([&] {
    check_fits(spec, planned_training(job, spec, ranks), planned_hosts(ranks, sharers, 1));
  });
  const std::string begin = "a rank would need ";
  return std::stod(text.substr(text.find(begin) + begin.size())) * 1e6;
}

TEST(CheckFits, RefusesWhatIsTooLargeAndNamesWhatWouldFit) {
  const Job job = saved_job({});
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  const Training training = planned_training(job, spec, 4);
  const double bytes = needed({}, 4, 4);
  EXPECT_GT(bytes, 16.0 * static_cast<double>(model::parameter_count(spec)));
  EXPECT_NO_THROW(check_fits(spec, training, planned_hosts(4, 4, 1.001 * bytes)));
  const auto refused = [&](double part) {
    return error_text([&] { check_fits(spec, training, planned_hosts(4, 4, part * bytes)); });
  };
  EXPECT_THAT(refused(0.8), HasSubstr(fmt::format("may take {:.4g} MB: ", 0.8 * bytes / 1e6)));
  const std::string most = refused(0.9);
  for (const char* remedy : {"training.micro_batch = 3 (", "mode = \"selective\"",
                             "mode = \"full\"", "parallelism.zero_stage = 1 (",
                             "precision.moments = \"bf16\" (", "optimizer.state_folder ("})
    EXPECT_THAT(most, HasSubstr(remedy));
  EXPECT_THAT(most, Not(HasSubstr("zero_stage = 2"))) << "the first that fits";
  EXPECT_THAT(most, Not(HasSubstr("training.micro_batch = 1"))) << "the first that fits";
  EXPECT_THAT(refused(0.01), HasSubstr("no single change makes it fit"));
  EXPECT_EQ(memory_remedies(spec, training, planned_hosts(4, 4, 1)),
            most.substr(most.find("would fit: ") + 11, most.size() - most.find("would fit: ") - 11))
      << "below nine tenths of what is planned";
}

// Each remedy has what the changed job itself would need.
TEST(CheckFits, RemediesHaveTheFiguresOfTheChangedJob) {
  const Job job = saved_job({});
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  const std::string text =
      memory_remedies(spec, planned_training(job, spec, 4), planned_hosts(4, 4, 0));
  const auto figure = [&](const std::string& remedy) {
    const auto at = text.find(remedy + " (");
    EXPECT_NE(at, std::string::npos) << remedy << " of " << text;
    return at == std::string::npos ? 0 : std::stod(text.substr(at + remedy.size() + 2)) * 1e6;
  };
  // Four digits are printed.
  for (const auto& [remedy, set] :
       {std::pair<std::string, std::string>{"training.micro_batch = 3", "training.micro_batch=3"},
        {"activation_checkpoint.mode = \"selective\"", "activation_checkpoint.mode=selective"},
        {"activation_checkpoint.mode = \"full\"", "activation_checkpoint.mode=full"},
        {"precision.moments = \"bf16\"", "precision.moments=bf16"},
        {"optimizer.state_folder", "optimizer.state_folder=x"},
        {"parallelism.zero_stage = 1", "parallelism.zero_stage=1"}})
    EXPECT_NEAR(figure(remedy) / needed({set}, 4, 4), 1, 1e-3) << remedy;
  // What is there already is no remedy.
  const Sets done{"training.micro_batch=1", "activation_checkpoint.mode=full",
                  "parallelism.zero_stage=3", "precision.moments=bf16", "optimizer.state_folder=x"};
  const Job small = saved_job(done);
  EXPECT_EQ(memory_remedies(spec, planned_training(small, spec, 4), planned_hosts(4, 4, 0)), "");
}

// Tokens that crowd are refused by nobody: the user is told both figures.
// The copies of sharded states are the members: without a number of them, sharding is refused. Two
// context ranks would share what a member of theirs holds.
TEST(CheckFits, MembersOfOneDataRankShardNothing) {
  const Job job = saved_job({"low_communication.method=diloco", "low_communication.every=2",
                             "parallelism.context_parallel_degree=2"});
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  const std::string remedies =
      memory_remedies(spec, planned_training(job, spec, 4), planned_hosts(4, 4, 0));
  EXPECT_THAT(remedies, HasSubstr("training.micro_batch = 6"));
  EXPECT_THAT(remedies, Not(HasSubstr("zero_stage")));
}

TEST(CheckFits, WarnsWhereOnlyTokensThatCrowdDoNotFit) {
  const auto crowding = [](const Sets& sets) {
    const Job job = saved_job(Sets{"model.name=moe-tiny"} + sets);
    const model::ModelSpec spec = model_spec(job, {.vocab = 256});
    return crowding_bytes(spec, planned_training(job, spec, 4), planned_hosts(4, 4, 0), 1e6);
  };
  const std::string ep = "parallelism.expert_parallel_degree=";
  // Beyond a plan of 1e6 bytes, the most that a rank takes.
  const double evenly = needed({"model.name=moe-tiny", ep + "4"}, 4, 4);
  EXPECT_GT(crowding({ep + "4"}) + 1e6, 1.02 * evenly);
  // With the capacity of evenly spread tokens, those are the most that an expert takes.
  EXPECT_EQ(crowding({ep + "4", "model.capacity_factor=1"}), 0);
  EXPECT_LT(crowding({ep + "4", "model.capacity_factor=1.5"}), crowding({ep + "4"}));
  EXPECT_EQ(crowding({}), 0) << "every rank has all experts";
  EXPECT_EQ(crowding({ep + "2", "model.experts_per_token=4"}), 0) << "every token visits them all";
  EXPECT_EQ(warn_of_crowding(10e6, 5e6, 15e6), std::nullopt);
  EXPECT_EQ(warn_of_crowding(10e6, 5e6, 9e6), std::nullopt) << "it is refused";
  EXPECT_EQ(warn_of_crowding(10e6, 5e6, 0), std::nullopt) << "nobody knows the limit";
  EXPECT_EQ(warn_of_crowding(10e6, 0, 10e6), std::nullopt);
  EXPECT_THAT(warn_of_crowding(10e6, 5e6, 14.9e6).value_or(""),
              AllOf(HasSubstr("(10 MB a rank)"), HasSubstr("(15 MB)"),
                    HasSubstr("may take 14.9 MB"), HasSubstr("model.capacity_factor")));
}

TEST(CheckFits, RanksThatShareNoMemoryNeedMore) {
  const Sets sharded{"parallelism.zero_stage=3"};
  const double together = needed(sharded, 4, 4);
  const double apart = needed(sharded, 4, 1);
  ASSERT_GT(apart, 1.05 * together);
  const auto fits = [&](const Sets& more, double bytes) {
    Sets sets = sharded;
    sets.insert(sets.end(), more.begin(), more.end());
    const Job job = saved_job(sets);
    const model::ModelSpec spec = model_spec(job, {.vocab = 256});
    return error_text([&] { check_fits_here(job, spec, 4, bytes); }).empty();
  };
  const double between = (together + apart) / 2;
  EXPECT_TRUE(fits({}, between));
  EXPECT_TRUE(fits({"parallelism.in_process=true", "parallelism.arena=false"}, between));
  EXPECT_FALSE(fits({"parallelism.arena=false"}, between));
  EXPECT_FALSE(fits({"parallelism.transport=tcp"}, between));
  EXPECT_FALSE(fits({"parallelism.transport=mpi"}, between));
  EXPECT_TRUE(fits({"parallelism.transport=tcp"}, 1.01 * apart));
  EXPECT_FALSE(fits({"parallelism.transport=tcp"}, 0.99 * apart));
  EXPECT_FALSE(fits({}, 1));
  EXPECT_TRUE(fits({}, 0)) << "nothing is known of the host";
  EXPECT_TRUE(fits({"precision.type=auto"}, 1)) << "it cannot be counted yet";
}

// A share of nine sequences divides in threes: halves of it are no micro-batches.
TEST(CheckFits, MicroBatchesThatAreProposedDivideTheShare) {
  const Job job = saved_job({"training.global_batch_sequences=36"});
  const model::ModelSpec spec = model_spec(job, {.vocab = 256});
  const Training training = planned_training(job, spec, 4);
  EXPECT_THAT(memory_remedies(spec, training, planned_hosts(4, 4, 0)),
              HasSubstr("training.micro_batch = 1 ("));
  const plan::Cluster host = planned_hosts(4, 4, 0);
  plan::Cluster exact = host;
  exact.device.memory_bytes =
      plan::worst(forecast::ShoalEstimator().memory(spec, training, host)).peak().use.all();
  EXPECT_NO_THROW(check_fits(spec, training, exact)) << "what is needed is there";
}

}  // namespace
}  // namespace shoal::train::planned_test
