// Tensor parallelism against one rank: every gradient in double, initial weights and dropout masks
// bit for bit, and what the degrees may be.
#include "shoal/parallel/tensor/tensor_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <tuple>
#include <vector>

#include "shoal/comm/world.h"
#include "shoal/model/kept_activations.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/parallel/tensor/stream_cut.h"
#include "shoal/plan/traffic.h"
#include "tests/error_text.h"
#include "tests/parallel/one_rank.h"

namespace shoal::parallel::tensor_parallel_test {
namespace {

using model::ModelSpec;
using plan::Degrees;
using testing::HasSubstr;

// Samples that the ranks divide and samples that they do not, where columns are cut, evenly or not.
TEST(TensorParallel, GradientsOfEveryParameterAreThoseOfOneRank) {
  for (const ModelSpec& spec : {gpt2(), llama(), qwen()}) {
    for (const std::int64_t samples : {1, 2, 3}) check_gradients({spec, {.tp = 2}, samples});
    check_gradients({spec, {.tp = 2}, 1, 11});
    // More ranks than key-value heads, and more than columns divide.
    check_gradients({spec, {.tp = 4}, 1, 10});
    check_gradients({spec, {.tp = 4}, 4});
    // A rank whose stream has no rows.
    check_gradients({spec, {.tp = 4}, 1, 3});
  }
}

TEST(TensorParallel, WithDataParallelRanks) {
  for (const ModelSpec& spec : {gpt2(), llama()}) {
    check_gradients({spec, {.dp_shard = 2, .tp = 2}, 2});
    check_gradients({spec, {.dp_replicate = 3, .tp = 2}, 6});
  }
}

TEST(TensorParallel, WithRecomputedBlocks) {
  for (const model::Keep keep : {model::Keep::kInput, model::Keep::kProducts})
    check_gradients({gpt2(), {.dp_shard = 2, .tp = 2}, 2, 12, keep});
}

TEST(TensorParallel, InitialWeightsAreThoseOfOneRank) {
  for (const ModelSpec& spec : {gpt2(), llama()}) {
    const auto whole = nn::make_model(spec);
    whole->materialize();
    whole->reset_parameters(Key(4));
    comm::run_on_threads(
        {.size = 4, .arena = false, .timeout = std::chrono::seconds(30)},
        [&](const comm::Group& world) {
          const mesh::Mesh mesh(world, {.tp = 4});
          const auto model = nn::make_model(spec);
          split_tensors(*model, mesh);
          model->materialize();
          model->reset_parameters(Key(4));
          std::int64_t elements = 0;
          for (const auto& parameter : model->parameters()) {
            const at::Tensor wanted =
                local_part(whole->find_parameter(parameter->name())->tensor(), parameter->box());
            EXPECT_TRUE(at::equal(parameter->tensor(), wanted)) << parameter->name();
            elements += parameter->tensor().numel();
          }
          // Nobody holds it all.
          EXPECT_LT(elements, 2 * model::parameter_count(spec) / 4);
        });
  }
}

// Each rank computes its part of the logits again, with the sums over all classes that it kept: the
// bits of a gradient that forward has finished. 1,080 rows are more than one block, which the loss
// of one rank in double takes too.
TEST(TensorParallel, AHeadThatRecomputesItsLogitsGivesTheSameBits) {
  const Data all = data(12, 90);
  ModelSpec spec = llama();
  spec.heads = 12, spec.kv_heads = 12, spec.head_size = 2, spec.ffn = 36;
  spec.sequence = 90;
  const Gradients expected = reference(spec, all);
  comm::run_on_threads(
      {.size = 3, .arena = false, .timeout = std::chrono::seconds(30)},
      [&](const comm::Group& world) {
        const mesh::Mesh mesh(world, {.tp = 3});
        std::map<std::string, at::Tensor> first;
        double first_loss = 0;
        for (const bool recompute : {false, true}) {
          const auto model = nn::make_model(spec);
          split_tensors(*model, mesh);
          model->materialize();
          fill(*model);
          nn::Context context = context_of(BatchShare(mesh), all, 0);
          context.recompute_logits = recompute;
          const at::Tensor loss = (*model)(all.inputs, context);
          loss.backward();
          if (!recompute) {
            first_loss = loss.item<double>();
            for (const auto& parameter : model->parameters())
              first[parameter->name()] = parameter->gradient().clone();
            continue;
          }
          EXPECT_EQ(loss.item<double>(), first_loss);
          for (const auto& parameter : model->parameters())
            EXPECT_TRUE(at::equal(parameter->gradient(), first.at(parameter->name())))
                << parameter->name();
          const auto head = model->find_parameter("head.output.weight");
          const at::Tensor wanted = local_part(expected.of.at(head->name()), head->box());
          EXPECT_LT((head->gradient() - wanted).norm().item<double>(),
                    1e-5 * wanted.norm().item<double>());
        }
      });
}

// The whole logits of an undivided stream, token by token as in generation, and the loss of a
// divided one.
TEST(TensorParallel, EvaluatesWithoutGradients) {
  for (const ModelSpec& spec : {gpt2(), llama()}) {
    const Data all = data(3, 9);
    const auto whole = nn::make_model(spec);
    whole->materialize(at::kDouble);
    fill(*whole);
    nn::Context plain;
    plain.training = false;
    const at::Tensor logits = (*whole)(all.inputs, plain).detach();
    plain.labels = all.labels;
    const double loss = (*whole)(all.inputs, plain).item<double>();
    comm::run_on_threads({.size = 2, .arena = false, .timeout = std::chrono::seconds(30)},
                         [&](const comm::Group& world) {
                           const at::NoGradGuard no_grad;
                           const mesh::Mesh mesh(world, {.tp = 2});
                           const auto model = nn::make_model(spec);
                           split_tensors(*model, mesh);
                           model->materialize(at::kDouble);
                           fill(*model);
                           nn::Context context;
                           context.training = false;
                           const at::Tensor found = (*model)(all.inputs, context);
                           EXPECT_LT((found - logits).abs().max().item<double>(), 1e-12);
                           context.labels = all.labels;
                           context.stream = BatchShare(mesh).stream(all.inputs);
                           EXPECT_NEAR(world.sum((*model)(all.inputs, context).item<double>()),
                                       loss, 1e-10);
                         });
  }
}

struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
};

/// Ten steps of AdamW with clipping.
Curve train(const ModelSpec& spec, const Degrees& degrees, int stage, bool copied = false) {
  Curve result;
  comm::run_on_threads(
      {.size = static_cast<int>(degrees.ranks()),
       .arena = !copied,
       .timeout = std::chrono::seconds(30)},
      [&](const comm::Group& world) {
        const mesh::Mesh mesh(world, degrees);
        const BatchShare share(mesh);
        const auto model = nn::make_model(spec);
        ApplyOptions options;
        if (stage > 0) {
          options.sharding = {
              .stage = static_cast<ShardStage>(stage),
              .copies = copied ? ShardingOptions::Copies::kCopied : ShardingOptions::Copies::kAuto};
        }
        Applied applied = apply(*model, mesh, options);
        applied.reset_parameters(*model, Key(1));
        reduce_gradients(applied, *model, mesh);
        const auto& reduction = applied.reduction;
        std::vector<optim::Slice> slices;
        for (const OwnedRange& range : reduction->owned())
          slices.push_back({range.parameter->name(), range.values, range.parameter->decay()});
        const auto optimizer = optim::make_optimizer(
            slices, optim::AdamWOptions{.epsilon = 1e-5, .weight_decay = 0.1});
        const Data all = data(4, 12);
        const std::int64_t rows = 4 / share.ranks() / 2;
        for (int step = 0; step < 10; ++step) {
          double loss = 0;
          for (int micro = 0; micro < 2; ++micro) {
            reduction->begin(micro, 2);
            const std::int64_t first = (share.rank() * 2 + micro) * rows;
            const Data own{all.inputs.narrow(0, first, rows), all.labels.narrow(0, first, rows)};
            nn::Context context = context_of(share, own, first);
            context.key = Key(9).child(static_cast<std::uint64_t>(step));
            const at::Tensor value = (*model)(own.inputs, context);
            value.backward();
            loss += value.item<double>();
          }
          reduction->finish();
          const auto gradients = reduction->gradients();
          const double norm = std::sqrt(
              world.sum(optim::sum_of_squares(counted_parts(reduction->owned(), gradients))));
          reduction->begin_update();
          optimizer->step(gradients, 1e-2, optim::clip_factor(norm, 0.5));
          reduction->end_update();
          model->clear_gradients();
          loss = world.sum(loss);
          if (world.rank() == 0) {
            result.losses.push_back(loss);
            result.norms.push_back(norm);
          }
        }
      });
  return result;
}

void check_curve(const ModelSpec& spec, const Curve& alone, const Degrees& degrees, int stage,
                 bool copied) {
  const Curve found = train(spec, degrees, stage, copied);
  for (std::size_t i = 0; i < alone.losses.size(); ++i) {
    EXPECT_NEAR(found.losses.at(i), alone.losses[i], 1e-4 * alone.losses[i])
        << spec.name << ", stage " << stage << ", copied " << copied << ", step " << i;
    EXPECT_NEAR(found.norms.at(i), alone.norms[i], 1e-3 * alone.norms[i]);
  }
}

TEST(TensorParallel, TrainsWithEveryStageOfSharding) {
  const Curve alone = train(gpt2(), {}, 0);
  EXPECT_LT(alone.losses.back(), 0.8 * alone.losses.front()) << "nothing is learnt";
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool copied : {false, true})
      check_curve(gpt2(), alone, {.dp_shard = 2, .tp = 2}, stage, copied);
  }
  check_curve(gpt2(), alone, {.tp = 2}, 3, false);
  const Curve other = train(llama(), {}, 0);
  check_curve(llama(), other, {.dp_replicate = 2, .tp = 2}, 0, true);
  check_curve(llama(), other, {.tp = 4}, 3, true);
}

/// Bytes that each rank of tp sends for one forward and backward pass in fp32, without data
/// parallelism, and with it all of a step.
double sent(const ModelSpec& spec, int tp, const Data& all, model::Keep keep) {
  double bytes = 0;
  comm::run_on_threads({.size = tp, .arena = false, .timeout = std::chrono::seconds(30)},
                       [&](const comm::Group& world) {
                         const mesh::Mesh mesh(world, {.tp = tp});
                         const BatchShare share(mesh);
                         const auto model = nn::make_model(spec);
                         split_tensors(*model, mesh);
                         model->materialize();
                         fill(*model);
                         checkpoint_activations(
                             *model,
                             std::vector<model::Keep>(static_cast<std::size_t>(spec.layers), keep));
                         const double before = world.bytes_sent();
                         (*model)(all.inputs, context_of(share, all, 0)).backward();
                         if (world.rank() == tp - 1) bytes = world.bytes_sent() - before;
                       });
  return bytes;
}

/// What the planner says of one such pass in bf16, beside which activations are fp32.
double planned(const ModelSpec& spec, int tp, model::Keep keep) {
  plan::Training training;
  training.degrees.tp = tp;
  training.micro_batch = training.global_batch = 4;
  training.sequence = 12;
  training.precision = "bf16";
  training.kept.assign(static_cast<std::size_t>(spec.layers), keep);
  const plan::Cluster shoal{.runtime = plan::Runtime::kShoal};
  double bytes = 0;
  for (const plan::Traffic& part : plan::traffic(spec, training, shoal))
    if (part.technique == "tensor" || part.technique == "vocabulary") bytes += part.bytes;
  return bytes;
}

// The planner's formulas: 8 of b s h (p - 1) / p elements a block, 12 where its forward pass runs
// twice, 10 where the sums of the first are kept; 4 for embedding and head together; two float64 a
// row for the loss.
TEST(TensorParallel, SendsWhatTheFormulasSay) {
  for (const int tp : {2, 4}) {
    const Data all = data(4, 12);
    for (const model::Keep keep :
         {model::Keep::kEverything, model::Keep::kInput, model::Keep::kProducts}) {
      const ModelSpec spec = gpt2();
      const auto hidden = static_cast<double>(spec.hidden);
      double block = plan::tensor_elements(tp, 4, 12, hidden, keep == model::Keep::kInput);
      if (keep == model::Keep::kProducts) block *= 10.0 / 8;
      const double blocks = static_cast<double>(spec.layers) * block;
      const double ends = 4 * 4 * 12 * hidden * (tp - 1) / tp;
      const double losses = 16.0 * 4 * 12 * (tp - 1);
      EXPECT_EQ(sent(spec, tp, all, keep), 4 * (blocks + ends) + losses);
      EXPECT_DOUBLE_EQ(planned(spec, tp, keep), 4 * (blocks + ends) + losses);
    }
  }
}

// Two ranks for each of two key-value heads gather half of its queries, key and value from each
// other, and scatter the sums of their gradients; a forward pass that runs twice gathers twice.
TEST(TensorParallel, SendsWhatTheFormulasSayWithMoreRanksThanKeyValueHeads) {
  const ModelSpec spec = llama();
  const auto layers = static_cast<double>(spec.layers);
  ASSERT_EQ(spec.kv_heads, 2);
  const double group = (2.0 + 2) * static_cast<double>(spec.head_size);
  for (const auto& [keep, stream_passes, gathers] : {std::tuple{model::Keep::kEverything, 8, 2},
                                                     {model::Keep::kInput, 12, 3},
                                                     {model::Keep::kProducts, 10, 3}}) {
    const double stream = stream_passes * static_cast<double>(spec.hidden) * 3 / 4;
    const double heads = gathers * group / 2;
    const double ends = 4 * static_cast<double>(spec.hidden) * 3 / 4;
    const double bytes = 4 * 12 * (4 * (layers * (stream + heads) + ends) + 16 * 3);
    EXPECT_EQ(sent(spec, 4, data(4, 12), keep), bytes) << static_cast<int>(keep);
    EXPECT_DOUBLE_EQ(planned(spec, 4, keep), bytes) << static_cast<int>(keep);
  }
}

std::string refusal(const ModelSpec& spec, int tp) {
  std::string text;
  comm::run_on_threads({.size = tp, .arena = false, .timeout = std::chrono::seconds(30)},
                       [&](const comm::Group& world) {
                         const mesh::Mesh mesh(world, {.tp = tp});
                         const auto model = nn::make_model(spec);
                         const std::string said = error_text([&] { split_tensors(*model, mesh); });
                         if (world.rank() == 0) text = said;
                       });
  return text;
}

TEST(TensorParallel, RefusesDegreesThatDoNotDivide) {
  EXPECT_THAT(refusal(gpt2(), 3),
              HasSubstr("blocks.0.attention.qkv: tp = 3: must divide heads = 4, as 2 or 4 does"));
  ModelSpec spec = gpt2();
  spec.ffn = 21;
  EXPECT_THAT(refusal(spec, 2), HasSubstr("blocks.0.mlp.up: tp = 2: must divide ffn = 21"));
  spec = gpt2();
  spec.vocab = 1;
  EXPECT_THAT(refusal(spec, 2), HasSubstr("embedding.tokens: tp = 2: is more than"));
  spec = llama();
  spec.heads = 12, spec.kv_heads = 4;
  EXPECT_THAT(refusal(spec, 6), HasSubstr("tp = 6: must divide kv_heads = 4 or be a multiple"));
  spec = llama();
  spec.head_size = 5, spec.heads = 6, spec.kv_heads = 1, spec.ffn = 24;
  spec.positions = model::Positions::kLearned;
  EXPECT_THAT(refusal(spec, 6), HasSubstr("whose 40 rows they do not divide"));
  EXPECT_THAT(refusal(*model::named_model("mlp-digits"), 2),
              HasSubstr("divides transformers only"));
}

// On an undivided stream all ranks would compute the same, and count it twice.
TEST(TensorParallel, RecordsGradientsOfADividedStreamOnly) {
  comm::run_on_threads({.size = 2, .arena = false, .timeout = std::chrono::seconds(30)},
                       [&](const comm::Group& world) {
                         const mesh::Mesh mesh(world, {.tp = 2});
                         const auto model = nn::make_model(gpt2());
                         split_tensors(*model, mesh);
                         model->materialize();
                         fill(*model);
                         const Data all = data(2, 8);
                         EXPECT_THAT(error_text([&] { (*model)(all.inputs, nn::Context()); }),
                                     HasSubstr("the stream must be divided"));
                         const at::NoGradGuard no_grad;
                         nn::Context context;
                         context.labels = all.labels;
                         EXPECT_THAT(error_text([&] { (*model)(all.inputs, context); }),
                                     HasSubstr("a loss needs the rows of the stream"));
                       });
}

TEST(CutStream, CutsSamplesWhereTheyDivideElseColumns) {
  const nn::Stream samples = cut_stream(4, 7, 2, 1);
  EXPECT_EQ(std::tuple(samples.dim, samples.begin, samples.count, samples.whole),
            std::tuple(0, 2, 2, 4));
  const nn::Stream columns = cut_stream(3, 7, 2, 0);
  EXPECT_EQ(std::tuple(columns.dim, columns.begin, columns.count, columns.whole),
            std::tuple(1, 0, 4, 7));
  EXPECT_FALSE(cut_stream(4, 7, 1, 0).divided());
}

}  // namespace
}  // namespace shoal::parallel::tensor_parallel_test
