#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "shoal/base/error.h"
#include "tests/comm/gloo.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::equivalence_test {
namespace {

class Equivalence : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data");
  }
  std::vector<StepMetrics> train(const std::string& name, const std::vector<std::string>& sets,
                                 int ranks) {
    return train_on_threads(folder_.path() + "/" + name, job_, sets, ranks);
  }

  TemporaryFolder folder_;
  std::string job_;
};

/// float32 sums in another order: 1e-5 relative is the promise over 20 steps.
void expect_same_losses(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b,
                        const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].loss, b[i].loss, 1e-5 * b[i].loss) << what << ", step " << i + 1;
    EXPECT_NEAR(a[i].grad_norm, b[i].grad_norm, 1e-4 * b[i].grad_norm)
        << what << ", step " << i + 1;
    ASSERT_EQ(a[i].evaluation.has_value(), b[i].evaluation.has_value()) << what;
    if (a[i].evaluation) {
      EXPECT_NEAR(a[i].evaluation->loss, b[i].evaluation->loss, 1e-5 * b[i].evaluation->loss)
          << what << ", step " << i + 1;
      EXPECT_EQ(a[i].evaluation->labels, b[i].evaluation->labels);
    }
  }
}

TEST_F(Equivalence, RanksAndMicroBatchesTrainTheSame) {
  const auto reference = train("one", {}, 1);
  ASSERT_EQ(reference.size(), 20u);
  EXPECT_LT(reference.back().loss, reference.front().loss - 0.5)
      << "nothing was learnt: the comparison would show nothing";
  expect_same_losses(train("micro 1", {"training.micro_batch=1"}, 1), reference, "1 rank x 8 x 1");
  expect_same_losses(train("micro 2", {"training.micro_batch=2"}, 1), reference, "1 rank x 4 x 2");
  expect_same_losses(train("micro 4", {"training.micro_batch=4"}, 1), reference, "1 rank x 2 x 4");
  expect_same_losses(train("two", {}, 2), reference, "2 ranks x 1 x 4");
  expect_same_losses(train("two micro", {"training.micro_batch=2"}, 2), reference,
                     "2 ranks x 2 x 2");
  expect_same_losses(train("four", {}, 4), reference, "4 ranks x 1 x 2");
}

TEST_F(Equivalence, TheSameRunTwiceIsBitwiseEqual) {
  const auto first = train("first", {}, 2);
  const auto second = train("second", {}, 2);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].loss, second[i].loss);
}

// Whatever carries the sums: they may come in another order only.
TEST_F(Equivalence, AnEngineOverGlooTrainsTheSame) {
  const std::string key = "parallelism.";
  const std::vector<Sets> ways{
      {key + "zero_stage=0"},
      {key + "zero_stage=2"},
      {key + "tensor_parallel_degree=2"},
      {key + "pipeline_parallel_degree=2", "training.micro_batch=1"},
      {key + "pipeline_parallel_degree=2", "training.micro_batch=1",
       key + "pipeline_parallel_schedule=zb-v"},
      {key + "context_parallel_degree=2"},
      {key + "context_parallel_degree=2", key + "context_parallel_method=heads"}};
  for (const Sets& way : ways) {
    const auto over_gloo = [](const auto& body) {
      comm::run_over_gloo(2, std::chrono::seconds(60), body);
    };
    const Sets sets = way + Sets{"training.steps=10"};
    const std::string what = fmt::format("{}", fmt::join(way, " "));
    expect_same_losses(train_on(over_gloo, folder_.path() + "/gloo " + what, job_, sets),
                       train("ours " + what, sets, 2), what);
  }
}

TEST_F(Equivalence, ASeedOfItsOwnGivesAnotherRun) {
  EXPECT_NE(
      train("a", {"training.steps=2", "lr_scheduler.warmup_steps=1"}, 1)[0].loss,
      train("b", {"training.steps=2", "lr_scheduler.warmup_steps=1", "debug.seed=1"}, 1)[0].loss);
}

TEST_F(Equivalence, ResumedRunsAreBitwiseEqual) {
  for (const int ranks : {1, 2}) {
    const std::string name = std::to_string(ranks);
    const auto whole = train("whole " + name, {}, ranks);
    // Stopped after 9 steps by an error in step 10; checkpoints are at 5 and, after the resumption,
    // 10, 15, 20.
    EXPECT_THROW(
        train("torn " + name,
              {"checkpoint.asynchronous=false", "debug.fault=error", "debug.fault_step=10"}, ranks),
        Error);
    const auto resumed = train("torn " + name, {}, ranks);
    ASSERT_EQ(resumed.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(resumed[i].loss, whole[i].loss) << ranks << " ranks, step " << i + 1;
      EXPECT_EQ(resumed[i].grad_norm, whole[i].grad_norm);
      EXPECT_EQ(resumed[i].tokens, whole[i].tokens);
      EXPECT_EQ(resumed[i].evaluation ? resumed[i].evaluation->loss : 0,
                whole[i].evaluation ? whole[i].evaluation->loss : 0);
    }
  }
}

TEST_F(Equivalence, ResumingOnAnotherNumberOfRanksGoesOnWithTheSameSamples) {
  const auto whole = train("whole", {}, 1);
  EXPECT_THROW(
      train("moved", {"checkpoint.asynchronous=false", "debug.fault=error", "debug.fault_step=7"},
            2),
      Error);
  expect_same_losses(train("moved", {}, 4), whole, "2 ranks, then 4");
}

TEST_F(Equivalence, AStopSignalSavesAndTheRunGoesOnBitForBit) {
  const auto whole = train("whole", {}, 2);
  std::atomic<int> stop = 15;
  int code = 0;
  // Asked before the first step: nothing is trained, the start is saved.
  train_on_threads(folder_.path() + "/stopped", job_, {}, 2, &stop, &code);
  EXPECT_EQ(code, 128 + 15);
  EXPECT_TRUE(
      std::filesystem::exists(folder_.path() + "/stopped/checkpoints/step-0/manifest.json"));
  const auto resumed = train("stopped", {}, 2);
  ASSERT_EQ(resumed.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(resumed[i].loss, whole[i].loss);
}

TEST_F(Equivalence, ShardedRunsTrainTheSame) {
  const auto reference = train("one", {}, 1);
  for (const char* arena : {"parallelism.arena=true", "parallelism.arena=false"}) {
    const std::string name = arena;
    expect_same_losses(train("zero 2 " + name, {"parallelism.zero_stage=2", arena}, 2), reference,
                       "ZeRO-2, 2 ranks, " + name);
    expect_same_losses(
        train("fsdp " + name, {"parallelism.zero_stage=3", "training.micro_batch=1", arena}, 4),
        reference, "FSDP, 4 ranks, " + name);
    expect_same_losses(
        train("hybrid " + name,
              {"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2", arena},
              4),
        reference, "hybrid 2 x 2, " + name);
  }
}

TEST_F(Equivalence, TensorParallelRunsTrainTheSame) {
  const auto reference = train("one", {}, 1);
  const std::string tp = "parallelism.tensor_parallel_degree=2";
  expect_same_losses(train("tp", {tp}, 2), reference, "tp 2");
  // One sample a micro-batch: columns are cut.
  expect_same_losses(train("tp dp", {tp, "training.micro_batch=1"}, 4), reference, "tp 2 x dp 2");
  expect_same_losses(
      train("tp hybrid",
            {tp, "parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"}, 4),
      reference, "tp 2 x dp_replicate 2");
  expect_same_losses(train("tp zero 2", {tp, "parallelism.zero_stage=2"}, 4), reference,
                     "tp 2 x ZeRO-2");
}

// Ring and heads, beside all that divides or copies the model; evaluation too.
TEST_F(Equivalence, ContextParallelRunsTrainTheSame) {
  const auto reference = train("one", {}, 1);
  const std::string cp = "parallelism.context_parallel_degree=2";
  const std::string heads = "parallelism.context_parallel_method=heads";
  const auto same = [&](const std::string& name, std::vector<std::string> sets, int ranks) {
    expect_same_losses(train(name, sets, ranks), reference, name);
  };
  same("ring", {cp}, 2);
  same("heads", {cp, heads}, 2);
  // Chunks that are not even.
  same("ring of 3", {"parallelism.context_parallel_degree=3", "training.micro_batch=2"}, 3);
  same("ring x ZeRO-1", {cp, "parallelism.zero_stage=1", "parallelism.arena=false"}, 4);
  same("heads x ZeRO-2", {cp, heads, "parallelism.zero_stage=2"}, 4);
  same("ring x FSDP",
       {cp, "parallelism.zero_stage=3", "parallelism.arena=false", "training.micro_batch=1"}, 4);
  same("ring x hybrid",
       {cp, "parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"}, 4);
  same("ring x tp",
       {cp, "parallelism.tensor_parallel_degree=2", "parallelism.zero_stage=3",
        "activation_checkpoint.mode=full"},
       4);
  same("ring x pp", {cp, "parallelism.pipeline_parallel_degree=2", "training.micro_batch=1"}, 4);
}

// Several documents in each sample, with borders anywhere.
TEST_F(Equivalence, SamplesOfSeveralDocumentsTrainTheSame) {
  std::vector<std::string> documents;
  for (int i = 0; i < 300; ++i)
    documents.push_back(std::string(static_cast<std::size_t>(3 + i * 7 % 23), "eaotni"[i % 6]));
  const std::string set = fmt::format(
      "data.folders=[\"{}\"]", prepare_corpus(folder_.path() + "/short", documents, 0.2).folder);
  const Sets masked{set, "data.document_mask=true", "training.steps=10"};
  const auto reference = train("one", masked, 1);
  const auto plain = train("no mask", {set, "training.steps=10"}, 1);
  EXPECT_GT(std::fabs(plain.back().loss - reference.back().loss), 1e-3 * reference.back().loss);
  const auto same = [&](const std::string& name, const Sets& sets, int ranks) {
    expect_same_losses(train(name, masked + sets, ranks), reference, name);
  };
  const std::string cp = "parallelism.context_parallel_degree=2";
  const std::string pp = "parallelism.pipeline_parallel_degree=2";
  same("micro-batches of dp", {"training.micro_batch=1"}, 2);
  same("ring", {cp}, 2);
  same("heads", {cp, "parallelism.context_parallel_method=heads"}, 2);
  same("tp, samples divided", {"parallelism.tensor_parallel_degree=2"}, 2);
  same("ring x pp", {cp, pp, "training.micro_batch=1"}, 4);
}

// Sums in the order of one rank: the same bits, whatever the schedule. Clipping would need the
// norm, which is summed by stages.
TEST_F(Equivalence, PipelinesTrainTheSameBits) {
  const auto run = [&](const std::string& name, std::vector<std::string> sets, int ranks) {
    sets.insert(sets.end(), {"training.micro_batch=1", "model.tied_embeddings=false",
                             "optimizer.clip_norm=0.0", "validation.interval=10"});
    return train(name, sets, ranks);
  };
  const auto reference = run("one", {}, 1);
  const std::string degree = "parallelism.pipeline_parallel_degree=2";
  const std::string schedule = "parallelism.pipeline_parallel_schedule=";
  for (const std::string name :
       {"in_turn", "gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"}) {
    const auto found = run("pp " + name, {degree, schedule + name}, 2);
    ASSERT_EQ(found.size(), reference.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(found[i].loss, reference[i].loss) << name << ", step " << i + 1;
    EXPECT_EQ(found.back().evaluation->labels, reference.back().evaluation->labels);
    EXPECT_NEAR(found.back().evaluation->loss, reference.back().evaluation->loss, 1e-6) << name;
  }
  expect_same_losses(run("uneven", {degree, "parallelism.pipeline_parallel_stage_units=[1, 3]"}, 2),
                     reference, "a stage of the embedding alone");
  expect_same_losses(run("counted", {degree, "parallelism.pipeline_parallel_stages_by=count"}, 2),
                     reference, "as many units in each stage");
  expect_same_losses(run("pp dp", {degree}, 4), reference, "pp 2 x dp 2");
  expect_same_losses(run("pp zero", {degree, "parallelism.zero_stage=2"}, 4), reference,
                     "pp 2 x ZeRO-2");
  // Two micro-batches of a rank, whose backward passes come the other way round.
  std::ofstream(folder_.path() + "/turned.csv") << "0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n";
  const std::vector<std::string> two{"training.global_batch_sequences=2", "training.steps=6"};
  auto turned = two;
  turned.push_back(degree);
  turned.push_back("parallelism.pipeline_parallel_schedule_csv=" + folder_.path() + "/turned.csv");
  expect_same_losses(run("file", turned, 2), run("two", two, 1), "the order of a file");
  expect_same_losses(
      run("pp fsdp",
          {degree, "parallelism.zero_stage=3", "parallelism.arena=false", schedule + "interleaved",
           "parallelism.pipeline_parallel_virtual_stages=2",
           "parallelism.pipeline_parallel_gathered_stages=1"},
          4),
      reference, "pp 2 x FSDP, one stage at a time");
}

// The embedding and the head, on different ranks, share a weight.
TEST_F(Equivalence, PipelinesWithATiedWeightTrainTheSame) {
  const auto reference = train("one", {"training.micro_batch=1"}, 1);
  const std::vector<std::string> pp{"parallelism.pipeline_parallel_degree=2",
                                    "training.micro_batch=1"};
  expect_same_losses(train("pp", pp, 2), reference, "pp 2");
  expect_same_losses(train("pp dp", pp, 4), reference, "pp 2 x dp 2");
  auto sharded = pp;
  sharded.push_back("parallelism.zero_stage=3");
  expect_same_losses(train("pp fsdp", sharded, 4), reference, "pp 2 x FSDP, shared");
  sharded.push_back("parallelism.arena=false");
  sharded.push_back("parallelism.tensor_parallel_degree=2");
  expect_same_losses(train("pp fsdp tp", sharded, 8), reference, "pp 2 x FSDP x tp 2, copied");
  auto sets = pp;
  sets.push_back("parallelism.tensor_parallel_degree=2");
  expect_same_losses(train("pp tp", sets, 4), reference, "pp 2 x tp 2");
  sets.push_back("parallelism.pipeline_parallel_schedule=interleaved");
  sets.push_back("parallelism.pipeline_parallel_virtual_stages=2");
  expect_same_losses(train("pp tp dp", sets, 8), reference, "interleaved 2 x tp 2 x dp 2");
}

// Weights that all heads share, in blocks whose heads are wider than the model divided by their
// number. Near zero the derivative of a norm grows to 1 / sqrt(epsilon), and rounding with it:
// larger initial weights keep twenty steps from carrying queries and keys there.
TEST_F(Equivalence, NormsOfQueriesAndKeysTrainTheSame) {
  const auto train_qwen3 = [&](const std::string& name, std::vector<std::string> sets, int ranks) {
    sets.insert(sets.end(), {"model.name=qwen3-tiny", "model.kv_heads=1", "model.init_std=0.1"});
    return train(name, sets, ranks);
  };
  const auto reference = train_qwen3("one", {}, 1);
  EXPECT_LT(reference.back().loss, reference.front().loss - 0.5)
      << "nothing was learnt: the comparison would show nothing";
  expect_same_losses(train_qwen3("micro 2", {"training.micro_batch=2"}, 2), reference,
                     "2 ranks x 2 x 2");
  expect_same_losses(train_qwen3("fsdp", {"parallelism.zero_stage=3"}, 4), reference,
                     "FSDP, 4 ranks");
  const auto again = train_qwen3("again", {}, 1);
  const auto selective = train_qwen3("selective", {"activation_checkpoint.mode=selective"}, 1);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    EXPECT_EQ(again[i].loss, reference[i].loss);
    EXPECT_EQ(selective[i].loss, reference[i].loss);
  }
}

// Every way of sharding saves what every other loads: a chain of five, each stopped by an error
// after a checkpoint.
TEST_F(Equivalence, CheckpointsMoveBetweenAllWaysOfSharding) {
  const auto whole = train("whole", {}, 1);
  const std::vector<std::pair<int, std::vector<std::string>>> ways = {
      {2, {"parallelism.zero_stage=2"}},
      {4, {"parallelism.zero_stage=3", "parallelism.arena=false"}},
      {1, {}},
      {4, {"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"}},
      {2, {}}};
  for (std::size_t first = 0; first < ways.size(); ++first) {
    const std::string name = "chain " + std::to_string(first);
    for (int i = 0; i < 3; ++i) {
      auto [ranks, sets] = ways[(first + static_cast<std::size_t>(i)) % ways.size()];
      // Waited for, so that every link of the chain goes on from the one before.
      sets.insert(sets.end(), {"checkpoint.asynchronous=false", "debug.fault=error",
                               fmt::format("debug.fault_step={}", 5 * i + 7)});
      EXPECT_THROW(train(name, sets, ranks), Error);
    }
    const auto& [ranks, sets] = ways[(first + 3) % ways.size()];
    expect_same_losses(train(name, sets, ranks), whole, name);
  }
}

TEST_F(Equivalence, AnotherModelOrOtherDataIsRefusedByName) {
  train("run", {"training.steps=5"}, 1);
  try {
    train("run", {"model.hidden=48", "model.ffn=96"}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    const std::string text = error.what();
    EXPECT_NE(text.find("model.hidden was 32 and is 48"), std::string::npos) << text;
    EXPECT_NE(text.find("model.ffn was 64 and is 96"), std::string::npos) << text;
    EXPECT_NE(text.find("--fresh"), std::string::npos) << text;
  }
  EXPECT_THROW(train("run", {"debug.seed=5"}, 1), Error);
  EXPECT_THROW(train("run", {"training.sequence_length=16"}, 1), Error);
  // A longer run of the same job goes on.
  EXPECT_EQ(train("run", {"training.steps=8"}, 1).size(), 8u);
}

TEST_F(Equivalence, ALossThatIsNoNumberNamesRankAndStep) {
  try {
    train("nan", {"debug.fault=nan", "debug.fault_step=7", "debug.fault_rank=1"}, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNonFinite);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_NE(std::string(error.what()).find("step 7"), std::string::npos) << error.what();
  }
}

TEST_F(Equivalence, AFinishedRunIsLeftAlone) {
  const auto first = train("run", {"training.steps=5"}, 1);
  const auto time = std::filesystem::last_write_time(folder_.path() + "/run/metrics.jsonl");
  train("run", {"training.steps=5"}, 1);
  EXPECT_EQ(std::filesystem::last_write_time(folder_.path() + "/run/metrics.jsonl"), time);
}

}  // namespace
}  // namespace shoal::train::equivalence_test
