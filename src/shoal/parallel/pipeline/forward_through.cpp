#include "shoal/parallel/pipeline/forward_through.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace shoal::parallel {
namespace {

at::Tensor forward(const Stage& stage, at::Tensor value, const nn::Context& context,
                   Sharding* sharding) {
  const auto parameters = sharding ? stage.parameters() : Parameters();
  if (sharding) {
    sharding->gather(parameters);
    sharding->wait_for(parameters);
  }
  for (const auto& unit : stage.units) value = (*unit)(value, context);
  if (sharding) sharding->release(parameters);
  return value;
}

}  // namespace

at::Tensor forward_through(const Stages& stages, const schedule::Schedule& table,
                           const comm::Group& group, const at::Tensor& input,
                           const nn::Context& context, std::int64_t outputs, Sharding* sharding) {
  const at::NoGradGuard no_grad;
  at::Tensor value = input;
  for (const Stage& stage : stages.local) {
    // The rank that has the value.
    const int before = stage.number == 0 ? group.rank() : table.rank_of_stage[stage.number - 1];
    if (before != group.rank()) {
      value = at::empty(stages.input_shape(stage.number, input, context.stream), at::kFloat);
      group.recv(value, before, static_cast<std::uint32_t>(stage.number));
    }
    value = forward(stage, std::move(value), context, sharding);
    const int next = stage.number + 1;
    if (next < table.stages() && table.rank_of_stage[next] != group.rank()) {
      group.send(value.contiguous(), table.rank_of_stage[next], static_cast<std::uint32_t>(next));
    }
  }
  const int last = table.rank_of_stage.back();
  if (group.rank() != last) {
    auto shape = input.sizes().vec();
    if (stages.of_tokens) shape.push_back(0);
    shape.back() = outputs;
    value = at::empty(shape, at::kFloat);
  }
  value = value.contiguous();
  group.broadcast(value, last);
  return value;
}

}  // namespace shoal::parallel
