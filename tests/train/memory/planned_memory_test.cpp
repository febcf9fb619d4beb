// What the planner says of a job's memory, against what the arena counts while the job trains. Jobs
// whose ranks divide the model are in divided_memory_test.cpp.
#include "tests/train/memory/planned_memory.h"

#include <map>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"

namespace shoal::train::planned_memory_test {
namespace {

/// Returns what the job printed behind the head of the sample: its text.
std::string sample_in(const std::string& said) {
  const std::string head = "A sample of 6 tokens:";
  const std::size_t begin = said.find(head);
  return begin == std::string::npos ? "" : said.substr(begin, said.find("Metrics, ") - begin);
}

// 5 % is promised. One rank does the same things in the same order every time, and
// replicated ones do what one does: 2 %, for padding and what is too small to be counted.
TEST_F(PlannedMemory, OfOneRank) {
  for (const Sets& sets : {kWhole, kPieces, kRecomputed, kSelective, kBudget, kManyRows, kManyWords,
                           kUntied, kDropout, kSgd}) {
    train_job(sets, 1);
    EXPECT_NEAR(planned() / measured(), 1, 0.02) << words(sets);
  }
}

// Grouped heads, gated layers, biases of queries, keys and values, or their norms in heads of which
// two are wider than the model.
TEST_F(PlannedMemory, OfQwens) {
  for (const Sets& model : {kQwen2, kQwen3}) {
    for (const Sets& way : {kWhole, kPieces, kRecomputed, kSelective, kManyRows, kManyWords}) {
      train_job(model + way, 1);
      EXPECT_NEAR(planned() / measured(), 1, 0.02) << words(model + way);
    }
  }
  // Of sixteen bits, as below.
  for (const Sets& model : {kQwen2, kQwen3}) {
    train_job(model + kBf16, 1);
    EXPECT_NEAR(planned() / measured(), 1, 0.03) << words(model + kBf16);
  }
}

// 3 %: vectors, which are fp32, count as the matrices do.
TEST_F(PlannedMemory, OfSixteenBits) {
  for (const Sets& sets :
       {kNarrow, kBf16, kBf16 + kNarrow, kBf16 + Sets{"precision.master_weights=false"},
        Sets{"precision.type=\"fp16\""}, kBf16 + kRecomputed, kBf16 + kSelective, kBf16 + kManyRows,
        kBf16 + kManyWords}) {
    train_job(sets, 1);
    EXPECT_NEAR(planned() / measured(), 1, 0.03) << words(sets);
  }
}

TEST_F(PlannedMemory, OfReplicas) {
  for (const Sets& sets : {kWhole, kManyRowsOfTwo, kTcp}) {
    train_job(sets, 2);
    EXPECT_NEAR(planned() / measured(), 1, 0.02) << words(sets);
  }
}

// Gradients leave while others are written; how many are on their way at once depends on which rank
// is ahead: 5 %.
TEST_F(PlannedMemory, OfShards) {
  for (const auto& [stage, more] : {std::pair{1, kWhole},
                                    {2, kWhole},
                                    {3, kWhole},
                                    {3, kManyRowsOfTwo},
                                    {3, kBf16},
                                    {3, kRecomputed + kNarrow},
                                    {2, kTcp},
                                    {3, kTcp},
                                    {3, kTcp + kManyWords},
                                    {3, kTcp + kManyWords + kUntied},
                                    {3, kQwen3},
                                    {2, kQwen3 + kTcp},
                                    {2, kPieces + kReduced},
                                    {3, kPieces + kReduced + kUntied}}) {
    Sets sets = more;
    sets.push_back(fmt::format("parallelism.zero_stage={}", stage));
    train_job(sets, 2);
    EXPECT_NEAR(planned() / measured(), 1, 0.05) << words(sets);
  }
}

// Of a narrow, deep model a rank of four has room for its shards and some units, and not for all of
// them. It trains, evaluates and writes text in that, with the losses and the text of ranks that
// read one copy.
TEST_F(PlannedMemory, OfAModelThatFitsInShardsAlone) {
  constexpr double kBlocks = 32;
  constexpr double kHidden = 128;
  const Sets deep = kSgd + Sets{"parallelism.zero_stage=3",
                                "model.layers=32",
                                "model.hidden=128",
                                "model.ffn=512",
                                "model.vocab=264",
                                "model.sequence=32",
                                "training.sequence_length=32",
                                "training.global_batch_sequences=4",
                                "training.micro_batch=1",
                                "validation.interval=1",
                                "validation.batches=3",
                                "validation.sample_tokens=6",
                                "activation_checkpoint.mode=full"};
  train_job(deep, 4);
  const std::string text = sample_in(said_);
  EXPECT_NE(text, "") << said_;
  const auto shared = read_metrics(RunDirectory(folder_.path() + "/run-0").metrics());
  constexpr double kLimit = 27e6;
  const double weights = 4 * kBlocks * 12 * kHidden * kHidden;
  EXPECT_GT(weights * 5 / 4, 1.1 * kLimit) << "the whole model and a shard would fit";
  train_job(deep + kTcp + Sets{fmt::format("parallelism.memory_limit_mb={}", kLimit / 1e6)}, 4);
  EXPECT_NEAR(planned() / measured(), 1, 0.05);
  EXPECT_LT(planned() / 4, kLimit);
  EXPECT_EQ(sample_in(said_), text);
  const auto apart = read_metrics(RunDirectory(folder_.path() + "/run-1").metrics());
  ASSERT_EQ(apart.size(), shared.size());
  for (std::size_t i = 0; i < apart.size(); ++i) {
    ASSERT_TRUE(apart[i].evaluation.has_value());
    EXPECT_EQ(apart[i].evaluation->loss, shared[i].evaluation->loss) << "step " << i + 1;
  }
}

// Anchor, momentum and residuals, and an exchange behind the update or during the next step.
TEST_F(PlannedMemory, OfMembers) {
  const Sets hybrid{"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"};
  const Sets streaming{"low_communication.method=\"streaming_diloco\"",
                       "low_communication.every=2",
                       "low_communication.fragments=2",
                       "low_communication.overlap_steps=1",
                       "low_communication.codec=\"i8\"",
                       "training.steps=4"};
  const Sets plain{"low_communication.method=\"diloco\"", "low_communication.every=1"};
  for (const auto& [ranks, sets] : {std::pair{2, plain}, {4, hybrid + streaming}}) {
    train_job(sets, ranks);
    EXPECT_NEAR(planned() / measured(), 1, 0.05) << words(sets);
  }
}

// "auto" is fp32 or bf16, as this processor multiplies: memory is planned as if the job had said
// so.
TEST_F(PlannedMemory, OfAPrecisionThatIsFoundOut) {
  train_job({"precision.type=\"auto\""}, 1);
  EXPECT_NEAR(planned() / measured(), 1, 0.03);
}

// What a checkpoint behind training copies of a rank's state depends on how fast it is written,
// which is hardly at all here: it is bounded, and told apart from what is planned.
TEST_F(PlannedMemory, OfSavingBehindTraining) {
  // Of the blocks and the embedding, with two moments.
  const double state = 12 * kLayers * 64 * (12 * 64 + 13) + 12 * 64 * (1024 + 64);
  train_job({"checkpoint.interval=1", "checkpoint.writer_share=1e-6", "training.steps=6"}, 2);
  EXPECT_NEAR(planned() / measured(), 1, 0.02);
  EXPECT_GT(staged(), 0.2 * state) << "nothing was copied: the comparison shows nothing";
  EXPECT_LT(staged(), 1.02 * state);
  train_job({"checkpoint.interval=1", "checkpoint.writer_share=1e-6", "checkpoint.staging_mb=1",
             "training.steps=6"},
            2);
  EXPECT_NEAR(planned() / measured(), 1, 0.02);
  EXPECT_LE(staged(), 2e6);
}

struct Line {
  int step = 0;
  double ms = 0, peak = 0, sum = 0, activations = 0;
  std::string where;
};

std::vector<Line> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<Line> lines;
  std::string text;
  std::getline(file, text);
  EXPECT_EQ(text,
            "step,ms,where,peak_bytes,temporary,parameters,gradients,optimizer,activations,"
            "communication");
  while (std::getline(file, text)) {
    std::replace(text.begin(), text.end(), ' ', '_');
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream words(text);
    Line line;
    words >> line.step >> line.ms >> line.where >> line.peak;
    for (int c = 0; c < kMemoryCategories; ++c) {
      double bytes = -1;
      words >> bytes;
      line.sum += bytes;
      if (c == static_cast<int>(MemoryCategory::kActivations)) line.activations = bytes;
    }
    EXPECT_TRUE(words) << text;
    lines.push_back(line);
  }
  return lines;
}

// A unit keeps more after the next; backward gives it back; the highest of all peaks is the one
// that memory.json tells.
TEST_F(PlannedMemory, IsToldMomentByMoment) {
  for (const int ranks : {1, 2}) {
    train_job({"metrics.memory_steps=3", "training.steps=3",
               "parallelism.zero_stage=" + std::to_string(ranks == 2 ? 3 : 0)},
              ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto lines = read_lines(
          RunDirectory(folder_.path() + fmt::format("/run-{}", runs_ - 1)).memory_timeline(rank));
      // Of each step: its beginning, forward and backward of all units, the update and the end.
      ASSERT_EQ(lines.size(), 3u * (1 + 2 * (kLayers + 2) + 2));
      double highest = 0;
      std::map<std::string, Line> second;
      for (const Line& line : lines) {
        EXPECT_LE(line.sum, line.peak);
        highest = std::max(highest, line.peak);
        if (line.step == 2) second[line.where] = line;
      }
      EXPECT_EQ(highest,
                memory_.at("ranks")[static_cast<std::size_t>(rank)].at("peak_bytes").get<double>());
      for (int block = 1; block < kLayers; ++block) {
        const auto now = [&](const char* what, int b) {
          return second.at(fmt::format("{}_blocks.{}", what, b));
        };
        EXPECT_GT(now("forward", block).activations, now("forward", block - 1).activations);
        EXPECT_LT(now("backward", block - 1).activations, now("backward", block).activations);
        EXPECT_LT(now("forward", block).ms, now("backward", block).ms);
      }
      EXPECT_EQ(second.at("update").activations, 0);
    }
    EXPECT_TRUE(std::filesystem::exists(
        RunDirectory(folder_.path() + fmt::format("/run-{}", runs_ - 1)).memory_plot()));
  }
}

// The least that a rank of two shares needs is known to fit; half of what it planned is refused
// before anything is allocated.
TEST_F(PlannedMemory, AJobThatCannotFitIsRefused) {
  const Sets sets{"training.global_batch_sequences=64"};
  train_job(sets, 2);
  const double rank_mb = planned() / 2 / 1e6;
  const auto limited = [&](double mb, const Sets& more = {}) {
    Sets all = sets + more;
    all.push_back(fmt::format("parallelism.memory_limit_mb={}", mb));
    return run_program(all, folder_.path() + (more.empty() ? "/limited" : "/uncounted"), 2);
  };
  const apps::testing::Outcome refused = limited(rank_mb / 2);
  EXPECT_EQ(refused.code, 81);
  const std::string words = refused.out + refused.err;
  for (const char* part : {"may take", "activations", "optimizer",
                           "would fit: training.micro_batch", "activation_checkpoint.mode"})
    EXPECT_THAT(words, testing::HasSubstr(part));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/limited/metrics.jsonl"));
  // A run that is there stays there.
  const std::string old = folder_.path() + "/run-0";
  const apps::testing::Outcome anew = run_program(
      sets + Sets{fmt::format("parallelism.memory_limit_mb={}", rank_mb / 2)}, old, 2, {"--fresh"});
  EXPECT_EQ(anew.code, 81);
  EXPECT_THAT(anew.out + anew.err, testing::HasSubstr("would fit: training.micro_batch"));
  EXPECT_TRUE(std::filesystem::exists(old + "/metrics.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(old + ".old-1"));
  // Blocks are taken in size classes, up to an eighth larger than what is asked for.
  EXPECT_EQ(limited(1.15 * rank_mb).code, 0);
  // Rules by name are not counted before: the arena ends the run, and says what would need less.
  const apps::testing::Outcome ended =
      limited(rank_mb / 2, {"precision.parameters=[\"*.norm_1.weight=fp32\"]"});
  EXPECT_EQ(ended.code, 81);
  for (const char* part :
       {"no room for", "activations", "lower memory use with training.micro_batch"})
    EXPECT_THAT(ended.out + ended.err, testing::HasSubstr(part));
}

}  // namespace
}  // namespace shoal::train::planned_memory_test
