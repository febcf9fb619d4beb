// Keys of a job file in runs whose result is known to differ with them, and how: a key that is read
// and not used fails here.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include "shoal/base/error.h"
#include "shoal/base/philox.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/comm/engine.h"
#include "shoal/train/config/validate.h"
#include "shoal/train/job_options.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::job_keys_test {
namespace {

/// Every run is checked as `shoal train` checks it, so that a key counts only where it may be set.
class JobKeys : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data", 4);
  }

  /// Without dropout, warm-up, clipping and decay of weights: what a step does follows from its
  /// batch alone.
  static Sets plain() {
    return {"model.dropout=0.0",     "lr_scheduler.warmup_steps=0", "lr_scheduler.name=constant",
            "optimizer.clip_norm=0", "optimizer.weight_decay=0",    "validation.interval=0",
            "checkpoint.interval=0", "checkpoint.at_end=false",     "metrics.tensorboard=false"};
  }
  std::vector<StepMetrics> train_job(const std::string& job, const Sets& sets, int ranks = 1) {
    validate(parse_job(job, "small.toml", sets), ranks);
    last_run_ = fmt::format("{}/run-{}", folder_.path(), runs_++);
    return train_on_threads(last_run_, job, sets, ranks);
  }
  std::vector<StepMetrics> train(const Sets& sets, int ranks = 1) {
    return train_job(job_, plain() + sets, ranks);
  }
  /// The shape of a parameter that a run of so many steps has saved; empty: it has none of that
  /// name.
  checkpoint::format::Shape shape_of(const std::string& parameter, int steps = 4) const {
    const auto manifest =
        checkpoint::format::read_manifest(fmt::format("{}/checkpoints/step-{}", last_run_, steps));
    const auto* tensor = manifest.find("model." + parameter);
    return tensor == nullptr ? checkpoint::format::Shape{} : tensor->shape;
  }

  TemporaryFolder folder_;
  std::string job_;
  std::string last_run_;
  int runs_ = 0;
};

/// Rounding of float32 in another order of operations.
void expect_near(double a, double b, const char* what) { EXPECT_NEAR(a, b, 5e-6 * b) << what; }
/// Far beyond that.
void expect_apart(double a, double b, const char* what) {
  EXPECT_GT(std::fabs(a - b), 5e-5 * b) << what;
}

// The first update of Adam is the sign of the gradient, whatever its averages forget. The second is
// not.
TEST_F(JobKeys, Beta2CountsFromTheSecondUpdateOn) {
  const auto usual = train({});
  const auto other = train({"optimizer.beta2=0.5"});
  EXPECT_EQ(other[0].loss, usual[0].loss);
  expect_near(other[1].loss, usual[1].loss, "behind one update");
  expect_apart(other[3].loss, usual[3].loss, "behind three updates");
}

// An epsilon far above every gradient leaves the weights where they were.
TEST_F(JobKeys, EpsilonBoundsTheUpdate) {
  const auto still = train({"optimizer.learning_rate=0.0"});
  const auto large = train({"optimizer.epsilon=1e9"});
  const auto usual = train({});
  for (std::size_t i = 0; i < 4; ++i) expect_near(large[i].loss, still[i].loss, "epsilon 1e9");
  expect_apart(usual[3].loss, still[3].loss, "epsilon as it is");
}

// Nesterov's first update is 1 + momentum times the gradient, and the plain one the gradient.
TEST_F(JobKeys, NesterovLooksAhead) {
  const Sets sgd{"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.learning_rate=0.1"};
  const auto plain_momentum = train(sgd);
  const auto ahead = train(sgd + Sets{"optimizer.nesterov=true"});
  const auto larger =
      train({"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.learning_rate=0.19"});
  EXPECT_EQ(ahead[0].loss, plain_momentum[0].loss);
  expect_near(ahead[1].loss, larger[1].loss, "1.9 times the step");
  expect_apart(ahead[1].loss, plain_momentum[1].loss, "with and without");
  expect_apart(ahead[3].loss, larger[3].loss, "the third update is another");
}

// The rate stays until the last 40 percent of 10 steps and falls in a line to a tenth.
TEST_F(JobKeys, DecayFractionIsThePartOfTheRunThatDecays) {
  const auto metrics = train({"training.steps=10", "lr_scheduler.name=wsd",
                              "lr_scheduler.decay_fraction=0.4", "lr_scheduler.final_ratio=0.1"});
  ASSERT_EQ(metrics.size(), 10u);
  for (int step = 0; step < 10; ++step) {
    const double decayed = step < 6 ? 0.0 : (step - 6) / 4.0;
    EXPECT_NEAR(metrics[static_cast<std::size_t>(step)].lr, 3e-3 * (1 - 0.9 * decayed), 1e-12)
        << step;
  }
}

// 8 sequences of 32 tokens a step: 1290 tokens are more than 5 steps, and a sixth is begun.
TEST_F(JobKeys, TokensAreTheLengthOfTheRun) {
  const auto metrics = train({"training.tokens=1290"});
  ASSERT_EQ(metrics.size(), 6u);
  EXPECT_EQ(metrics.back().tokens, 6 * 8 * 32);
}

// One corpus holds the letter a and one the letter b, so that every sequence of a corpus is the
// same. A model that never changes has one loss for each, and a batch of 8 sequences mixed 3 to 1
// has 6 of one and 2 of the other.
TEST_F(JobKeys, WeightsAreTheSharesOfABatch) {
  std::vector<std::string> folders;
  for (const char letter : {'a', 'b'}) {
    const std::string folder = folder_.path() + "/only-" + letter;
    folders.push_back(
        prepare_corpus(folder, {std::string(4000, letter), std::string(4000, letter)}, 0.5).folder);
  }
  const Sets still = plain() + Sets{"optimizer.learning_rate=0.0", "model.init_std=0.3"};
  const auto loss_of = [&](const std::string& set, const Sets& more) {
    return train_job(job_, still + Sets{"data.folders=" + set} + more)[0].loss;
  };
  const double a = loss_of(fmt::format("[\"{}\"]", folders[0]), {});
  const double b = loss_of(fmt::format("[\"{}\"]", folders[1]), {});
  ASSERT_GT(std::fabs(a - b), 0.01 * a) << "the letters have the same loss: nothing would show";
  const std::string both = fmt::format("[\"{}\", \"{}\"]", folders[0], folders[1]);
  expect_near(loss_of(both, {"data.weights=[3.0, 1.0]"}), (6 * a + 2 * b) / 8, "3 to 1");
  expect_near(loss_of(both, {"data.weights=[1.0, 7.0]"}), (a + 7 * b) / 8, "1 to 7");
  // None: by the number of tokens, which is the same.
  expect_near(loss_of(both, {}), (4 * a + 4 * b) / 8, "by size");
}

// With rotary positions attention sees differences of positions alone. So two documents in a
// sample, each for itself, have the losses that they have in samples of their own.
TEST_F(JobKeys, ADocumentMaskKeepsAttentionWithinDocuments) {
  std::vector<std::string> documents;
  for (int i = 0; i < 40; ++i) documents.push_back(fmt::format("{:07}", i * 7919 % 1000003));
  const std::string folder =
      prepare_corpus(folder_.path() + "/documents", documents, 0.5).folder;  // 8 tokens each
  const auto loss_of = [&](int length, const char* mask) {
    const auto metrics = train_job(
        job_, plain() + Sets{"optimizer.learning_rate=0.0", "model.init_std=0.3",
                             "model.positions=rotary", fmt::format("data.folders=[\"{}\"]", folder),
                             fmt::format("training.sequence_length={}", length),
                             fmt::format("data.document_mask={}", mask), "validation.interval=1",
                             "validation.batches=0", "training.steps=1"});
    return metrics.at(0).evaluation.value().loss;
  };
  const double alone = loss_of(8, "false");
  EXPECT_EQ(loss_of(8, "true"), alone) << "a document a sample";
  expect_near(loss_of(16, "true"), alone, "two documents a sample");
  expect_near(loss_of(24, "true"), alone, "three documents a sample");
  EXPECT_GT(std::fabs(loss_of(16, "false") - alone), 0.01 * alone);
}

constexpr const char* kTableJob = R"(
[model]
family = "mlp"
widths = [8]
[data]
source = "csv"
file = "{}"
[training]
global_batch_sequences = 16
steps = 5
[checkpoint]
interval = 0
at_end = false
[validation]
interval = 0
batches = 0
[metrics]
tensorboard = false
)";

/// A table of the columns p, q and r in that order; q is 0, 1 or 2.
std::string write_table(const std::string& path, const std::vector<int>& order) {
  const char* names[] = {"p", "q", "r"};
  std::ofstream file(path);
  for (std::size_t i = 0; i < 3; ++i) file << names[order[i]] << (i < 2 ? "," : "\n");
  const Key key(5);
  for (std::uint64_t row = 0; row < 120; ++row) {
    const double p = std::round(1000 * key.normal(2 * row)) / 1000;
    const double r = std::round(1000 * key.normal(2 * row + 1)) / 1000;
    double q = p > r ? 1 : 0;
    if (p + r > 0.5) q = 2;
    const double values[] = {p, q, r};
    for (std::size_t i = 0; i < 3; ++i) file << values[order[i]] << (i < 2 ? "," : "\n");
  }
  return path;
}

TEST_F(JobKeys, TargetAndTaskSayWhatIsLearntOfATable) {
  // The same features in the same order; the target in the middle, or last where it is taken from
  // by default.
  const std::string middle =
      fmt::format(fmt::runtime(kTableJob), write_table(folder_.path() + "/pqr.csv", {0, 1, 2}));
  const std::string last =
      fmt::format(fmt::runtime(kTableJob), write_table(folder_.path() + "/prq.csv", {0, 2, 1}));
  const auto expected = train_job(last, {});
  for (const std::string target : {"data.target=\"q\"", "data.target=\"1\""}) {
    const auto found = train_job(middle, {target});
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].loss, expected[i].loss);
  }
  // Three classes that nothing is known of; a number that is 0, 1 or 2.
  EXPECT_NEAR(expected[0].loss, std::log(3.0), 0.5);
  EXPECT_TRUE(expected.back().evaluation->accuracy.has_value());
  EXPECT_FALSE(expected.back().evaluation->mean_squared_error.has_value());
  const auto regression = train_job(last, {"data.task=regression"});
  EXPECT_FALSE(regression.back().evaluation->accuracy.has_value());
  EXPECT_TRUE(regression.back().evaluation->mean_squared_error.has_value());
}

// Keys that give a model other parameters.
TEST_F(JobKeys, ShapesOfTheModelAreThoseOfItsKeys) {
  using Shape = checkpoint::format::Shape;
  struct Case {
    const char* key;
    Sets sets;
    const char* parameter;
    Shape before, after;
  };
  const Sets saved{"checkpoint.at_end=true", "training.steps=1"};
  train(saved);
  // Two heads and two key-value heads of 16 each, a width of 32.
  ASSERT_EQ(shape_of("blocks.1.attention.qkv.weight", 1), (Shape{96, 32}));
  const std::vector<Case> cases{
      {"head_size", {"model.head_size=20"}, "blocks.1.attention.qkv.weight", {96, 32}, {120, 32}},
      {"head_size", {"model.head_size=20"}, "blocks.1.attention.out.weight", {32, 32}, {32, 40}},
      {"bias", {"model.bias=false"}, "blocks.1.mlp.up.bias", {64}, {}},
      {"bias", {"model.bias=false"}, "blocks.1.attention.qkv.bias", {96}, {}},
      {"gated", {"model.gated=true"}, "blocks.1.mlp.gate.weight", {}, {64, 32}},
      {"qk_norm",
       {"model.qk_norm=true", "model.norm=rms"},
       "blocks.1.attention.query_norm.weight",
       {},
       {16}},
      {"positions", {"model.positions=rotary"}, "embedding.positions.weight", {32, 32}, {}},
      {"norm", {"model.norm=rms"}, "blocks.1.norm_1.bias", {32}, {}}};
  for (const Case& one : cases) EXPECT_EQ(shape_of(one.parameter, 1), one.before) << one.parameter;
  for (const Case& one : cases) {
    train(saved + one.sets);
    EXPECT_EQ(shape_of(one.parameter, 1), one.after) << one.key << ", " << one.parameter;
  }
  // Biases of queries, keys and values alone.
  train(saved + Sets{"model.bias=false", "model.qkv_bias=true"});
  EXPECT_EQ(shape_of("blocks.1.attention.qkv.bias", 1), Shape{96});
  EXPECT_TRUE(shape_of("blocks.1.mlp.up.bias", 1).empty());
}

// Keys that change numbers only, where the right number is known.
TEST_F(JobKeys, NumbersOfTheModelAreThoseOfItsKeys) {
  const double even = std::log(320.0);  // 320 rows of the embedding, all equally likely
  EXPECT_NEAR(train({"model.init_std=0.0"})[0].loss, even, 1e-6);
  const Sets large{"model.init_std=0.5"};
  const auto usual = train(large);
  EXPECT_GT(std::fabs(usual[0].loss - even), 0.01);
  // The last norm divides by the root of it.
  EXPECT_NEAR(train(large + Sets{"model.norm_epsilon=1e16"})[0].loss, even, 1e-5);
  const auto turned = train(large + Sets{"model.positions=rotary"});
  const auto slower = train(large + Sets{"model.positions=rotary", "model.rope_theta=2.0"});
  expect_apart(slower[0].loss, turned[0].loss, "rope_theta");
}

/// Forwards to a communicator, shows no memory to peers and counts the bytes of all-reduces.
class CountingCommunicator final : public collective::Communicator {
 public:
  CountingCommunicator(std::unique_ptr<collective::Communicator> inner,
                       std::shared_ptr<std::vector<std::int64_t>> all_reduced_bytes)
      : inner_(std::move(inner)), all_reduced_bytes_(std::move(all_reduced_bytes)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool supports(collective::Kind kind, ElementType type,
                collective::Reduction reduction) const override {
    return inner_->supports(kind, type, reduction);
  }
  collective::Handle start(const collective::Operation& operation) override {
    if (operation.kind == collective::Kind::kAllReduce) {
      std::size_t count = operation.buffer.count;
      for (const collective::Buffer& buffer : operation.more) count += buffer.count;
      all_reduced_bytes_->push_back(static_cast<std::int64_t>(count * size_of(operation.type)));
    }
    return inner_->start(operation);
  }
  bool test(collective::Handle handle) override { return inner_->test(handle); }
  bool complete(collective::Handle handle) const override { return inner_->complete(handle); }
  void wait(collective::Handle handle, Deadline deadline) override {
    inner_->wait(handle, deadline);
  }
  void poll(Duration budget) override { inner_->poll(budget); }
  bool idle() const override { return inner_->idle(); }
  std::uint64_t sequence() const override { return inner_->sequence(); }
  std::string report() const override { return inner_->report(); }
  std::unique_ptr<collective::Communicator> split(int color, int key) override {
    return inner_->split(color, key);
  }
  void abort(const Error& cause) override { inner_->abort(cause); }

 private:
  std::unique_ptr<collective::Communicator> inner_;
  std::shared_ptr<std::vector<std::int64_t>> all_reduced_bytes_;
};

TEST_F(JobKeys, BucketsAreOfTheSizeAskedFor) {
  const auto all_reduced = [&](const Sets& sets) {
    std::vector<std::int64_t> found;
    const Job job = parse_job(job_, "small.toml", plain() + Sets{"training.steps=1"} + sets);
    const std::string directory = fmt::format("{}/buckets-{}", folder_.path(), runs_++);
    std::filesystem::create_directories(directory);
    comm::run_on_threads({.size = 2, .arena = false}, [&](const comm::Group& group) {
      const auto all_reduced_bytes = std::make_shared<std::vector<std::int64_t>>();
      auto* const whole = const_cast<collective::Communicator*>(group.communicator());
      RunOptions options;
      options.job = job;
      options.run_directory = directory;
      options.world = comm::Group(
          std::make_shared<CountingCommunicator>(whole->split(0, group.rank()), all_reduced_bytes));
      options.console = false;
      train::train(options);
      if (group.rank() != 0) return;
      for (const std::int64_t bytes : *all_reduced_bytes)
        if (bytes > 1000) found.push_back(bytes);  // The others are single numbers.
    });
    return found;
  };
  const auto one = all_reduced({});
  ASSERT_EQ(one.size(), 1u) << "25 MB hold all gradients";
  // A bucket is closed when a gradient more would be too much for it; the largest gradient alone
  // has 320 x 32 x 4 bytes.
  const auto many = all_reduced({"parallelism.bucket_mb=0.02"});
  EXPECT_GE(many.size(), 3u);
  std::int64_t sum = 0;
  for (const std::int64_t bytes : many) {
    sum += bytes;
    EXPECT_LE(bytes, 320 * 32 * 4);
  }
  EXPECT_EQ(sum, one[0]);
}

// Parameters that travel as bf16 arrive rounded to 8 bits: the loss moves by some 1e-3 of itself at
// most, and more than any rounding of float32.
TEST_F(JobKeys, GathersTravelInTheTypeAskedFor) {
  const Sets sharded{"parallelism.zero_stage=3", "parallelism.arena=false", "model.init_std=0.2",
                     "training.global_batch_sequences=12"};
  const auto usual = train(sharded, 3);
  const auto rounded = train(sharded + Sets{"precision.gathers=bf16"}, 3);
  // One loss alone may hardly move: the errors of its tokens have both signs.
  double moved = 0;
  for (std::size_t i = 0; i < usual.size(); ++i) {
    EXPECT_NEAR(rounded[i].loss, usual[i].loss, 0.02 * usual[i].loss);
    moved = std::max(moved, std::fabs(rounded[i].loss / usual[i].loss - 1));
    moved = std::max(moved, std::fabs(rounded[i].grad_norm / usual[i].grad_norm - 1));
  }
  EXPECT_GT(moved, 5e-5) << moved;
}

// How far ahead units are gathered changes when, and never what. That the number arrives where
// units are gathered is seen beside it; what it does there, tests/parallel shows.
TEST_F(JobKeys, GatheringAheadChangesNoBit) {
  const Sets sharded{"parallelism.zero_stage=3", "parallelism.arena=false",
                     "training.global_batch_sequences=12"};
  const auto usual = train(sharded, 3);
  for (const int ahead : {0, 3}) {
    const std::string set = fmt::format("parallelism.gather_ahead={}", ahead);
    const auto found = train(sharded + Sets{set}, 3);
    for (std::size_t i = 0; i < usual.size(); ++i) EXPECT_EQ(found[i].loss, usual[i].loss) << set;
    EXPECT_EQ(sharding_options(parse_job(job_, "small.toml", sharded + Sets{set}).config).ahead,
              ahead);
  }
}

TEST_F(JobKeys, TheShardDegreeMustBeTheRanksThatReplicasLeave) {
  const Sets sharded{"parallelism.zero_stage=3"};
  const auto usual = train(sharded + Sets{"parallelism.data_parallel_replicate_degree=2"}, 4);
  const auto found = train(sharded + Sets{"parallelism.data_parallel_replicate_degree=2",
                                          "parallelism.data_parallel_shard_degree=2"},
                           4);
  for (std::size_t i = 0; i < usual.size(); ++i) EXPECT_EQ(found[i].loss, usual[i].loss);
  try {
    train(sharded + Sets{"parallelism.data_parallel_shard_degree=2"}, 4);
    ADD_FAILURE() << "two ranks of four would have no work";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_NE(std::string(error.what()).find("data_parallel_shard_degree"), std::string::npos)
        << error.what();
  }
}

// Each key of the optimizer, the schedule and of sharding arrives in the option of its name.
TEST_F(JobKeys, OptionsAreThoseOfTheirKeys) {
  const auto config = [&](const Sets& sets) { return parse_job(job_, "small.toml", sets).config; };
  const auto adamw = std::get<optim::AdamWOptions>(
      optimizer_options(config({"optimizer.beta1=0.1", "optimizer.beta2=0.2",
                                "optimizer.epsilon=0.3", "optimizer.weight_decay=0.4"})));
  EXPECT_EQ(adamw.beta1, 0.1);
  EXPECT_EQ(adamw.beta2, 0.2);
  EXPECT_EQ(adamw.epsilon, 0.3);
  EXPECT_EQ(adamw.weight_decay, 0.4);
  const auto sgd = std::get<optim::SgdOptions>(
      optimizer_options(config({"optimizer.name=sgd", "optimizer.momentum=0.1",
                                "optimizer.nesterov=true", "optimizer.weight_decay=0.2"})));
  EXPECT_EQ(sgd.momentum, 0.1);
  EXPECT_EQ(sgd.weight_decay, 0.2);
  EXPECT_TRUE(sgd.nesterov);
  const auto schedule =
      schedule_options(config({"lr_scheduler.name=wsd", "optimizer.learning_rate=0.5",
                               "lr_scheduler.final_ratio=0.25", "lr_scheduler.warmup_steps=7",
                               "lr_scheduler.decay_fraction=0.3"}),
                       200);
  EXPECT_EQ(schedule.kind, optim::ScheduleKind::kWarmupStableDecay);
  EXPECT_EQ(schedule.peak, 0.5);
  EXPECT_EQ(schedule.final_ratio, 0.25);
  EXPECT_EQ(schedule.warmup_steps, 7);
  EXPECT_EQ(schedule.total_steps, 200);
  EXPECT_EQ(schedule.decay_steps, 60);
  using By = parallel::Wrapping::By;
  for (const auto& [word, by] : std::vector<std::pair<std::string, By>>{
           {"block", By::kBlock}, {"size", By::kSize}, {"names", By::kName}, {"model", By::kWhole}})
    EXPECT_EQ(sharding_options(config({"parallelism.shard_units=" + word})).wrapping.by, by);
  const auto sharding = sharding_options(
      config({"parallelism.zero_stage=2", "parallelism.shard_unit_size=77",
              "parallelism.shard_unit_names=[\"x\", \"y\"]", "parallelism.gather_ahead=5",
              "parallelism.reshard_after_forward=false",
              "parallelism.reduce_every_micro_batch=true", "precision.gathers=bf16"}));
  EXPECT_EQ(static_cast<int>(sharding.stage), 2);
  EXPECT_EQ(sharding.wrapping.parameters, 77);
  EXPECT_EQ(sharding.wrapping.names, (Sets{"x", "y"}));
  EXPECT_EQ(sharding.ahead, 5);
  EXPECT_FALSE(sharding.reshard_after_forward);
  EXPECT_TRUE(sharding.reduce_every_micro_batch);
  EXPECT_EQ(sharding.transfer_type, at::kBFloat16);
}

}  // namespace
}  // namespace shoal::train::job_keys_test
