#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/ops/differentiable.h"
#include "shoal/schedule/timeline.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

// Stages that take the times that a test gives them, and compute next to nothing.
namespace shoal::parallel {

/// Lets so many seconds pass on a rank.
using Spend = std::function<void(double seconds)>;

/// A unit that takes its times, in seconds, for its output, for the gradient of its input,
/// and for that of its weight. It passes x on; the last one sums it up.
class TimedUnit final : public nn::Module {
 public:
  TimedUnit(const schedule::StageCost& times, bool last, Spend spend)
      : times_(times), last_(last), spend_(std::move(spend)) {
    weight_ = parameter("weight", {1}, model::Init::kOnes);
  }

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context&) override {
    const ops::Weight weight = weight_->weight();
    const auto backward = [sink = weight.sink, times = times_, spend = spend_](
                              const ops::Tensors&, const ops::Tensors& gradients) {
      spend(times.input_gradient);
      const auto write = [dy = gradients[0], times, spend](const at::Tensor& target,
                                                           bool accumulate) {
        spend(times.weight_gradient);
        accumulate ? target.add_(dy.sum()) : target.fill_(dy.sum());
      };
      return ops::Tensors{gradients[0], ops::deliver_later(sink, write)};
    };
    const at::Tensor y = ops::differentiable("timed", {x, weight.tensor}, [&](const ops::Wanted&) {
      spend_(times_.forward);
      return ops::Recorded{{x.detach().clone()}, {}, backward};
    })[0];
    return last_ ? y.sum() : y;
  }

 private:
  schedule::StageCost times_;
  bool last_;
  Spend spend_;
  std::shared_ptr<nn::Parameter> weight_;
};

/// The stages of one rank, each a timed unit with its costs in seconds.
inline Stages timed_stages(const schedule::Schedule& table,
                           const std::vector<schedule::StageCost>& costs, int rank,
                           const Spend& spend) {
  Stages stages{{}, {}, std::vector<std::int64_t>(table.stages(), 3), false};
  for (int stage = 0; stage < table.stages(); ++stage) {
    if (table.rank_of_stage[stage] != rank) continue;
    const auto unit = std::make_shared<TimedUnit>(costs[stage], stage + 1 == table.stages(), spend);
    unit->materialize();
    unit->reset_parameters(Key(1));
    stages.local.push_back({stage, {unit}});
  }
  return stages;
}

/// The micro-batches that such stages take: 6 ones each.
inline std::vector<MicroBatch> timed_batch(int micro_batches) {
  std::vector<MicroBatch> batch(static_cast<std::size_t>(micro_batches));
  for (MicroBatch& one : batch) {
    one.input = at::ones({2, 3}, at::kFloat);
    one.context.labels = at::ones({2}, at::kLong);
  }
  return batch;
}

}  // namespace shoal::parallel
