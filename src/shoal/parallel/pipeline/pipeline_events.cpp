#include "shoal/parallel/pipeline/pipeline_events.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace shoal::parallel {

PipelineEvents pipeline_events(GradientReduction& reduction, const std::vector<Stage>& stages,
                               std::function<void(int, double)> loss, Sharding* sharding) {
  auto unfinished = std::make_shared<int>(0);
  PipelineEvents events;
  // Two passes as the reduction counts them: what becomes ready in the first stays, what becomes
  // ready in the second is the gradient of the whole step, and may leave.
  events.begin = [&reduction, count = static_cast<int>(stages.size()), unfinished] {
    *unfinished = count;
    reduction.begin(0, 2);
  };
  events.finishing = [&reduction, unfinished](int) {
    if (--*unfinished == 0) reduction.begin(1, 2);
  };
  events.loss = std::move(loss);
  if (!sharding) return events;
  const auto parameters_of = [&stages](int number) {
    const auto stage = std::find_if(stages.begin(), stages.end(),
                                    [number](const auto& one) { return one.number == number; });
    return stage->parameters();
  };
  events.gather = [=](int stage) { sharding->gather(parameters_of(stage)); };
  events.gathered = [=](int stage) { sharding->wait_for(parameters_of(stage)); };
  events.release = [=](int stage) { sharding->release(parameters_of(stage)); };
  return events;
}

PipelineEvents events_in_turn(GradientReduction& reduction, int micro_batches,
                              std::function<void(int, double)> loss,
                              std::function<void(const schedule::Action&)> action) {
  PipelineEvents events;
  // Before the forward pass: where parameters are gathered as modules use them, it begins with the
  // first module.
  events.action = [&reduction, micro_batches,
                   action = std::move(action)](const schedule::Action& next) {
    if (action) action(next);
    if (next.kind == schedule::Kind::kForward) reduction.begin(next.micro_batch, micro_batches);
  };
  events.loss = std::move(loss);
  return events;
}

}  // namespace shoal::parallel
