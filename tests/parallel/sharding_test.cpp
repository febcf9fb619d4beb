#include "shoal/parallel/shard/sharding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/comm/world.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"

namespace shoal::parallel {
namespace {

using Way = ShardingOptions::Way;
using By = Wrapping::By;
constexpr int kSteps = 20, kSequences = 12;

plan::ModelSpec tiny() {
  plan::ModelSpec spec = *plan::named_model("gpt2-tiny");
  spec.layers = 2, spec.hidden = 32, spec.heads = 2, spec.kv_heads = 2, spec.head_size = 16, spec.ffn = 72, spec.vocab = 67, spec.sequence = 16;
  spec.dropout = 0.1;
  return spec;
}

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

/// AdamW with clipping on the same twelve sequences a step, whatever the number of ranks. Its epsilon keeps what has no gradient but rounding (the
/// bias of keys) from being scaled up.
Result train(nn::Model& model, GradientReduction& reduction, const comm::Group& world, int micro_batches) {
  std::vector<optim::Slice> slices;
  for (const OwnedRange& range : reduction.owned())
    if (range.parameter->requires_grad()) slices.push_back({range.parameter->name(), range.values, range.parameter->decay()});
  const auto optimizer = optim::make_optimizer(slices, optim::AdamWOptions{.epsilon = 1e-5, .weight_decay = 0.1});
  const std::int64_t share = kSequences / world.size(), rows = share / micro_batches;
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0;
    for (int micro = 0; micro < micro_batches; ++micro) {
      reduction.begin(micro, micro_batches);
      nn::Context context;
      context.key = Key(3).child(static_cast<std::uint64_t>(step));
      const std::int64_t first = world.rank() * share + micro * rows;
      context.samples = at::arange(first, first + rows, at::kLong);
      const at::Tensor tokens = (context.samples.view({-1, 1}) * 29 + at::arange(17, at::kLong) * at::arange(17, at::kLong) + 31 * step).remainder(7);
      context.labels = tokens.slice(1, 1, 17).contiguous();
      context.loss_scale = 1.0 / (16 * kSequences);
      const at::Tensor value = model(tokens.slice(1, 0, 16).contiguous(), context);
      value.backward();
      loss += value.item<double>();
    }
    reduction.finish();
    const at::Tensor total = at::empty({1}, at::kDouble).fill_(loss);
    world.all_reduce(total);
    result.losses.push_back(total.item<double>());
    const auto gradients = reduction.gradients();
    const double norm = optim::global_norm(optim::sum_of_squares(gradients), reduction.cut_over());
    reduction.begin_update();
    optimizer->step(gradients, 3e-3, optim::clip_factor(norm, 0.5));
    reduction.end_update();
    model.clear_gradients();
  }
  return result;
}

void keep_weights(const nn::Model& model, Result& result) {
  for (const auto& parameter : model.parameters()) result.weights.push_back(parameter->tensor().detach().clone());
}

Result alone() {
  const auto model = nn::make_model(tiny());
  model->materialize();
  model->reset_parameters(Key(1));
  Result result = train(*model, *reduce_after_backward(*model, {}), {}, 1);
  keep_weights(*model, result);
  return result;
}

using Maker = std::unique_ptr<Sharding> (*)(nn::Module&, const mesh::Mesh&, const ShardingOptions&);

Result sharded(int replicas, int shards, const ShardingOptions& options, int micro_batches, Maker make = sharded_data_parallel) {
  Result kept;
  comm::run_on_threads({.size = replicas * shards, .arena = false, .timeout = std::chrono::seconds(20)}, [&](const comm::Group& world) {
    const auto model = nn::make_model(tiny());
    const auto sharding = make(*model, mesh::Mesh(world, {{"replicate", replicas}, {"shard", shards}}), options);
    sharding->reset_parameters(Key(1));
    Result result = train(*model, *sharding, world, micro_batches);
    sharding->unshard();
    keep_weights(*model, result);
    sharding->reshard();
    world.barrier();
    if (world.rank() == 0) kept = std::move(result);
    world.barrier();
  });
  return kept;
}

/// 1e-5 relative over 20 steps is what issue 5 promises in fp32; of a whole parameter, by its largest element.
void expect_same(const Result& a, const Result& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 1e-5 * b.losses[i]) << what << ", step " << i;
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (std::size_t i = 0; i < a.weights.size(); ++i)
    EXPECT_LE((a.weights[i] - b.weights[i]).norm().item<double>(), 1e-5 * b.weights[i].norm().item<double>() + 1e-6) << what << ", parameter " << i;
}

TEST(Sharding, EveryStageAndWayTrainsAsOneRank) {
  const Result reference = alone();
  EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.5) << "nothing was learnt: the comparison would show nothing";
  for (const ShardStage stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
    for (const int ranks : {1, 2, 3, 4})
      for (const Way way : {Way::kShared, Way::kCopied})
        expect_same(sharded(1, ranks, {.stage = stage, .way = way}, 1 + ranks % 2), reference,
                    fmt::format("stage {}, {} ranks, way {}", static_cast<int>(stage), ranks, static_cast<int>(way)));
    expect_same(sharded(2, 2, {.stage = stage, .way = Way::kCopied}, 3), reference, "hybrid, copied");
    expect_same(sharded(2, 2, {.stage = stage}, 1), reference, "hybrid, shared");
    expect_same(sharded(1, 3, {.stage = stage}, 2, sharding_by_hand), reference, "by hand");
  }
}

TEST(Sharding, EveryWrappingTrainsAsOneRank) {
  const Result reference = alone();
  for (const Way way : {Way::kShared, Way::kCopied})
    for (const Wrapping& wrapping : {Wrapping{.by = By::kSize, .parameters = 2000}, Wrapping{.by = By::kName, .names = {"blocks.*.mlp"}},
                                     Wrapping{.by = By::kName, .names = {"blocks.1", "head"}}, Wrapping{.by = By::kWhole}})
      for (const bool reshard : {true, false})
        expect_same(sharded(1, 2, {.wrapping = wrapping, .ahead = reshard ? 2 : 0, .reshard_after_forward = reshard, .way = way}, 2), reference,
                    fmt::format("by {}, reshard {}", static_cast<int>(wrapping.by), reshard));
  expect_same(sharded(1, 2, {.stage = ShardStage::kGradients, .reduce_every_micro_batch = true}, 3), reference, "reduced every micro-batch");
}

TEST(Sharding, TheTableGathersAheadAndReleases) {
  const schedule::ShardPlan plan{.reads = {{0}, {1}, {2}, {3, 0}}, .parent = {-1, -1, -1, -1}};
  const auto table = schedule::shard_table(plan);
  EXPECT_EQ(schedule::to_string(table),
            "gather 0, gather 1, forward 0, gather 2, forward 1, release 1, gather 3, forward 2, release 2, forward 3, gather 2, backward 3, "
            "release 3, gather 1, backward 2, release 2, backward 1, release 1, backward 0, release 0");
  EXPECT_EQ(schedule::most_gathered(table), 3);
}

}  // namespace
}  // namespace shoal::parallel
