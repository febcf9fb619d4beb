#include "shoal/train/config/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/train/config/precision.h"
#include "tests/train_config/jobs.h"

namespace shoal::train::validate_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
          "job.toml:6: training.global_batch_sequences = 24: 24 sequences do not divide among 5 "
          "ranks. Hint: 4 or 6 ranks would do, or training.global_batch_sequences = 20 or 25"));
  EXPECT_THAT(refusal([] { batch_plan(job_with({"parallelism.tensor_parallel_degree=4"}), 5); }),
              HasSubstr("Hint: 16 or 24 ranks would do"))
      << "four ranks share each part of the batch";
  EXPECT_THAT(refusal([] { batch_plan(job_with({"parallelism.ranks=48"}), 48); }),
              HasSubstr("among 48 ranks (command line). Hint: 24 ranks would do, or "
                        "training.global_batch_sequences = 48"));
  EXPECT_THAT(
      refusal([] { batch_plan(job_with({"training.global_batch_tokens=192"}), 2); }),
      HasSubstr("Hint: 1 or 3 ranks would do, or training.global_batch_tokens = 128 or 256"))
      << "three sequences of 64 tokens";
}

TEST(Validate, TracedStepsAreAFirstAndALast) {
  for (const char* right :
       {"metrics.trace_steps=[]", "metrics.trace_steps=[3, 3]", "metrics.trace_steps=[1,1000000]"})
    validate(job_with({right}), 1);
  for (const char* wrong :
       {"metrics.trace_steps=[3]", "metrics.trace_steps=[3, 2]", "metrics.trace_steps=[1, 2, 3]"}) {
    EXPECT_THAT(refusal([wrong] { validate(job_with({wrong}), 1); }),
                HasSubstr("is not a first and a last step"));
  }
}

TEST(Validate, ThePlaceForPrometheusIsAHostAndAPort) {
  for (const char* right : {"metrics.prometheus=127.0.0.1:9400", "metrics.prometheus=[::1]:0",
                            "metrics.prometheus=node3:65535"})
    validate(job_with({right}), 1);
  for (const char* wrong : {"metrics.prometheus=9400", "metrics.prometheus=node3:",
                            "metrics.prometheus=node3:65536", "metrics.prometheus=::1:9400"}) {
    EXPECT_THAT(refusal([wrong] { validate(job_with({wrong}), 1); }),
                HasSubstr("is no HOST:PORT, as in 127.0.0.1:9400"));
  }
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
              HasSubstr("precision.type = \"bf16\": optimizer.name is \"sgd\""));
  for (const std::string type : {"bf16", "fp16"}) {
    EXPECT_THAT(refused({"optimizer.name=sgd", "precision.parameters=[\"*=" + type + "\"]"}),
                HasSubstr("precision.parameters"));
  }
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
    EXPECT_THAT(refusal([&] { of({"lr_scheduler.warmup_steps=11"}); }),
                HasSubstr("Hint: a tenth of the run would be lr_scheduler.warmup_steps = 1; "));
    EXPECT_THAT(refusal([&] { of({"lr_scheduler.warmup_steps=11"}); }),
                HasSubstr(std::string(length).substr(0, std::string(length).find('=')) + " = "))
        << "the key that gave the length";
    EXPECT_EQ(of({"lr_scheduler.name=wsd", "lr_scheduler.decay_fraction=1.0"}), 10);
    EXPECT_EQ(of({"lr_scheduler.name=wsd", "lr_scheduler.decay_fraction=0.9",
                  "lr_scheduler.warmup_steps=1"}),
              10);
    EXPECT_THAT(refusal([&] {
                  of({"lr_scheduler.name=wsd", "lr_scheduler.decay_fraction=1.0",
                      "lr_scheduler.warmup_steps=1"});
                }),
                AllOf(HasSubstr("lr_scheduler.decay_fraction = 1.0: the rate falls over 10 steps"),
                      HasSubstr("Hint: in a trial run, --set lr_scheduler.warmup_steps=0")));
  }
  EXPECT_THAT(refusal([] {
                validate(job_with({"training.tokens=1536", "lr_scheduler.warmup_steps=2"}), 1);
              }),
              HasSubstr("are 1 steps"));
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
  validate(job_with(of_an_action), 2);
  of_an_action.push_back("debug.fault=nan");
  EXPECT_THAT(refused(of_an_action, 2), HasSubstr("is for faults that end the rank"));
  of_an_action.push_back("debug.fault=overflow");
  EXPECT_THAT(refused(of_an_action, 2), HasSubstr("is for faults that end the rank"));
  EXPECT_THAT(refused({"debug.fault=flip", "debug.fault_step=3"}, 1),
              HasSubstr("debug.fault = \"flip\": nobody would notice"));
  const auto flip_at = [](const char* place) {
    return std::vector<std::string>{"elastic.enabled=true", "training.micro_batch=2",
                                    "debug.fault=flip", "debug.fault_step=3",
                                    std::string("debug.fault_action=") + place};
  };
  for (const char* place : {"give", "take", "commit"}) validate(job_with(flip_at(place)), 1);
  EXPECT_THAT(refused(flip_at("update"), 1), HasSubstr("where a member gives it (\"give\")"));
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

// Each key in the field of its name.
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

TEST(Validate, ABatchAndALengthAreSaidOnce) {
  const auto job = [](const std::string& training) {
    return parse_job(
        "[model]\nname = \"gpt2-tiny\"\n[data]\nfolders = [\"a\"]\n[training]\n" + training,
        "job.toml");
  };
  const auto refused = [&](const std::string& training) {
    return refusal([&] { validate(job(training), 1); });
  };
  const std::string batch = "global_batch_sequences = 24\n";
  EXPECT_THAT(refused(batch + "global_batch_tokens = 6144\nsteps = 1\n"),
              HasSubstr("training.global_batch_tokens = 6144: global_batch_sequences is set too"));
  EXPECT_THAT(refused("steps = 1\n"), HasSubstr("how much data one step sees"));
  EXPECT_THAT(refusal([&] { batch_plan(job("steps = 1\n"), 1); }),
              HasSubstr("0 sequences do not divide among 1 ranks"));
  EXPECT_THAT(refused(batch), HasSubstr("set one of steps, tokens and epochs"));
  EXPECT_THAT(refused(batch + "steps = 1\ntokens = 6144\n"),
              HasSubstr("training.tokens = 6144: exactly one"));
  EXPECT_THAT(refused(batch + "steps = 1\nepochs = 2\n"),
              HasSubstr("training.epochs = 2.0: exactly one"));
  EXPECT_THAT(refused(batch + "tokens = 6144\nepochs = 2\n"),
              HasSubstr("training.epochs = 2.0: exactly one"));
}

TEST(Validate, FoldersAndWhatIsPreparedFromAreNamed) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(job_with(sets), 1); });
  };
  EXPECT_THAT(refused({"data.folders=[]"}), HasSubstr("data.folders = []: name at least one"));
  EXPECT_THAT(refused({"data.prepare=files"}), HasSubstr("goes with data.prepare = \"files\""));
  EXPECT_THAT(refused({"data.prepare=headers", "data.prepare_from=[\"x\"]"}),
              HasSubstr("goes with data.prepare = \"files\""));
  validate(table_with({"training.loss=cross_entropy"}), 1);
  validate(table_with({"model.widths=[]"}), 1);
}

}  // namespace
}  // namespace shoal::train::validate_test
