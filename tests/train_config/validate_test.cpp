#include "shoal/train/config/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/train/config/precision.h"

namespace shoal::train {
namespace {

using ::testing::HasSubstr;

/// The default job of these tests with keys changed as on the command line.
Job job_with(const std::vector<std::string>& sets) {
  return parse_job(
      "[model]\nname = \"gpt2-tiny\"\n[data]\nfolders = "
      "[\"a\"]\n[training]\nglobal_batch_sequences = 24\nsteps = 10\nsequence_length = 64\n",
      "job.toml", sets);
}

Job table_with(std::vector<std::string> sets) {
  return parse_job(
      "[model]\nname = \"mlp-digits\"\n[data]\nsource = "
      "\"digits\"\n[training]\nglobal_batch_sequences = 32\nepochs = 2\n",
      "job.toml", sets);
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST(BatchPlan, MicroBatchAndAccumulationFollowFromTheGlobalBatch) {
  EXPECT_EQ(batch_plan(job_with({}), 1), (BatchPlan{24, 24, 1}));
  EXPECT_EQ(batch_plan(job_with({"training.micro_batch=2"}), 1), (BatchPlan{24, 2, 12}));
  EXPECT_EQ(batch_plan(job_with({"training.micro_batch=2"}), 4), (BatchPlan{24, 2, 3}));
  EXPECT_EQ(batch_plan(job_with({"training.micro_batch=6"}), 4), (BatchPlan{24, 6, 1}));
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 24}) {
    for (const int micro : {1, 2, 3, 4, 6, 8, 12, 24}) {
      if (24 / ranks % micro != 0) continue;
      const BatchPlan plan =
          batch_plan(job_with({"training.micro_batch=" + std::to_string(micro)}), ranks);
      EXPECT_EQ(plan.micro_batch * plan.accumulation * ranks, 24);
    }
  }
  EXPECT_THAT(refusal([] { batch_plan(job_with({"training.micro_batch=5"}), 1); }),
              HasSubstr("command line: training.micro_batch = 5: must divide"));
  EXPECT_THAT(
      refusal([] { batch_plan(job_with({}), 5); }),
      HasSubstr(
          "job.toml:6: training.global_batch_sequences = 24: 24 sequences do not divide among 5"));
}

TEST(Validate, KeysOfSavingBehindTrainingBelongToIt) {
  validate(job_with({"checkpoint.staging_mb=0", "checkpoint.writer_share=1"}), 1);
  validate(job_with({"checkpoint.asynchronous=false", "checkpoint.max_file_mb=100"}), 1);
  for (const char* key : {"checkpoint.staging_mb=1", "checkpoint.writer_share=0.5"}) {
    EXPECT_THAT(refusal([key] {
                  validate(job_with({"checkpoint.asynchronous=false", key}), 1);
                }),
                HasSubstr("belongs to checkpoint.asynchronous"));
  }
  EXPECT_THAT(refusal([] { job_with({"checkpoint.writer_share=0"}); }), HasSubstr("writer_share"));
}

TEST(Validate, Precision) {
  for (const char* type : {"fp32", "bf16", "fp16", "auto"})
    validate(job_with({std::string("precision.type=") + type}), 1);
  validate(job_with({"precision.type=bf16", "precision.master_weights=false",
                     "precision.moments=bf16", "precision.gradients=bf16"}),
           1);
  validate(job_with({"precision.parameters=[\"*.mlp.*=fp16\"]", "precision.loss_scale=1024"}), 1);
  const auto refused = [](std::vector<std::string> sets) {
    return refusal([&] { validate(job_with(sets), 1); });
  };
  EXPECT_THAT(refused({"precision.type=fp8"}),
              HasSubstr("one of \"fp32\", \"bf16\", \"fp16\", \"auto\""));
  EXPECT_THAT(refused({"precision.parameters=[\"head\"]"}),
              HasSubstr("\"head\" must be \"pattern=type\""));
  EXPECT_THAT(refused({"precision.parameters=[\"head.*=fp8\"]"}),
              HasSubstr("with a type of fp32, bf16 and fp16"));
  EXPECT_THAT(refused({"precision.parameters=[\"=bf16\"]"}), HasSubstr("must be \"pattern=type\""));
  EXPECT_THAT(refused({"precision.type=bf16", "precision.loss_scale=8"}),
              HasSubstr("precision.loss_scale = 8.0: scales the loss of fp16 weights"));
  EXPECT_THAT(refused({"precision.master_weights=false"}), HasSubstr("all are fp32"));
  EXPECT_THAT(refused({"precision.type=fp16", "precision.master_weights=false"}),
              HasSubstr("fp16 weights need fp32 ones behind them"));
  EXPECT_THAT(refused({"optimizer.name=sgd", "precision.type=bf16"}),
              HasSubstr("optimizer.name is \"sgd\""));
  EXPECT_THAT(refused({"optimizer.name=sgd", "precision.parameters=[\"*=bf16\"]"}),
              HasSubstr("precision.parameters"));
  EXPECT_THAT(refused({"optimizer.name=sgd", "precision.gradients=bf16"}),
              HasSubstr("precision.gradients"));
  EXPECT_THAT(refused({"optimizer.name=sgd", "precision.moments=bf16"}),
              HasSubstr("belongs to adamw"));
}

TEST(Validate, ActivationCheckpointing) {
  validate(job_with({"activation_checkpoint.mode=full"}), 1);
  validate(job_with({"activation_checkpoint.mode=every_k", "activation_checkpoint.every_k=4"}), 1);
  validate(table_with({"activation_checkpoint.mode=selective"}), 1);
  EXPECT_THAT(refusal([] { job_with({"activation_checkpoint.mode=every"}); }),
              HasSubstr("every_k"));
  EXPECT_THAT(refusal([] { validate(job_with({"activation_checkpoint.every_k=2"}), 1); }),
              HasSubstr("has no meaning"));
  EXPECT_THAT(
      refusal([] {
        validate(job_with({"activation_checkpoint.mode=full", "activation_checkpoint.budget_mb=2"}),
                 1);
      }),
      HasSubstr("has no meaning"));
  EXPECT_THAT(refusal([] { validate(job_with({"activation_checkpoint.mode=budget"}), 1); }),
              HasSubstr("say how much"));
  EXPECT_THAT(
      refusal([] {
        validate(
            job_with({"activation_checkpoint.mode=every_k", "activation_checkpoint.every_k=5"}), 1);
      }),
      HasSubstr(
          "activation_checkpoint.every_k = 5: no block would be recomputed: the model has 4"));
}

TEST(TotalSteps, OfStepsTokensAndEpochs) {
  EXPECT_EQ(total_steps(job_with({}), 0), 10);
  const auto of = [](const std::string& length, std::int64_t samples) {
    Job job = job_with({length});
    job.config.training.steps.reset();
    return total_steps(job, samples);
  };
  EXPECT_EQ(of("training.tokens=1536", 0), 1);
  EXPECT_EQ(of("training.tokens=1537", 0), 2) << "rounded up to whole steps of 24 x 64 tokens";
  EXPECT_EQ(of("training.epochs=1", 240), 10);
  EXPECT_EQ(of("training.epochs=1", 263), 10) << "a last part of a batch is not trained on";
  EXPECT_EQ(of("training.epochs=0.5", 240), 5);
  EXPECT_EQ(of("training.epochs=0.1", 240), 1)
      << "0.1 x 240 / 24 is one step although 0.1 is no binary fraction";
  EXPECT_THAT(refusal([&] { of("training.epochs=1", 23); }),
              HasSubstr("23 samples, and one global batch takes 24"));
}

TEST(TotalSteps, TheScheduleFitsIntoTheRunWhateverItsLengthIsGivenIn) {
  // 240 samples are 10 steps, and so are 15360 tokens.
  for (const char* length : {"training.steps=10", "training.tokens=15360", "training.epochs=1"}) {
    const auto of = [&](std::vector<std::string> more) {
      more.insert(more.begin(), length);
      return total_steps(job_with(more), 240);
    };
    EXPECT_EQ(of({"lr_scheduler.warmup_steps=10"}), 10);
    EXPECT_THAT(refusal([&] { of({"lr_scheduler.warmup_steps=11"}); }),
                HasSubstr("lr_scheduler.warmup_steps = 11: longer than the run: training."));
    EXPECT_EQ(of({"lr_scheduler.name=wsd", "lr_scheduler.decay_fraction=1.0"}), 10);
    EXPECT_EQ(of({"lr_scheduler.name=wsd", "lr_scheduler.decay_fraction=0.9",
                  "lr_scheduler.warmup_steps=1"}),
              10);
    EXPECT_THAT(refusal([&] {
                  of({"lr_scheduler.name=wsd", "lr_scheduler.decay_fraction=1.0",
                      "lr_scheduler.warmup_steps=1"});
                }),
                HasSubstr("lr_scheduler.decay_fraction = 1.0: falls over 10 steps"));
  }
  EXPECT_THAT(refusal([] {
                validate(job_with({"training.tokens=1536", "lr_scheduler.warmup_steps=2"}), 1);
              }),
              HasSubstr("are 1 steps"));
}

TEST(Validate, KeysOfCommunicationThatWouldHaveNoEffectAreRefused) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(job_with(sets), 2); });
  };
  EXPECT_THAT(refused({"parallelism.in_process=true", "parallelism.transport=tcp"}),
              HasSubstr("parallelism.transport = \"tcp\": ranks of one process"));
  EXPECT_THAT(refused({"parallelism.in_process=true", "parallelism.transport=mpi"}),
              HasSubstr("ranks of one process"));
  EXPECT_THAT(refused({"parallelism.interface=lo", "parallelism.transport=mpi"}),
              HasSubstr("parallelism.transport is \"mpi\""));
  validate(job_with({"parallelism.bucket_mb=5", "parallelism.transport=mpi"}), 2);
  EXPECT_THAT(refused({"parallelism.interface=lo"}),
              HasSubstr("parallelism.interface = \"lo\": belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.interface=lo", "parallelism.transport=shared_memory"}),
              HasSubstr("belongs to TCP"));
  validate(job_with({"parallelism.interface=lo", "parallelism.transport=tcp"}), 2);
  validate(job_with({"parallelism.interface=lo"}), 2, false);
  EXPECT_THAT(refused({"parallelism.ports=7000-7100"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.ports=9-8", "parallelism.transport=tcp"}),
              HasSubstr("parallelism.ports"));
  EXPECT_THAT(refused({"parallelism.algorithms=all_reduce=square", "parallelism.transport=tcp"}),
              HasSubstr("'all_reduce=square'"));
  EXPECT_THAT(refused({"parallelism.algorithms=gather=ring", "parallelism.transport=tcp"}),
              HasSubstr("there is no ring gather"));
  validate(job_with({"parallelism.ports=7000-7100",
                     "parallelism.algorithms=all_reduce=ring,broadcast=direct",
                     "parallelism.transport=tcp"}),
           2);
  EXPECT_THAT(refused({"parallelism.link_costs=c.toml"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.link_costs=/nowhere/c.toml", "parallelism.transport=tcp"}),
              HasSubstr("/nowhere/c.toml: no such file"));
  validate(job_with({"parallelism.in_rank_order=true"}), 2);
  EXPECT_THAT(refused({"parallelism.bucket_mb=5"}),
              HasSubstr("parallelism.bucket_mb = 5.0: gradients are reduced where they lie"));
  EXPECT_THAT(refused({"parallelism.bucket_mb=5", "parallelism.arena=false",
                       "parallelism.in_process=true"}),
              HasSubstr("where they lie"));
  EXPECT_THAT(
      refused({"parallelism.bucket_mb=5", "parallelism.arena=false", "parallelism.zero_stage=2"}),
      HasSubstr("zero_stage"));
  validate(job_with({"parallelism.bucket_mb=5", "parallelism.arena=false"}), 2);
  validate(job_with({"parallelism.bucket_mb=5", "parallelism.transport=tcp"}), 2);
  validate(job_with({"parallelism.bucket_mb=5"}), 2, false);
  EXPECT_THAT(refused({"debug.fault_step=3"}), HasSubstr("debug.fault is \"none\""));
  EXPECT_THAT(refused({"debug.fault_rank=1"}), HasSubstr("debug.fault is \"none\""));
  validate(job_with({"debug.fault=kill", "debug.fault_step=3", "debug.fault_rank=1"}), 2);
}

TEST(Validate, OverMpiKeysOfTcpAndTheOrderOfSumsAreRefused) {
  const auto refused = [](const std::string& set) {
    return refusal([&] { validate(job_with({set, "parallelism.transport=mpi"}), 2); });
  };
  for (const char* set :
       {"parallelism.interface=lo", "parallelism.ports=7000-7100",
        "parallelism.algorithms=all_reduce=ring", "parallelism.link_costs=costs.toml"}) {
    EXPECT_THAT(refused(set), HasSubstr("belongs to TCP, and parallelism.transport is \"mpi\""))
        << set;
  }
  EXPECT_THAT(refused("parallelism.in_rank_order=true"),
              HasSubstr("parallelism.in_rank_order = true: MPI chooses the order of its sums"));
  EXPECT_THAT(refused("precision.gathers=bf16"), HasSubstr("parallelism.zero_stage is 0"))
      << "the ranks of MPI share no memory: this has an effect as soon as something is gathered";
  validate(
      job_with({"parallelism.transport=mpi", "parallelism.zero_stage=3", "precision.gathers=bf16",
                "parallelism.gather_ahead=2", "parallelism.reshard_after_forward=false"}),
      2);
}

// What is allowed at most is allowed, and one more is not.
TEST(Validate, LimitsAreTheLastThatIsAllowed) {
  const auto refused = [](const std::vector<std::string>& sets, int ranks) {
    return refusal([&] { validate(job_with(sets), ranks); });
  };
  const auto fault = [](const char* step, const char* rank) {
    return std::vector<std::string>{"debug.fault=kill", std::string("debug.fault_step=") + step,
                                    std::string("debug.fault_rank=") + rank};
  };
  validate(job_with(fault("10", "1")), 2);
  EXPECT_THAT(refused(fault("11", "1"), 2), HasSubstr("would never come: training.steps = 10"));
  EXPECT_THAT(refused(fault("10", "2"), 2), HasSubstr("debug.fault_rank = 2: there are 2 ranks"));
  EXPECT_THAT(refused(fault("0", "0"), 2), HasSubstr("say in which step, counted from 1"));
  auto of_an_action = fault("3", "1");
  of_an_action.push_back("debug.fault_action=1F3");
  EXPECT_THAT(refused(of_an_action, 2),
              HasSubstr("debug.fault_action = \"1F3\": is of a pipeline's schedule"));
  of_an_action.push_back("parallelism.pipeline_parallel_degree=2");
  validate(job_with(of_an_action), 2);
  of_an_action.push_back("debug.fault=nan");
  EXPECT_THAT(refused(of_an_action, 2), HasSubstr("is for faults that end the rank"));
  EXPECT_THAT(refused({"training.global_batch_tokens=100", "training.sequence_length=64"}, 1),
              HasSubstr("must be a multiple of training.sequence_length = 64"));
  EXPECT_EQ(batch_plan(job_with({"training.global_batch_tokens=192"}), 1), (BatchPlan{3, 3, 1}));
  EXPECT_THAT(refusal([] { batch_plan(job_with({}), 0); }),
              HasSubstr("there must be at least one rank"));
  EXPECT_THAT(refused({"training.micro_batch=13"}, 2), HasSubstr("24 sequences / 2 ranks = 12"));
}

TEST(Validate, NamesOfJobsAreNamesOfFolders) {
  for (const char* name : {"a", "A-1_b.c", "7", "-x", "_"})
    EXPECT_NO_THROW(validate(job_with({std::string("job.name=\"") + name + "\""}), 1)) << name;
  for (const char* name : {"", ".", ".a", "a b", "a/b", "a:b"}) {
    EXPECT_THAT(refusal([&] { validate(job_with({std::string("job.name=\"") + name + "\""}), 1); }),
                HasSubstr("must be letters, digits"))
        << name;
  }
}

TEST(Validate, ShardsAndReplicasMakeTheRanks) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(job_with(sets), 4); });
  };
  const std::string stage = "parallelism.zero_stage=2";
  const std::string shards = "parallelism.data_parallel_shard_degree=";
  const std::string replicas = "parallelism.data_parallel_replicate_degree=";
  for (const auto& [s, r] :
       {std::pair{"-1", "1"}, {"-1", "2"}, {"-1", "4"}, {"2", "2"}, {"1", "4"}})
    EXPECT_NO_THROW(validate(job_with({stage, shards + s, replicas + r}), 4)) << s << " x " << r;
  EXPECT_THAT(refused({stage, shards + "2"}),
              HasSubstr("data_parallel_shard_degree = 2: shards x replicas must make the 4 ranks"));
  EXPECT_THAT(refused({stage, replicas + "3"}),
              HasSubstr("data_parallel_replicate_degree = 3: shards x replicas must make"));
  EXPECT_THAT(refused({stage, replicas + "8"}), HasSubstr("shards x replicas must make"));
  EXPECT_THAT(refused({stage, shards + "0"}), HasSubstr("is a number of ranks, or -1"));
  EXPECT_THAT(refused({"parallelism.zero_stage=1", "parallelism.reduce_every_micro_batch=true"}),
              HasSubstr("stage 1 keeps whole gradients"));
  validate(job_with({stage, "parallelism.reduce_every_micro_batch=true"}), 4);
  EXPECT_THAT(refused({stage, "parallelism.shard_units=names"}),
              HasSubstr("goes with parallelism.shard_units = \"names\""));
  EXPECT_THAT(refused({stage, "parallelism.shard_unit_names=[\"x\"]"}),
              HasSubstr("goes with parallelism.shard_units = \"names\""));
  validate(
      job_with({stage, "parallelism.shard_units=names", "parallelism.shard_unit_names=[\"x\"]"}),
      4);
}

TEST(Validate, TensorParallelDegreesDivideRanksAndModel) {
  const auto refused = [](const std::vector<std::string>& sets, int ranks = 4) {
    return refusal([&] { validate(job_with(sets), ranks); });
  };
  const std::string tp = "parallelism.tensor_parallel_degree=";
  validate(job_with({tp + "2"}), 4);
  validate(job_with({tp + "4"}), 4);
  EXPECT_THAT(refused({tp + "3"}),
              HasSubstr("parallelism.tensor_parallel_degree = 3: must divide the 4 ranks, as 2 or "
                        "4 does"));
  EXPECT_THAT(refused({tp + "8"}, 8), HasSubstr("must divide heads = 4"));
  EXPECT_THAT(refused({tp + "2", "model.ffn=33"}), HasSubstr("must divide ffn = 33"));
  EXPECT_THAT(
      refused({tp + "2", "parallelism.zero_stage=2", "parallelism.data_parallel_shard_degree=4"}),
      HasSubstr("shards x replicas must make the 2 ranks"));
}

TEST(Validate, ExpertParallelDegreesDivideExpertsAndRanks) {
  using Sets = std::vector<std::string>;
  const Sets mixture{"model.name=deepseek-moe-tiny"};
  const auto with = [&](const Sets& sets) {
    Sets all = mixture;
    all.insert(all.end(), sets.begin(), sets.end());
    return job_with(all);
  };
  const auto refused = [&](const Sets& sets, int ranks = 4) {
    return refusal([&] { validate(with(sets), ranks); });
  };
  const std::string ep = "parallelism.expert_parallel_degree=";
  validate(with({ep + "2"}), 4);
  validate(with({ep + "4", "parallelism.tensor_parallel_degree=2"}), 4);
  EXPECT_THAT(refused({ep + "3"}, 3), HasSubstr("must divide experts = 8, as 2 or 4 does"));
  EXPECT_THAT(refused({ep + "8"}),
              HasSubstr("must divide the 4 ranks of a pipeline stage, as 4 does"));
  EXPECT_THAT(refused({ep + "4", "parallelism.zero_stage=3",
                       "parallelism.data_parallel_replicate_degree=2"}),
              HasSubstr("must divide the 2 ranks of a copy"));
  EXPECT_THAT(refused({"activation_checkpoint.mode=budget", "activation_checkpoint.budget_mb=9"}),
              HasSubstr("a budget cannot be kept"));
  EXPECT_THAT(refusal([&] { validate(job_with({ep + "2"}), 4); }),
              HasSubstr("expert_parallel_degree = 2: the model has no experts"));
  EXPECT_THAT(refused({"model.experts_per_token=9"}),
              HasSubstr("model.experts_per_token = 9: must lie between 1 and experts = 8"));
  const model::ModelSpec changed = model_spec(
      with({"model.experts=6", "model.router_score=softmax", "model.normalize_gates=false",
            "model.gate_scale=3", "model.capacity_factor=1.5", "model.balance_loss=0.2",
            "model.router_bias_rate=0.5", "model.shared_ffn=10", "model.dense_layers=2",
            "model.dense_ffn=20", "model.experts_per_token=3"}),
      {.vocab = 256});
  model::ModelSpec expected = *model::named_model("deepseek-moe-tiny");
  expected.experts = 6, expected.experts_per_token = 3;
  expected.router_score = model::RouterScore::kSoftmax, expected.normalize_gates = false;
  expected.gate_scale = 3, expected.capacity_factor = 1.5, expected.balance_loss = 0.2;
  expected.router_bias_rate = 0.5, expected.shared_ffn = 10, expected.dense_layers = 2;
  expected.dense_ffn = 20;
  EXPECT_EQ(changed, expected);
}

TEST(Validate, ContextParallelDegreesDivideRanksAndFitTheSequence) {
  const auto refused = [](const std::vector<std::string>& sets, int ranks = 4) {
    return refusal([&] { validate(job_with(sets), ranks); });
  };
  const std::string cp = "parallelism.context_parallel_degree=";
  const std::string heads = "parallelism.context_parallel_way=heads";
  validate(job_with({cp + "4"}), 4);
  validate(job_with({cp + "2", heads, "parallelism.tensor_parallel_degree=2"}), 4);
  EXPECT_THAT(refused({cp + "3"}),
              HasSubstr("parallelism.context_parallel_degree = 3: must divide the 4 ranks / "
                        "tensor_parallel_degree = 4, as 2 or 4 does"));
  EXPECT_THAT(refused({cp + "2", "parallelism.pipeline_parallel_degree=4"}),
              HasSubstr("must divide the 4 ranks / (tensor_parallel_degree x "
                        "context_parallel_degree) = 2"));
  EXPECT_THAT(refused({cp + "8", heads}, 8), HasSubstr("= 8 must divide kv_heads = 4, as 4 does"));
  EXPECT_THAT(refused({heads}), HasSubstr("parallelism.context_parallel_degree is 1"));
  EXPECT_THAT(refused({cp + "512"}, 512), HasSubstr("must be at most the 64 tokens of a sequence"));
}

TEST(Validate, PipelineDegreesDivideRanksAndGoWithTheRest) {
  const auto refused = [](const std::vector<std::string>& sets, int ranks = 4) {
    return refusal([&] { validate(job_with(sets), ranks); });
  };
  const std::string pp = "parallelism.pipeline_parallel_degree=2";
  const std::string schedule = "parallelism.pipeline_parallel_schedule=";
  validate(job_with({pp}), 4);
  validate(job_with({pp, schedule + "zb-v", "parallelism.tensor_parallel_degree=2"}), 4);
  EXPECT_THAT(refused({"parallelism.pipeline_parallel_degree=3"}),
              HasSubstr("must divide the 4 ranks / tensor_parallel_degree = 4, as 2 or 4 does"));
  EXPECT_THAT(refused({pp, schedule + "zbh1"}), HasSubstr("must be one of gpipe, 1f1b"));
  EXPECT_THAT(refused({schedule + "gpipe"}), HasSubstr("pipeline_parallel_degree is 1"));
  EXPECT_THAT(refused({pp, schedule + "zb-v", "parallelism.pipeline_parallel_schedule_csv=a.csv"}),
              HasSubstr("and pipeline_parallel_schedule_csv: give one of them"));
  EXPECT_THAT(refused({"parallelism.pipeline_parallel_schedule_csv=a.csv"}),
              HasSubstr("pipeline_parallel_degree is 1"));
  EXPECT_THAT(refused({pp, "parallelism.pipeline_parallel_virtual_stages=2"}),
              HasSubstr("belongs to pipeline_parallel_schedule = \"interleaved\""));
  for (const char* stage : {"1", "2", "3"})
    validate(job_with({pp, std::string("parallelism.zero_stage=") + stage}), 4);
  const std::string gathered = "parallelism.pipeline_parallel_gathered_stages=1";
  validate(job_with({pp, "parallelism.zero_stage=3", gathered}), 4);
  EXPECT_THAT(refused({pp, "parallelism.zero_stage=2", gathered}),
              HasSubstr("belongs to zero_stage = 3"));
  EXPECT_THAT(refused({pp, "parallelism.zero_stage=3", "parallelism.gather_ahead=2",
                       "parallelism.arena=false"}),
              HasSubstr("in a pipeline whole stages are gathered"));
  EXPECT_THAT(refused({pp, "parallelism.zero_stage=3", "parallelism.arena=false",
                       "parallelism.reshard_after_forward=false"}),
              HasSubstr("in a pipeline whole stages are gathered"));
  EXPECT_THAT(refused({pp, "parallelism.zero_stage=2", "model.tied_embeddings=false",
                       "parallelism.reduce_every_micro_batch=true"}),
              HasSubstr("reduced once a step"));
}

TEST(Validate, DataAndOptimizerBelongTogether) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(job_with(sets), 1); });
  };
  EXPECT_THAT(refused({"optimizer.name=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"}),
              HasSubstr("optimizer.nesterov = true: needs optimizer.momentum above 0"));
  validate(job_with({"optimizer.name=sgd", "optimizer.nesterov=true"}), 1);
  validate(job_with({"optimizer.name=sgd", "optimizer.momentum=0"}), 1);
  EXPECT_THAT(refused({"data.folders=[\"a\", \"\"]"}), HasSubstr("a folder has no name"));
  EXPECT_THAT(refused({"data.folders=[\"a\", \"b\"]", "data.prepare=headers"}),
              HasSubstr("prepares one folder, and data.folders has 2"));
  validate(job_with({"data.folders=[\"a\", \"b\"]", "data.weights=[1, 2]"}), 1);
  EXPECT_THAT(refused({"data.folders=[\"a\", \"b\"]", "data.weights=[1]"}),
              HasSubstr("one weight for each of the 2 folders"));
  EXPECT_THAT(refusal([] { validate(table_with({"data.source=csv"}), 1); }),
              HasSubstr("data.file = \"\" (default): name the CSV table"));
  const JobConfig csv = table_with({"data.source=csv"}).config;
  EXPECT_TRUE(learns_classes(csv));
  EXPECT_FALSE(learns_classes(table_with({"data.source=csv", "data.task=regression"}).config));
  EXPECT_FALSE(learns_classes(table_with({"data.source=regression"}).config));
  EXPECT_TRUE(learns_classes(table_with({}).config));
  EXPECT_TRUE(learns_classes(job_with({}).config));
}

TEST(Validate, ActivationCheckpointingNeedsBlocks) {
  EXPECT_THAT(refusal([] {
                validate(table_with({"model.widths=[]", "activation_checkpoint.mode=full"}), 1);
              }),
              HasSubstr("the model has no blocks that could be recomputed"));
  validate(job_with({"activation_checkpoint.mode=budget", "activation_checkpoint.budget_mb=0.1"}),
           1);
}

// "auto" may become bf16 and never fp16.
TEST(Validate, WhatAutoMayBecome) {
  const auto sets = [](std::vector<std::string> more) {
    more.push_back("precision.type=auto");
    return job_with(more);
  };
  validate(sets({"precision.master_weights=false"}), 1);
  EXPECT_THAT(refusal([&] { validate(sets({"precision.loss_scale=8"}), 1); }),
              HasSubstr("scales the loss of fp16 weights"));
  EXPECT_THAT(refusal([&] { validate(sets({"precision.loss_scale_growth_interval=8"}), 1); }),
              HasSubstr("scales the loss of fp16 weights"));
  EXPECT_TRUE(may_use(sets({}), Precision::kFp32));
  EXPECT_TRUE(may_use(sets({}), Precision::kBf16));
  EXPECT_FALSE(may_use(sets({}), Precision::kFp16));
  EXPECT_TRUE(may_use(sets({"precision.parameters=[\"a=fp16\"]"}), Precision::kFp16));
  EXPECT_FALSE(may_use(job_with({}), Precision::kBf16));
  const auto rules = precision_rules(job_with({"precision.parameters=[\"a=b=bf16\", \"*=fp32\"]"}));
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].pattern, "a=b");
  EXPECT_EQ(rules[0].type, Precision::kBf16);
  EXPECT_EQ(rules[1].pattern, "*");
  EXPECT_EQ(rules[1].type, Precision::kFp32);
  EXPECT_THAT(refusal([] { precision_rules(job_with({"precision.parameters=[\"a=auto\"]"})); }),
              HasSubstr("must be \"pattern=type\""));
}

// A run writes every key into its config.toml, and can be repeated from it.
TEST(Validate, DefaultsAreAcceptedWhereTheyHaveNoEffect) {
  validate(job_with({"parallelism.gather_ahead=1"}), 2);
  validate(job_with({"parallelism.zero_stage=3", "parallelism.gather_ahead=1",
                     "parallelism.reshard_after_forward=true"}),
           2);
  validate(job_with({"parallelism.transport=mpi", "parallelism.in_rank_order=false"}), 2);
}

TEST(Validate, KeysOfGathersAreRefusedWhereNothingIsGathered) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(job_with(sets), 4); });
  };
  for (const std::string set :
       {"parallelism.gather_ahead=2", "parallelism.reshard_after_forward=false"}) {
    for (const std::string stage : {"0", "1", "2"}) {
      EXPECT_THAT(refused({set, "parallelism.zero_stage=" + stage, "parallelism.transport=tcp"}),
                  HasSubstr("belongs to parallelism.zero_stage = 3"))
          << set << ", stage " << stage;
    }
    const std::string stage = "parallelism.zero_stage=3";
    EXPECT_THAT(refused({set, stage}), HasSubstr("no parameters are gathered")) << set;
    EXPECT_THAT(refused({set, stage, "parallelism.in_process=true"}),
                HasSubstr("no parameters are gathered"))
        << set;
    EXPECT_THAT(refused({set, stage, "parallelism.transport=shared_memory"}),
                HasSubstr("no parameters are gathered"))
        << set;
    validate(job_with({set, stage, "parallelism.transport=tcp"}), 4);
    validate(job_with({set, stage, "parallelism.arena=false"}), 4);
    validate(job_with({set, stage, "parallelism.arena=false", "parallelism.in_process=true"}), 4);
    validate(job_with({set, stage}), 4, false);
  }
}

TEST(ModelOfAJob, NamedSizesChangeTogether) {
  model::ModelSpec spec = model_spec(job_with({}), {.vocab = 256});
  EXPECT_EQ(spec, *model::named_model("gpt2-tiny"));
  spec = model_spec(job_with({"model.hidden=256", "model.vocab=0"}), {.vocab = 257});
  EXPECT_EQ(spec.hidden, 256);
  EXPECT_EQ(spec.ffn, 1024) << "the ratio stays";
  EXPECT_EQ(spec.head_size, 64);
  EXPECT_EQ(spec.vocab, 320) << "257 rounded up to a multiple of 64";
  spec = model_spec(job_with({"model.heads=8"}), {.vocab = 256});
  EXPECT_EQ(spec.kv_heads, 8);
  EXPECT_EQ(spec.head_size, 16);
  spec = model_spec(job_with({"model.name=llama-tiny", "model.layers=2", "model.sequence=64"}),
                    {.vocab = 256});
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.sequence, 64);
  spec = model_spec(job_with({"model.name=qwen3-tiny", "model.hidden=256", "model.heads=8"}),
                    {.vocab = 256});
  EXPECT_EQ(spec.head_size, 48)
      << "heads that do not share the width out among them keep their size";
  EXPECT_TRUE(spec.qk_norm);
}

TEST(ModelOfAJob, NormsOfQueriesAndKeysAreAKey) {
  EXPECT_TRUE(model_spec(job_with({"model.name=llama-tiny", "model.qk_norm=true"}), {.vocab = 256})
                  .qk_norm);
  EXPECT_FALSE(
      model_spec(job_with({"model.name=qwen3-tiny", "model.qk_norm=false"}), {.vocab = 256})
          .qk_norm);
  EXPECT_THAT(refusal([] { model_spec(job_with({"model.qk_norm=true"}), {.vocab = 256}); }),
              HasSubstr("queries and keys have RMSNorm alone"));
  EXPECT_THAT(refusal([] { model_spec(table_with({"model.qk_norm=true"}), {}); }),
              HasSubstr("model.qk_norm"));
}

// Each key in the field of its name.
TEST(ModelOfAJob, EveryKeyChangesItsField) {
  const auto spec_with = [](std::vector<std::string> sets) {
    return model_spec(job_with(sets), {.vocab = 256});
  };
  EXPECT_EQ(spec_with({"model.layers=3"}).layers, 3);
  EXPECT_EQ(spec_with({"model.kv_heads=2"}).kv_heads, 2);
  EXPECT_EQ(spec_with({"model.head_size=24"}).head_size, 24);
  EXPECT_EQ(spec_with({"model.ffn=96"}).ffn, 96);
  EXPECT_EQ(spec_with({"model.hidden=256", "model.ffn=96"}).ffn, 96) << "it comes after the ratio";
  EXPECT_EQ(spec_with({"model.hidden=256", "model.head_size=24"}).head_size, 24);
  EXPECT_EQ(spec_with({"model.vocab=512"}).vocab, 512);
  EXPECT_EQ(spec_with({"model.sequence=128"}).sequence, 128);
  EXPECT_FALSE(spec_with({"model.tied_embeddings=false"}).tied_embeddings);
  EXPECT_FALSE(spec_with({"model.bias=false"}).bias);
  EXPECT_TRUE(spec_with({"model.bias=false", "model.qkv_bias=true"}).qkv_bias);
  EXPECT_TRUE(spec_with({"model.gated=true"}).gated);
  EXPECT_EQ(spec_with({"model.positions=rotary"}).positions, model::Positions::kRotary);
  EXPECT_EQ(spec_with({"model.name=llama-tiny", "model.positions=learned"}).positions,
            model::Positions::kLearned);
  EXPECT_EQ(spec_with({"model.positions=rotary", "model.rope_theta=500.0"}).rope_theta, 500);
  EXPECT_EQ(spec_with({"model.norm=rms"}).norm, model::Norm::kRms);
  EXPECT_EQ(spec_with({"model.name=llama-tiny", "model.norm=layer"}).norm, model::Norm::kLayer);
  EXPECT_EQ(spec_with({"model.norm_epsilon=0.25"}).norm_epsilon, 0.25);
  EXPECT_EQ(spec_with({"model.dropout=0.25"}).dropout, 0.25);
  EXPECT_EQ(spec_with({"model.init_std=0.25"}).init_std, 0.25);
  EXPECT_EQ(spec_with({"model.activation=relu"}).activation, model::Activation::kRelu);
  const model::ModelSpec mlp =
      model_spec(table_with({"model.inputs=3", "model.outputs=2", "model.widths=[5, 7]",
                             "model.activation=silu"}),
                 {});
  EXPECT_EQ(mlp.inputs, 3);
  EXPECT_EQ(mlp.outputs, 2);
  EXPECT_EQ(mlp.widths, (std::vector<std::int64_t>{5, 7}));
  EXPECT_EQ(mlp.activation, model::Activation::kSilu);
}

TEST(ModelOfAJob, KeysOfTheOtherFamilyAreRefused) {
  for (const char* set : {"layers=2", "hidden=64", "heads=2", "kv_heads=2", "head_size=8", "ffn=64",
                          "vocab=256", "sequence=64", "tied_embeddings=true", "qkv_bias=true",
                          "qk_norm=true", "gated=true", "positions=rotary", "rope_theta=9.0",
                          "norm=rms", "norm_epsilon=0.5", "dropout=0.5", "init_std=0.5"}) {
    EXPECT_THAT(refusal([&] { model_spec(table_with({std::string("model.") + set}), {}); }),
                HasSubstr("belongs to a transformer"))
        << set;
  }
  for (const char* set : {"inputs=2", "outputs=2", "widths=[2]"}) {
    EXPECT_THAT(refusal([&] { model_spec(job_with({std::string("model.") + set}), {}); }),
                HasSubstr("belongs to a multi-layer perceptron"))
        << set;
  }
  EXPECT_NO_THROW(model_spec(table_with({"model.bias=true"}), {.inputs = 64, .outputs = 10}));
}

TEST(ModelOfAJob, SizesHangTogether) {
  // Two key-value heads of four stay two; a width that its feed-forward layer has no ratio to is
  // not guessed.
  EXPECT_EQ(model_spec(job_with({"model.name=llama-tiny", "model.heads=8"}), {}).kv_heads, 2);
  EXPECT_EQ(model_spec(job_with({"model.name=llama-tiny", "model.hidden=256"}), {}).ffn, 704);
  EXPECT_THAT(refusal([] {
                model_spec(job_with({"model.name=llama-tiny", "model.hidden=98"}), {});
              }),
              HasSubstr("model.ffn (not set): llama-tiny has 352 for hidden = 128; say what it is "
                        "for hidden = 98"));
  EXPECT_EQ(model_spec(job_with({"model.name=llama-tiny", "model.hidden=98", "model.heads=1",
                                 "model.kv_heads=1", "model.ffn=200"}),
                       {})
                .ffn,
            200);
  // The longest sequence itself is not too long.
  EXPECT_EQ(model_spec(job_with({"training.sequence_length=256"}), {}).sequence, 256);
  EXPECT_THAT(refusal([] { model_spec(job_with({"training.sequence_length=257"}), {}); }),
              HasSubstr("longer than the model's longest sequence, 256"));
  const auto rows = [](std::int64_t entries) {
    return model_spec(job_with({"model.vocab=0"}), {.vocab = entries}).vocab;
  };
  EXPECT_EQ(rows(0), 64) << "nothing is known yet";
  EXPECT_EQ(rows(64), 64);
  EXPECT_EQ(rows(65), 128);
}

TEST(ModelOfAJob, IsCalledAfterItsSizeOrItsJob) {
  EXPECT_EQ(model_spec(job_with({}), {}).name, "gpt2-tiny");
  const Job shape = table_with({"model.name=", "model.family=mlp", "job.name=mine"});
  const model::ModelSpec spec = model_spec(shape, {.inputs = 4, .outputs = 3});
  EXPECT_EQ(spec.name, "mine");
  EXPECT_EQ(spec.activation, model::Activation::kRelu) << "of a perceptron by default";
  EXPECT_EQ(spec.inputs, 4);
  EXPECT_EQ(spec.outputs, 3);
}

TEST(ModelOfAJob, AShapeNeedsNoName) {
  const Job job =
      job_with({"model.name=", "model.family=transformer", "model.layers=2", "model.hidden=64",
                "model.heads=4", "model.vocab=0", "model.sequence=0", "model.positions=rotary",
                "model.norm=rms", "model.activation=silu", "model.gated=true", "model.bias=false"});
  const model::ModelSpec spec = model_spec(job, {.vocab = 1000});
  EXPECT_EQ(spec.vocab, 1024);
  EXPECT_EQ(spec.sequence, 64);
  EXPECT_EQ(spec.ffn, 256);
  EXPECT_EQ(spec.positions, model::Positions::kRotary);
  EXPECT_EQ(spec.norm, model::Norm::kRms);
  const Job mlp = table_with(
      {"model.name=", "model.family=mlp", "model.widths=[16, 8]", "model.activation=tanh"});
  const model::ModelSpec perceptron = model_spec(mlp, {.inputs = 64, .outputs = 10});
  EXPECT_EQ(perceptron.inputs, 64);
  EXPECT_EQ(perceptron.outputs, 10);
  EXPECT_EQ(perceptron.widths, (std::vector<std::int64_t>{16, 8}));
}

TEST(ModelOfAJob, ModelAndDataMustFit) {
  EXPECT_THAT(refusal([] { model_spec(job_with({"model.vocab=256"}), {.vocab = 257}); }),
              HasSubstr("command line: model.vocab = 256"));
  EXPECT_THAT(refusal([] { model_spec(job_with({}), {.vocab = 257}); }),
              HasSubstr("the tokenizer 257 entries"));
  EXPECT_THAT(refusal([] { model_spec(table_with({}), {.inputs = 65, .outputs = 10}); }),
              HasSubstr("the data has 65 features"));
  EXPECT_THAT(refusal([] { model_spec(table_with({"data.source=tokens"}), {}); }),
              HasSubstr("data.source"));
  EXPECT_THAT(refusal([] { model_spec(job_with({"data.source=digits"}), {}); }),
              HasSubstr("a transformer learns from tokens"));
}

TEST(Validate, GoodJobsPass) {
  validate(job_with({}), 1);
  validate(job_with({"training.micro_batch=3"}), 8);
  validate(table_with({}), 4);
  validate(table_with({"data.source=csv", "data.file=x.csv", "data.task=regression",
                       "model.outputs=0", "model.inputs=0"}),
           1);
  validate(table_with({"data.source=regression", "training.loss=mean_absolute_error",
                       "optimizer.name=sgd", "optimizer.nesterov=true"}),
           1);
}

TEST(BelongingToml, IsAJobFileOfTheSameValues) {
  const std::pair<Job, int> jobs[] = {
      {job_with({}), 1},
      {job_with({"parallelism.zero_stage=3", "training.micro_batch=3",
                 "activation_checkpoint.mode=every_k"}),
       2},
      {job_with({"parallelism.transport=tcp", "parallelism.interface=lo", "lr_scheduler.name=wsd",
                 "checkpoint.asynchronous=false"}),
       2},
      {job_with({"data.prepare=files", "data.prepare_from=[\"text\"]", "data.tokenizer=byte",
                 "debug.fault=kill", "debug.fault_step=2"}),
       1},
      {table_with({}), 4},
      {table_with({"data.source=csv", "data.file=x.csv", "data.task=regression", "model.outputs=0",
                   "model.inputs=0"}),
       1},
      {table_with({"data.source=regression", "optimizer.name=sgd", "optimizer.nesterov=true",
                   "lr_scheduler.name=constant"}),
       1},
      {table_with({"model.name=", "model.family=mlp", "model.widths=[16, 8]"}), 1}};
  for (const auto& [job, ranks] : jobs) {
    const std::string text = belonging_toml(job, ranks);
    const Job again = parse_job(text, "config.toml");
    EXPECT_NO_THROW(validate(again, ranks)) << text;
    EXPECT_EQ(to_toml(again.config), to_toml(job.config));
    EXPECT_EQ(text.find("\"\""), std::string::npos) << text;
    EXPECT_EQ(text.find("fault_step") != std::string::npos, job.config.debug.fault != Fault::kNone);
    EXPECT_EQ(text.find("folders") != std::string::npos,
              job.config.data.source == DataKind::kTokens);
  }
}

TEST(Validate, TheLossBelongsToTheData) {
  EXPECT_THAT(refusal([] { validate(table_with({"training.loss=mean_absolute_error"}), 1); }),
              HasSubstr("classes"));
  EXPECT_THAT(refusal([] {
                validate(table_with({"data.source=regression", "training.loss=cross_entropy"}), 1);
              }),
              HasSubstr("no classes"));
  EXPECT_THAT(refusal([] { validate(table_with({"data.target=x"}), 1); }),
              HasSubstr("belongs to a CSV table"));
  EXPECT_THAT(refusal([] { validate(table_with({"training.sequence_length=8"}), 1); }),
              HasSubstr("belongs to token data"));
}

}  // namespace
}  // namespace shoal::train
