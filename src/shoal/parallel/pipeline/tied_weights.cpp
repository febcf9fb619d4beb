#include "shoal/parallel/pipeline/tied_weights.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shoal::parallel {

TiedWeights::TiedWeights(const Stages& stages, const comm::Group& group) {
  for (const TiedWeight& weight : stages.tied) {
    const auto place = std::find(weight.ranks.begin(), weight.ranks.end(), group.rank());
    const bool holds = place != weight.ranks.end();
    // Every rank takes part in the split; the key makes the first stage's rank the first.
    const comm::Group holders =
        group.split(holds ? 0 : -1, static_cast<int>(place - weight.ranks.begin()));
    if (holds) weights_.emplace_back(weight.parameter, holders);
  }
}

void TiedWeights::reduce(const std::vector<OwnedRange>& owned,
                         std::vector<at::Tensor>& gradients) const {
  std::size_t trained = 0;
  for (const OwnedRange& range : owned) {
    if (!range.parameter->requires_grad()) continue;
    at::Tensor& gradient = gradients.at(trained++);
    const comm::Group group = holders(*range.parameter);
    if (group.size() == 1 || range.begin == range.end) continue;
    if (group.sum(gradient.defined() ? 1 : 0) == 0) continue;
    if (!gradient.defined())
      gradient = at::zeros(range.values.sizes(), range.parameter->gradient_type());
    group.all_reduce(gradient);
  }
}

std::vector<OwnedRange> TiedWeights::mark(std::vector<OwnedRange> owned) const {
  for (OwnedRange& range : owned) {
    const comm::Group group = holders(*range.parameter);
    range.tie = group.rank();
    range.ties = group.size();
  }
  return owned;
}

comm::Group TiedWeights::holders(const nn::Parameter& parameter) const {
  for (const auto& [weight, group] : weights_)
    if (weight.get() == &parameter) return group;
  return {};
}

}  // namespace shoal::parallel
