// Pipelines with what else may be done to a model, and what a pass keeps in memory.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/comm/allocator.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "shoal/wire/arena.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::combinations_test {
namespace {

using schedule::Schedule;

constexpr int kRanks = 3, kMicroBatches = 6;
constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

/// What is done to a model before it gets memory, and in a pipeline before it is cut.
using Preparation = std::function<void(nn::Model&)>;

/// Compares each schedule with one rank, bit for bit. `recompute_logits`: the pipeline's head
/// computes its logits twice, and that of the one rank does not.
void expect_same_bits(const model::ModelSpec& spec, const Preparation& prepare,
                      std::vector<MicroBatch> batch, const std::string& where,
                      bool recompute_logits = false) {
  const auto whole = nn::make_model(spec);
  prepare(*whole);
  fill(*whole);
  const Reference reference = run_alone(*whole, batch);
  for (MicroBatch& one : batch) one.context.recompute_logits = recompute_logits;
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    for (const char* name : kNames) {
      const int micro_batches = static_cast<int>(batch.size());
      const Schedule table = schedule::make_schedule(name, kRanks, chunks_of(name), micro_batches);
      const auto model = nn::make_model(spec);
      prepare(*model);
      const auto units = static_cast<std::int64_t>(model->units().size());
      Stages stages = cut_stages(*model, table, even_stages(units, table.stages()), group.rank());
      fill(*model);
      Pipeline pipeline(group, table, std::move(stages));
      EXPECT_EQ(group.sum(pipeline.run(batch)), reference.loss) << where << " " << name;
      for (const auto& parameter : model->parameters()) {
        EXPECT_TRUE(parameter->gradient().equal(reference.gradients.at(parameter->name())))
            << where << " " << name << " " << parameter->name();
      }
    }
  });
}

TEST(PipelineCombinations, BlocksThatAreRecomputed) {
  using model::Keep;
  const auto batch = step_of(kMicroBatches);
  for (const char* family : {"gpt2-tiny", "llama-tiny"}) {
    expect_same_bits(
        tiny_spec(family, false),
        [](nn::Model& model) {
          checkpoint_activations(model, {Keep::kInput, Keep::kProducts, Keep::kEverything,
                                         Keep::kInput, Keep::kProducts, Keep::kInput});
        },
        batch, family);
  }
}

// With more than 1,024 rows the head finishes its gradients in forward, block by block, or computes
// its logits again for that of its weight.
TEST(PipelineCombinations, AHeadWhoseGradientsAreFinishedInForward) {
  for (const bool recompute : {false, true}) {
    expect_same_bits(
        tiny_spec("llama-tiny", false), [](nn::Model&) {}, step_of(kMicroBatches, 0, 130),
        recompute ? "logits twice" : "many rows", recompute);
  }
}

// A gradient that forward has finished is written where the input's gradient is, as there is
// nothing to put off; from logits that are computed again it comes with the other weights'.
TEST(PipelineCombinations, AHeadThatRecomputesItsLogitsWritesItsGradientWithTheOtherWeights) {
  auto batch = step_of(kMicroBatches, 0, 130);
  for (const bool recompute : {false, true}) {
    for (MicroBatch& one : batch) one.context.recompute_logits = recompute;
    comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
      const Schedule table = schedule::make_schedule("zb-h1", kRanks, 1, kMicroBatches);
      schedule::Kind running{};
      Rank rank(tiny_spec("llama-tiny", false), table, even_stages(8, kRanks), group,
                {.action = [&](const schedule::Action& action) { running = action.kind; }});
      const auto head = rank.model->find_parameter("head.output.weight");
      const bool last = group.rank() + 1 == kRanks;
      ASSERT_EQ(head != nullptr, last);
      std::vector<schedule::Kind> written;
      if (last) head->on_gradient_ready([&](nn::Parameter&) { written.push_back(running); });
      rank.pipeline->run(batch);
      EXPECT_EQ(written.empty(), !last);
      EXPECT_THAT(written, testing::Each(recompute ? schedule::Kind::kWeightGradient
                                                   : schedule::Kind::kInputGradient));
    });
  }
}

// The factors of products are rounded.
TEST(PipelineCombinations, SixteenBitWeightsAndGradients) {
  for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16}) {
    expect_same_bits(
        tiny_spec("llama-tiny", false),
        [gradient](nn::Model& model) {
          for (const auto& parameter : model.parameters())
            if (parameter->global_shape().size() > 1) parameter->set_types(at::kBFloat16, gradient);
        },
        step_of(kMicroBatches), c10::toString(gradient));
  }
}

TEST(PipelineCombinations, APerceptronWhoseStagesHaveInputsOfTheirOwnWidths) {
  model::ModelSpec spec = *model::named_model("mlp-digits");
  spec.inputs = 9;
  spec.outputs = 4;
  spec.widths = {7, 11, 5, 13, 6};
  std::vector<MicroBatch> batch(kMicroBatches);
  for (int i = 0; i < kMicroBatches; ++i) {
    // Micro-batches need not have one size.
    const std::int64_t rows = 3 + i % 2;
    batch[i].input = (at::arange(rows * 9, at::kFloat) + i).sin().view({rows, 9});
    batch[i].context.labels = at::arange(rows, at::kLong).remainder(4);
    batch[i].context.loss_scale = 0.125;
  }
  expect_same_bits(
      spec, [](nn::Model&) {}, batch, "mlp");
}

// Two replicas of a pipeline of two ranks. Each reduces the gradients of a stage over the replicas
// while the pipeline goes on: messages and reductions of two groups advance one another.
TEST(PipelineCombinations, GradientsAreReducedOverReplicasAsStagesAreLetGo) {
  const auto spec = tiny_spec("gpt2-tiny", false);
  const auto batch = step_of(2 * kMicroBatches);
  const auto half = [&](int replica) {
    const auto begin = batch.begin() + replica * kMicroBatches;
    return std::vector<MicroBatch>(begin, begin + kMicroBatches);
  };
  std::vector<Reference> reference;
  for (int replica = 0; replica < 2; ++replica) {
    const auto whole = nn::make_model(spec);
    fill(*whole);
    reference.push_back(run_alone(*whole, half(replica)));
  }
  comm::run_on_threads(threads(4), [&](const comm::Group& world) {
    const int replica = world.rank() % 2;
    const comm::Group pipe = world.split(replica, world.rank());
    const comm::Group replicas = world.split(world.rank() / 2, world.rank());
    for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
      const Schedule table = schedule::make_schedule(name, 2, chunks_of(name), kMicroBatches);
      const Stages* stages = nullptr;
      std::vector<comm::Work> works;
      Rank rank(spec, table, even_stages(8, table.stages()), pipe, {.let_go = [&](int number) {
                  for (const Stage& stage : stages->local) {
                    if (stage.number != number) continue;
                    for (const auto& parameter : stage.parameters())
                      works.push_back(replicas.all_reduce(parameter->gradient(), {.async = true}));
                  }
                }});
      stages = &rank.pipeline->stages();
      rank.pipeline->run(half(replica));
      for (comm::Work& work : works) work.order();
      for (const auto& parameter : rank.model->parameters()) {
        const at::Tensor expected = reference[0].gradients.at(parameter->name()) +
                                    reference[1].gradients.at(parameter->name());
        EXPECT_TRUE(parameter->gradient().equal(expected)) << name << " " << parameter->name();
      }
    }
  });
}

std::uint64_t activations() {
  constexpr int kCategory = static_cast<int>(MemoryCategory::kActivations);
  return comm::installed_arena()->ledger().categories[kCategory].in_use;
}

TEST(StagePass, KeepsNoOutputAndAfterTheInputsGradientOnlyFactors) {
  comm::run_on_threads(threads(1), [](const comm::Group&) {
    const auto model = nn::make_model(tiny_spec("gpt2-tiny", false));
    fill(*model);
    const Stage stage{1, {model->units()[1], model->units()[2]}};
    const auto batch = step_of(1);
    at::Tensor x = at::arange(kRows * kColumns * 16, at::kFloat).sin().view({kRows, -1, 16});
    const std::uint64_t before = activations();
    StagePass pass(stage);
    const auto all_bytes = [] { return comm::installed_arena()->ledger().total.in_use; };
    at::Tensor y = pass.forward(x, batch[0].context, true);
    EXPECT_FALSE(y.requires_grad());
    const std::uint64_t with_output = all_bytes();
    const std::uint64_t output_bytes = y.nbytes();
    y.reset();
    // The pass has the input by itself, and counts it as an activation.
    x.reset();
    EXPECT_LE(all_bytes() + output_bytes, with_output) << "the pass keeps its output";
    const std::uint64_t forward = activations() - before;
    const at::Tensor dx = pass.input_gradient(at::full({kRows, kColumns, 16}, 0.5, at::kFloat));
    EXPECT_EQ(dx.sizes(), (std::vector<std::int64_t>{kRows, kColumns, 16}));
    const std::uint64_t factors = activations() - before;
    EXPECT_GT(factors, 0u);
    EXPECT_LT(factors, forward) << "norms, attention and activations are no factors of products";
    pass.weight_gradient();
    EXPECT_EQ(activations(), before);
  });
}

}  // namespace
}  // namespace shoal::parallel::combinations_test
