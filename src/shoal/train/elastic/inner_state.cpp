#include "shoal/train/elastic/inner_state.h"

#include "shoal/optim/optimizer.h"

namespace shoal::train {

void begin_optimizer_anew(Run& run) {
  for (const optim::State& state : run.optimizer->states()) state.tensor.zero_();
  run.optimizer->set_updates(std::vector<std::int64_t>(run.optimizer->slices().size()));
  if (run.loss_scale) run.loss_scale->begin_anew();
}

InnerState::InnerState(const Run& run) : updates_(run.optimizer->updates()) {
  for (const optim::State& state : run.optimizer->states()) states_.push_back(state.tensor.clone());
  if (run.loss_scale) scale_ = run.loss_scale->state();
}

void InnerState::restore(Run& run) const {
  const auto& states = run.optimizer->states();
  for (std::size_t i = 0; i < states.size(); ++i) states[i].tensor.copy_(states_[i]);
  run.optimizer->set_updates(updates_);
  if (scale_) run.loss_scale->restore(*scale_);
}

}  // namespace shoal::train
