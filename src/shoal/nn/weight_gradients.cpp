#include "shoal/nn/weight_gradients.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace shoal::nn {

void WeightGradients::add(Parameter& parameter, std::function<void()> write) {
  products_.push_back({&parameter, std::move(write)});
}

void WeightGradients::run() {
  // As in backward: nothing here is recorded.
  const c10::AutoGradMode not_recording(false);
  while (!products_.empty()) {
    products_.front().write();
    Parameter& parameter = *products_.front().parameter;
    // The factors go before listeners are called, which may take memory to send the gradient.
    products_.pop_front();
    parameter.late_written();
  }
}

}  // namespace shoal::nn
