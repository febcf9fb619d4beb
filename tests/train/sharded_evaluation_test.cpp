// Evaluations and texts of models whose ranks hold shards: units are gathered one after the other,
// with the bits of a model that was gathered whole, however unequal the ranks' shares are.
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "shoal/comm/world.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/pipeline/forward_through.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/plan/stage_sizes.h"
#include "shoal/schedule/gathers.h"
#include "shoal/schedule/generators.h"
#include "shoal/train/evaluation.h"
#include "shoal/train/generation.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::sharded_evaluation_test {
namespace {

using parallel::ShardingOptions;

constexpr std::int64_t kLength = 16;
constexpr std::int64_t kBlocks = 6;
constexpr int kMicroBatches = 2;  // of the pipeline's table

/// Sizes of which two ranks have whole cache lines each: nothing is padded. Embedding and head have
/// as many parameters as each other.
model::ModelSpec spec_of(const std::string& family) {
  model::ModelSpec spec = *model::named_model(family);
  spec.layers = kBlocks;
  spec.hidden = 32;
  spec.heads = spec.kv_heads = 4;
  spec.head_size = 8;
  spec.ffn = 64;
  spec.vocab = 288;  // more than bytes and the end of a document
  spec.sequence = kLength;
  return spec;
}

struct Way {
  const char* name;
  plan::Degrees degrees;
  const char* family = "llama-tiny";
  ShardingOptions::Copies copies = ShardingOptions::Copies::kCopied;
};

std::string document_of(int number) {
  std::string text;
  for (int k = 0; k < 40 + 13 * number; ++k)
    text += static_cast<char>('a' + (number * 5 + k * k) % (7 + number));
  return text;
}

/// The result of an evaluation and a text, to be compared bit for bit.
using Found = std::tuple<double, std::int64_t, double, std::vector<std::uint32_t>>;

/// One rank with its part of a model. A pipeline has two stages a rank and holds one at a time.
class ShardedRank {
 public:
  ShardedRank(const comm::Group& world, const Way& way, const DataSource& data)
      : world_(world),
        mesh_(world, way.degrees),
        data_(data),
        model_(nn::make_model(spec_of(way.family))) {
    parallel::ApplyOptions options;
    const bool staged = way.degrees.pp > 1;
    using Gathers = ShardingOptions::Gathers;
    options.sharding = ShardingOptions{.copies = way.copies,
                                       .gathers = staged ? Gathers::kByCaller : Gathers::kByTable,
                                       .alone = {}};
    if (staged) {
      table_ = schedule::make_schedule("interleaved", static_cast<int>(way.degrees.pp), 2,
                                       kMicroBatches);
      schedule::add_gathers(table_, 1);
      options.table = table_;
      options.units_of_stage = plan::even_stages(kBlocks + 2, table_.stages());
    }
    applied_ = parallel::apply(*model_, mesh_, options);
    applied_.reset_parameters(*model_, Key(1));
    share_ = parallel::BatchShare(mesh_, staged ? table_.rank_of_stage.back() : 0);
    if (staged) make_pipeline();
    // They count behind the hooks that gather.
    for (const auto& unit : model_->units()) {
      unit->on_pre_forward([this](nn::Module&, const at::Tensor&, const nn::Context&) {
        most_ = std::max(most_, whole_units());
        return at::Tensor();
      });
    }
  }

  parallel::Sharding& sharding() { return *applied_.sharding; }
  std::int64_t units() const { return static_cast<std::int64_t>(model_->units().size()); }
  /// Returns the most units that were whole at a time since the last call.
  std::int64_t take_most() { return std::exchange(most_, 0); }
  std::int64_t whole_units() const {
    const auto& units = model_->units();
    return std::count_if(units.begin(), units.end(), [](const auto& unit) {
      const auto parameters = unit->parameters();
      return std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
        return parameter->tensor().storage().nbytes() > 0;
      });
    });
  }

  Evaluation evaluate_on(std::int64_t samples, bool in_step, std::int64_t micro_batch = 2) {
    return evaluate(*model_, data_, world_, share_,
                    {.samples = samples, .micro_batch = micro_batch, .in_step = in_step},
                    pipeline_.get());
  }

  Found evaluate_and_write(std::int64_t samples, bool in_step) {
    const Evaluation found = evaluate_on(samples, in_step);
    return {found.loss, found.labels, found.bits_per_byte.value_or(0),
            generate(*model_, {97, 98, 99}, {.tokens = 3}, Key(2), 257)};
  }

  /// A micro-batch forward and back, without an update: values stay, and what was gathered for it
  /// must not be taken for what an evaluation gathers.
  void pass() {
    if (pipeline_) return;
    Batch batch = data_.evaluation("train", {share_.rank(), 3});
    nn::Context context;
    context.labels = batch.labels;
    context.documents = batch.documents;
    context.samples = at::arange(2, at::kLong);
    const at::Tensor inputs = share_.cut(batch.inputs, context);
    sharding().begin(0, 1);
    (*model_)(inputs, context).backward();
    sharding().end_backward();
    sharding().finish();
    model_->clear_gradients();
  }

 private:
  void make_pipeline() {
    pipeline_ = std::make_unique<parallel::Pipeline>(
        mesh_.along(mesh::Axis::kPipeline), table_, applied_.stages,
        parallel::pipeline_events(*applied_.reduction, applied_.stages.local, {},
                                  applied_.sharding));
    model_->set_around([this](nn::Module&, const at::Tensor& x, const nn::Context& context) {
      return parallel::forward_through(applied_.stages, table_, mesh_.along(mesh::Axis::kPipeline),
                                       x, context, model_->spec().vocab, applied_.sharding);
    });
  }

  comm::Group world_;
  mesh::Mesh mesh_;
  const DataSource& data_;
  std::shared_ptr<nn::Model> model_;
  schedule::Schedule table_;
  parallel::Applied applied_;
  parallel::BatchShare share_;
  std::unique_ptr<parallel::Pipeline> pipeline_;
  std::int64_t most_ = 0;
};

class ShardedEvaluation : public ::testing::Test {
 protected:
  ShardedEvaluation() {
    std::vector<std::string> documents;
    for (int i = 0; i < 12; ++i) documents.push_back(document_of(i));
    const TokenCorpus corpus = prepare_corpus(folder_.path(), documents, 0.4);
    data_ = open_tokens(parse_job(fmt::format("[data]\nsource = \"tokens\"\nfolders = [\"{}\"]\n"
                                              "[training]\nsequence_length = {}\n",
                                              corpus.folder, kLength),
                                  "evaluation.toml"),
                        true);
  }

  void on_ranks(const plan::Degrees& degrees, const std::function<void(const comm::Group&)>& body) {
    comm::run_on_threads({.size = static_cast<int>(degrees.ranks()),
                          .arena = false,
                          .timeout = std::chrono::seconds(60)},
                         body);
  }

  TemporaryFolder folder_;
  std::shared_ptr<const DataSource> data_;
};

// One sample leaves ranks without any, five give one rank a micro-batch more than others.
TEST_F(ShardedEvaluation, HasTheBitsOfTheWholeModelAndHoldsTwoUnits) {
  for (const Way& way : {Way{"FSDP", {.dp_shard = 3}},
                         {"HSDP", {.dp_replicate = 2, .dp_shard = 2}},
                         {"tp x FSDP", {.dp_shard = 2, .tp = 2}},
                         {"cp x FSDP", {.dp_shard = 2, .cp = 2}},
                         {"ep x FSDP", {.dp_shard = 4, .ep = 2}, "moe-tiny"},
                         {"pp x FSDP", {.pp = 2, .dp_shard = 2}}}) {
    on_ranks(way.degrees, [&](const comm::Group& world) {
      ShardedRank rank(world, way, *data_);
      ASSERT_TRUE(rank.sharding().gathers());
      for (const std::int64_t samples : {1, 5, 12}) {
        const std::string what = fmt::format("{}, {} samples", way.name, samples);
        rank.sharding().unshard();
        const Found whole = rank.evaluate_and_write(samples, false);
        rank.sharding().reshard();
        EXPECT_EQ(rank.take_most(), rank.units()) << what;
        rank.pass();
        rank.take_most();
        rank.sharding().begin_inference();
        const Found together = rank.evaluate_and_write(samples, true);
        EXPECT_EQ(rank.whole_units(), 0) << what;
        rank.sharding().end_inference();
        EXPECT_EQ(together, whole) << what;
        EXPECT_TRUE(std::isfinite(std::get<0>(whole))) << what;
        // The unit that runs and the next one; the units of one stage.
        EXPECT_EQ(rank.take_most(), 2) << what;
      }
    });
  }
}

// Every micro-batch gathers the whole model once, and each of two ranks sends its half: also the
// rank that has run out of samples.
TEST_F(ShardedEvaluation, SendsEveryShardOncePerMicroBatch) {
  const Way way{"FSDP", {.dp_shard = 2}};
  on_ranks(way.degrees, [&](const comm::Group& world) {
    ShardedRank rank(world, way, *data_);
    const double model = 4.0 * static_cast<double>(model::parameter_count(spec_of(way.family)));
    const auto sent = [&](std::int64_t samples) {
      const double before = world.bytes_sent();
      rank.sharding().begin_inference();
      rank.evaluate_on(samples, true, 1);
      rank.sharding().end_inference();
      return world.bytes_sent() - before;
    };
    const double two_each = sent(4);
    EXPECT_GE(two_each, 2 * model / 2);
    EXPECT_LT(two_each, 2 * model / 2 + 1000) << "more than the sums of the evaluation";
    EXPECT_EQ(sent(5) - two_each, model / 2) << "a third micro-batch on one rank";
    EXPECT_EQ(sent(8) - two_each, 2 * model / 2);
  });
}

// Where all ranks read one copy nothing is gathered, and no rank waits for another.
TEST_F(ShardedEvaluation, GathersNothingThatIsShared) {
  const Way way{"shared", {.dp_shard = 2}, "llama-tiny", ShardingOptions::Copies::kShared};
  on_ranks(way.degrees, [&](const comm::Group& world) {
    ShardedRank rank(world, way, *data_);
    EXPECT_FALSE(rank.sharding().gathers());
    const Evaluation before = rank.evaluate_on(5, false);
    rank.sharding().begin_inference();
    EXPECT_EQ(rank.evaluate_on(5, false).loss, before.loss);
    rank.sharding().end_inference();
  });
}

}  // namespace
}  // namespace shoal::train::sharded_evaluation_test
