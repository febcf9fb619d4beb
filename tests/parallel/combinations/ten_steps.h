#pragma once

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/optim/optimizer.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/train/router_balance.h"
#include "shoal/train/step.h"
#include "tests/parallel/combinations/combination.h"

// Ten steps in fp32, from the seed, through the step of a job: initial weights, losses, norms of
// the gradient and weights against those of other meshes.
namespace shoal::parallel {

/// Two steps without clipping, whose updates no sum over all parameters enters, so that a pipeline
/// has the bits of the same mesh without one; then eight that are clipped.
inline constexpr int kUnclippedSteps = 2;
inline constexpr double kLearningRate = 1e-2, kClipNorm = 0.25;
inline constexpr std::int64_t kShortColumns = 8;
/// The bound of losses, and of norms relative to themselves: a tenth of what is promised, and ten
/// times what rounding makes of both.
inline constexpr double kBound = 1e-5;

/// Whole parameters, put together from the ranges of all ranks, which are threads.
class WholeWeights {
 public:
  /// Takes the values of ranges that this rank is the first to own.
  void add(const std::vector<OwnedRange>& owned) {
    const std::lock_guard lock(mutex_);
    for (const OwnedRange& range : owned) {
      if (range.begin == range.end || range.owner() != 0) continue;
      at::Tensor& whole = of_[range.parameter->name()];
      if (!whole.defined())
        whole = at::full(range.parameter->global_shape(), std::nan(""), at::kFloat);
      const at::Tensor numbers = at::arange(whole.numel(), at::kLong).view(whole.sizes());
      whole.view({-1}).index_copy_(0, range_of(numbers, range), range.values.detach().view({-1}));
    }
  }
  /// Compares the bits of all ranges of this rank.
  void expect_equal(const std::vector<OwnedRange>& owned, const std::string& where) const {
    for (const OwnedRange& range : owned) {
      if (range.begin == range.end) continue;
      const auto whole = of_.find(range.parameter->name());
      ASSERT_NE(whole, of_.end()) << where << ": nobody owns " << range.parameter->name();
      EXPECT_TRUE(range.values.detach().view({-1}).equal(range_of(whole->second, range)))
          << where << ": " << range.parameter->name();
    }
  }
  /// Returns the name of a parameter that has other bits in `other`, or is not in it; empty: none.
  std::string differs_from(const WholeWeights& other) const {
    for (const auto& [name, whole] : of_) {
      const auto same = other.of_.find(name);
      if (same == other.of_.end() || !whole.equal(same->second)) return name;
    }
    return of_.size() == other.of_.size() ? "" : "of another number";
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> of_;
};

/// Ten steps of a model on some mesh.
struct TenSteps {
  std::vector<double> losses;
  std::vector<double> norms;  ///< of the gradient, before clipping
  WholeWeights initial;
  WholeWeights unclipped;  ///< after the steps without clipping
  WholeWeights last;
};

/// This rank's samples of a step, all of them its own, in the micro-batches of `way`.
inline train::RankBatch batch_of(int step, const BatchShare& share, const Combination& way) {
  const Data all = data(way.steps * way.samples, kShortColumns);
  const std::int64_t own = way.samples / share.ranks();
  const std::int64_t rows = own / way.micro_batches;
  train::RankBatch batch{.micro_batches = {}, .first_sample = share.rank() * own};
  for (int i = 0; i < way.micro_batches; ++i) {
    const std::int64_t first = step * way.samples + batch.first_sample + i * rows;
    batch.micro_batches.push_back(
        {all.inputs.narrow(0, first, rows), all.labels.narrow(0, first, rows), 0});
  }
  return batch;
}

/// Moves biases and norms away from 0 and 1, where what is counted twice or left out does not show.
inline void perturb(const std::vector<OwnedRange>& owned) {
  for (const OwnedRange& range : owned) {
    const auto& parameter = *range.parameter;
    if (range.begin == range.end || parameter.global_shape().size() > 1) continue;
    const double centre = parameter.init() == model::Init::kOnes ? 1 : 0;
    const at::Tensor change = (perturbed(parameter) - centre).to(at::kFloat);
    range.values.detach().view({-1}).add_(range_of(change, range), 0.5);
  }
}

/// One rank's part of ten steps. The epsilon of AdamW keeps what has no gradient but rounding (the
/// bias of keys) from being scaled up. Collective.
class TenStepsOfARank {
 public:
  TenStepsOfARank(nn::Model& model, const ModelSpec& spec, GradientReduction& reduction,
                  std::vector<OwnedRange> owned, const comm::Group& world, const BatchShare& share)
      : owned_(std::move(owned)),
        world_(world),
        share_(share),
        optimizer_(optim::make_optimizer(
            train::slices_of(owned_), optim::AdamWOptions{.epsilon = 1e-5, .weight_decay = 0.1})),
        balance_(spec, reduction.owned(), world),
        step_(model, *optimizer_, reduction, world, Key(9), nullptr, share) {
    step_.balance_routers(balance_);
  }
  train::TrainingStep& step() { return step_; }

  /// `way` says how many steps of how many samples and micro-batches.
  void run(const Combination& way, TenSteps& result) {
    for (int i = 0; i < way.steps; ++i) {
      const train::RankBatch batch = batch_of(i, share_, way);
      const double labels = world_.sum(train::count_labels(batch.micro_batches, share_));
      const train::StepResult done =
          step_.run(batch, {.step = i,
                            .learning_rate = kLearningRate,
                            .clip_norm = i < kUnclippedSteps ? 0 : kClipNorm,
                            .labels = labels});
      if (i + 1 == kUnclippedSteps) result.unclipped.add(owned_);
      if (world_.rank() == 0) {
        result.losses.push_back(done.loss);
        result.norms.push_back(done.grad_norm);
      }
    }
    result.last.add(owned_);
    world_.barrier();
  }

 private:
  std::vector<OwnedRange> owned_;
  comm::Group world_;
  BatchShare share_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  train::RouterBalance balance_;
  train::TrainingStep step_;
};

/// Trains on one rank, with nothing of `apply`, as many samples a step.
inline void ten_steps_alone(const ModelSpec& spec, std::int64_t samples, TenSteps& result) {
  const auto model = nn::make_model(spec);
  model->materialize();
  model->reset_parameters(Key(4));
  const auto reduction = reduce_after_backward(*model, {});
  const std::vector<OwnedRange> owned = reduction->owned();
  result.initial.add(owned);
  perturb(owned);
  TenStepsOfARank(*model, spec, *reduction, owned, {}, {}).run({.samples = samples}, result);
  for (int i = kUnclippedSteps; i < kTrainingSteps; ++i)
    EXPECT_GT(result.norms[i], kClipNorm) << spec.name << ": step " << i << " clips nothing";
  EXPECT_LT(result.losses.back(), result.losses.front() - 0.1)
      << spec.name << ": nothing is learnt, so the comparison would show nothing";
}

/// Trains as one rank of `way`, and compares with one rank alone: the initial weights, bit for bit;
/// and among the ranks that hold copies of the last weights.
inline void ten_steps_of(const mesh::Mesh& mesh, const comm::Group& world, const Combination& way,
                         const ModelSpec& spec, const TenSteps& alone, TenSteps& result) {
  const std::string where =
      fmt::format("{}, {}, rank {}", way.whole_text(), spec.name, world.rank());
  const auto model = nn::make_model(spec);
  const ApplyOptions options = options_of(way, spec);
  Applied applied = apply(*model, mesh, options);
  applied.reset_parameters(*model, Key(4));
  const std::vector<OwnedRange> owned = applied.owned(*model, mesh);
  alone.initial.expect_equal(owned, where + ", initial weights");
  perturb(owned);
  if (applied.sharding != nullptr) applied.sharding->end_update();
  reduce_gradients(applied, *model, mesh);
  const BatchShare share(mesh, last_stage_of(options), way.context);
  TenStepsOfARank rank(*model, spec, *applied.reduction, owned, world, share);
  std::optional<Pipeline> pipeline;
  if (way.staged()) {
    pipeline.emplace(
        mesh.along(mesh::Axis::kPipeline), options.table, applied.stages,
        pipeline_events(*applied.reduction, applied.stages.local, {}, applied.sharding));
    rank.step().run_through(*pipeline, *applied.tied);
  }
  rank.run(way, result);
  result.last.expect_equal(owned, where + ", copies after ten steps");
}

/// Compares losses, and norms of gradients, of which AdamW would hide a constant factor, of the
/// first `steps` steps.
inline void compare_ten_steps(const TenSteps& found, const TenSteps& expected, std::size_t steps,
                              const std::string& where) {
  ASSERT_EQ(found.losses.size(), steps) << where;
  ASSERT_GE(expected.losses.size(), steps) << where;
  for (std::size_t i = 0; i < found.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], kBound) << where << ", loss of step " << i + 1;
    EXPECT_NEAR(found.norms[i], expected.norms[i], kBound * expected.norms[i])
        << where << ", norm of step " << i + 1;
  }
}

}  // namespace shoal::parallel
