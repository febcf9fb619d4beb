#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "shoal/schedule/gathers.h"
#include "shoal/schedule/schedule_file.h"
#include "shoal/train/config/pipeline.h"
#include "shoal/train/config/validate.h"
#include "tests/error_of.h"
#include "tests/train_config/jobs.h"

namespace shoal::train::validate_parallelism_test {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(refusal([] {
                validate(
                    job_with({"parallelism.interface=lo", "parallelism.transport=shared_memory"}),
                    2, false);
              }),
              HasSubstr("belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.ports=7000-7100"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.ports=9-8", "parallelism.transport=tcp"}),
              HasSubstr("parallelism.ports"));
  EXPECT_THAT(refused({"parallelism.advertise=1.2.3.4"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.advertise=1.2.3.4:9000", "parallelism.transport=tcp"}),
              HasSubstr("the system chooses the ports"));
  validate(job_with({"parallelism.advertise=1.2.3.4", "parallelism.transport=tcp"}), 2);
  validate(job_with({"parallelism.advertise=1.2.3.4:9000", "parallelism.ports=7000-7100",
                     "parallelism.transport=tcp"}),
           2);
  EXPECT_THAT(refused({"parallelism.rails=4"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refused({"parallelism.silence_s=4"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refusal([] { job_with({"parallelism.rails=65"}); }), HasSubstr("parallelism.rails"));
  EXPECT_THAT(refusal([] { job_with({"parallelism.silence_s=-1"}); }),
              HasSubstr("parallelism.silence_s"));
  validate(job_with({"parallelism.rails=64", "parallelism.transport=tcp"}), 2);
  EXPECT_THAT(refused({"parallelism.tls=on"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refusal([] { job_with({"parallelism.tls=maybe"}); }), HasSubstr("parallelism.tls"));
  validate(job_with({"parallelism.tls=off", "parallelism.transport=tcp"}), 2);
  EXPECT_THAT(refused({"parallelism.routes=measured"}), HasSubstr("belongs to TCP"));
  EXPECT_THAT(refusal([] { job_with({"parallelism.routes=short"}); }),
              HasSubstr("parallelism.routes"));
  validate(job_with({"parallelism.routes=measured", "parallelism.transport=tcp"}), 2);
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
       {"parallelism.interface=lo", "parallelism.ports=7000-7100", "parallelism.advertise=1.2.3.4",
        "parallelism.rails=2", "parallelism.silence_s=4", "parallelism.tls=on",
        "parallelism.routes=measured", "parallelism.algorithms=all_reduce=ring",
        "parallelism.link_costs=costs.toml"}) {
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
  EXPECT_THAT(refused({"parallelism.zero_stage=1", shards + "2"}), HasSubstr("shards x replicas"));
  EXPECT_THAT(
      refused({stage, shards + "1", replicas + "2"}),
      HasSubstr("data_parallel_shard_degree = 1: shards x replicas must make the 4 ranks: "));
  EXPECT_THAT(
      refused({stage, replicas + "3"}),
      HasSubstr("data_parallel_replicate_degree = 3: shards x replicas must make the 4 ranks: 2 "
                "or 4 replicas divide them"));
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
  validate(job_with({tp + "2", "activation_checkpoint.mode=budget",
                     "activation_checkpoint.budget_mb=1"}),
           2);
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
              HasSubstr("expert_parallel_degree = 2: blocks.0.mlp: ep = 2: the model has no "
                        "experts"));
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
  EXPECT_NE(
      model_spec(with({"model.router_bias=false", "model.router_bias_rate=0"}), {}).router_bias,
      model_spec(with({"model.router_bias=true"}), {}).router_bias);
}

TEST(Validate, ContextParallelDegreesDivideRanksAndFitTheSequence) {
  const auto refused = [](const std::vector<std::string>& sets, int ranks = 4) {
    return refusal([&] { validate(job_with(sets), ranks); });
  };
  const std::string cp = "parallelism.context_parallel_degree=";
  const std::string heads = "parallelism.context_parallel_method=heads";
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
  EXPECT_THAT(refused({pp, schedule + "zbh1"}), HasSubstr("must be one of in_turn, gpipe, 1f1b"));
  EXPECT_THAT(refused({schedule + "gpipe"}), HasSubstr("pipeline_parallel_degree is 1"));
  EXPECT_THAT(refused({pp, schedule + "zb-v", "parallelism.pipeline_parallel_schedule_csv=a.csv"}),
              HasSubstr("and pipeline_parallel_schedule_csv: give one of them"));
  // The schedule that nobody named gives way to the file.
  const std::string file = testing::TempDir() + "/shoal_validated_table.csv";
  std::ofstream(file) << schedule::to_csv(job_schedule(job_with({pp}), 2, 1));
  validate(job_with({pp, "parallelism.pipeline_parallel_schedule_csv=" + file}), 4);
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

TEST(Validate, KeysOfGathersAreRefusedWhereNothingIsGathered) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(job_with(sets), 4); });
  };
  EXPECT_THAT(refused({"precision.gathers=bf16", "parallelism.zero_stage=3"}),
              HasSubstr("no parameters are gathered"));
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

TEST(Validate, KeysOfAPipelineBelongToOne) {
  for (const char* set :
       {"virtual_stages=2", "stage_units=[3, 3]", "stages_by=count", "gathered_stages=1"}) {
    EXPECT_THAT(refusal([&] {
                  validate(job_with({std::string("parallelism.pipeline_parallel_") + set}), 2);
                }),
                HasSubstr("says how to run a pipeline"))
        << set;
  }
  const std::string pp = "parallelism.pipeline_parallel_degree=2";
  const auto units = [&](const std::string& list) {
    validate(job_with({pp, "parallelism.pipeline_parallel_stage_units=" + list}), 2);
  };
  units("[2, 4]");
  EXPECT_THAT(refusal([&] { units("[2, 3]"); }),
              HasSubstr("parallelism.pipeline_parallel_stage_units = [2, 3]: "))
      << "embedding, four blocks and head";
  EXPECT_THAT(refusal([&] {
                validate(job_with({pp, "parallelism.pipeline_parallel_stage_units=[2, 4]",
                                   "parallelism.pipeline_parallel_stages_by=count"}),
                         2);
              }),
              HasSubstr("pipeline_parallel_stage_units lists the units of each stage"));
  validate(job_with({pp, "parallelism.pipeline_parallel_schedule=interleaved",
                     "parallelism.pipeline_parallel_virtual_stages=2", "training.micro_batch=2"}),
           2);
  EXPECT_EQ(
      job_schedule(job_with({"parallelism.pipeline_parallel_schedule=dualpipe-v"}), 2, 8).stages(),
      4);
}

// Of stages of ZeRO-3 alone: gathers stand in the table, or in the file.
TEST(JobSchedule, GathersAreOfStageThreeAndOfFilesThatHaveNone) {
  const std::string folder = testing::TempDir();
  const auto file = [&](const std::string& text) {
    std::ofstream(folder + "/shoal_table.csv") << text;
    return "parallelism.pipeline_parallel_schedule_csv=" + folder + "/shoal_table.csv";
  };
  const std::string three = "parallelism.zero_stage=3";
  const auto table = [](const std::vector<std::string>& sets) {
    return job_schedule(job_with(sets), 2, 2);
  };
  EXPECT_FALSE(schedule::has_gathers(table({"parallelism.zero_stage=2"})));
  EXPECT_TRUE(schedule::has_gathers(table({three})));
  const std::string plain = schedule::to_csv(table({}));
  EXPECT_FALSE(schedule::has_gathers(table({file(plain)})));
  EXPECT_TRUE(schedule::has_gathers(table({file(plain), three})));
  const std::string whole = schedule::to_csv(table({three}));
  EXPECT_EQ(schedule::to_csv(table({file(whole), three})), whole);
  EXPECT_THAT(refusal([&] {
                table({file(whole), three, "parallelism.pipeline_parallel_gathered_stages=1"});
              }),
              HasSubstr("says when stages are gathered"));
  // A file is of so many ranks and micro-batches, and is there.
  EXPECT_THAT(refusal([&] { job_schedule(job_with({file(plain)}), 4, 2); }),
              HasSubstr("is of 2 ranks, and pipeline_parallel_degree is 4"));
  EXPECT_THAT(refusal([&] { job_schedule(job_with({file(plain)}), 2, 4); }),
              HasSubstr("is of 2 micro-batches, and a step of this job has 4 a rank"));
  const Job lost = job_with({"parallelism.pipeline_parallel_schedule_csv=/nowhere/table.csv"});
  const Error error = error_of([&] { job_schedule(lost, 2, 2); });
  EXPECT_EQ(error.kind(), ErrorKind::kInputMissing);
  EXPECT_THAT(error.what(), HasSubstr("schedule_csv: /nowhere/table.csv: No such file"));
}

TEST(Validate, ContextRanksDivideSequencesAndWholeHeads) {
  // What a mixture counts in whole sequences is no obstacle.
  validate(job_with({"model.name=deepseek-moe-tiny", "model.capacity_factor=0.5",
                     "model.balance_loss=0.5", "parallelism.context_parallel_degree=2"}),
           4);
  const std::string cp = "parallelism.context_parallel_degree=";
  const std::string heads = "parallelism.context_parallel_method=heads";
  validate(job_with({cp + "64"}), 64);
  validate(job_with({cp + "8"}), 8);
  EXPECT_THAT(refusal([&] {
                validate(job_with({cp + "2", heads, "parallelism.tensor_parallel_degree=4"}), 8);
              }),
              HasSubstr("= 8 must divide kv_heads = 4"));
  EXPECT_THAT(refusal([&] { validate(table_with({cp + "2"}), 2); }),
              HasSubstr("divides sequences, and so transformers only"));
}

}  // namespace
}  // namespace shoal::train::validate_parallelism_test
