#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "tests/parallel/combinations/combination.h"

// One step in fp64: the gradient of every parameter against that of one rank.
namespace shoal::parallel {

/// The `count` micro-batches of some samples, as a rank of `share` runs them.
inline std::vector<MicroBatch> micro_batches_of(const BatchShare& share, int count = kMicroBatches,
                                                std::int64_t samples = kSamples) {
  const Data all = data(samples, kColumns);
  const std::int64_t own = samples / share.ranks();
  const std::int64_t rows = own / count;
  std::vector<MicroBatch> batch;
  for (int i = 0; i < count; ++i) {
    const std::int64_t first = share.rank() * own + i * rows;
    MicroBatch one;
    one.context.key = Key(9);
    one.context.micro_batch = i;
    one.context.samples = at::arange(first, first + rows, at::kLong);
    one.context.labels = all.labels.narrow(0, first, rows);
    one.context.loss_scale = 1.0 / 50;
    one.input = share.cut(all.inputs.narrow(0, first, rows), one.context);
    batch.push_back(std::move(one));
  }
  return batch;
}

/// Runs micro-batches one after the other; returns their losses.
inline double run_in_turn(nn::Model& model, const std::vector<MicroBatch>& batch,
                          GradientReduction* reduction = nullptr) {
  double sum = 0;
  const auto count = static_cast<std::int64_t>(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (reduction != nullptr) reduction->begin(static_cast<std::int64_t>(i), count);
    nn::LossSink extra;
    nn::Context context = batch[i].context;
    context.extra_losses = &extra;
    at::Tensor loss = model(batch[i].input, context);
    for (const at::Tensor& more : extra.losses()) loss = loss + more;
    sum += loss.item<double>();
    loss.backward();
    if (reduction != nullptr) reduction->end_backward();
  }
  return sum;
}

/// Loss and gradients of one rank.
struct OneStep {
  double loss = 0;
  double squares = 0;
  std::map<std::string, at::Tensor> gradients;
};

inline OneStep one_step_alone(const ModelSpec& spec, std::int64_t samples = kSamples) {
  const auto model = nn::make_model(spec);
  model->materialize(at::kDouble);
  fill(*model);
  OneStep result;
  result.loss = run_in_turn(*model, micro_batches_of({}, kMicroBatches, samples));
  for (const auto& parameter : model->parameters()) {
    if (!parameter->requires_grad()) continue;
    result.gradients[parameter->name()] = parameter->gradient().clone();
    result.squares += parameter->gradient().square().sum().item<double>();
  }
  return result;
}

/// Compares every gradient of one rank, and the norm over all ranks, with those of one rank alone.
inline void compare_gradients(const comm::Group& world, const std::vector<OwnedRange>& owned,
                              const std::vector<at::Tensor>& gradients, const OneStep& expected,
                              const std::string& where) {
  std::size_t trained = 0;
  for (const OwnedRange& range : owned) {
    if (!range.parameter->requires_grad()) continue;
    const at::Tensor found = gradients.at(trained++);
    if (range.begin == range.end) continue;
    const at::Tensor whole = expected.gradients.at(range.parameter->name());
    const double scale = whole.abs().max().item<double>();
    const double error = (found.reshape({-1}) - range_of(whole, range)).abs().max().item<double>();
    EXPECT_LE(error, 1e-10 * scale)
        << where << ": " << range.parameter->name() << " on rank " << world.rank();
  }
  double squares = 0;
  for (const at::Tensor& part : counted_parts(owned, gradients))
    squares += part.square().sum().item<double>();
  EXPECT_NEAR(world.sum(squares), expected.squares, 1e-10 * expected.squares)
      << where << ": the norm is a partition";
}

/// Compares loss, every gradient and the norm of one rank of `way` with those of one rank alone.
inline void compare_one_step(const mesh::Mesh& mesh, const comm::Group& world,
                             const Combination& way, const ModelSpec& spec,
                             const OneStep& expected) {
  const std::string where = fmt::format("{}, {}", way.whole_text(), spec.name);
  const auto model = nn::make_model(spec);
  ApplyOptions options = options_of(way, spec);
  options.set_types = [](nn::Model& all) {
    for (const auto& parameter : all.parameters()) parameter->set_types(at::kDouble, at::kDouble);
  };
  Applied applied = apply(*model, mesh, options);
  const std::vector<OwnedRange> owned = applied.owned(*model, mesh);
  for (const OwnedRange& range : owned) {
    if (range.begin < range.end)
      range.values.view({-1}).copy_(range_of(perturbed(*range.parameter), range));
  }
  if (applied.sharding != nullptr) applied.sharding->end_update();
  reduce_gradients(applied, *model, mesh);
  const BatchShare share(mesh, last_stage_of(options), way.context);
  const std::vector<MicroBatch> batch = micro_batches_of(share, way.micro_batches, way.samples);
  double loss = 0;
  if (way.staged()) {
    Pipeline pipeline(
        mesh.along(mesh::Axis::kPipeline), options.table, applied.stages,
        pipeline_events(*applied.reduction, applied.stages.local, {}, applied.sharding),
        at::kDouble);
    loss = pipeline.run(batch);
  } else {
    loss = run_in_turn(*model, batch, applied.reduction.get());
  }
  applied.reduction->finish();
  std::vector<at::Tensor> gradients = applied.reduction->gradients();
  if (applied.tied) applied.tied->reduce(owned, gradients);
  EXPECT_NEAR(world.sum(loss), expected.loss, 1e-11) << where;
  compare_gradients(world, owned, gradients, expected, where);
}

}  // namespace shoal::parallel
