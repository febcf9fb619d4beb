#include "shoal/parallel/data/joined_reduction.h"

namespace shoal::parallel {

JoinedRanges::JoinedRanges(const nn::Module& model, std::vector<const GradientReduction*> parts)
    : parts_(std::move(parts)) {
  for (const auto& parameter : model.parameters()) {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      std::size_t trained = 0;
      for (const OwnedRange& range : parts_[p]->owned()) {
        if (range.parameter == parameter) {
          owned_.push_back(range);
          if (parameter->requires_grad()) places_.emplace_back(p, trained);
        }
        trained += range.parameter->requires_grad() ? 1 : 0;
      }
    }
  }
}

std::vector<at::Tensor> JoinedRanges::gradients() const {
  std::vector<std::vector<at::Tensor>> of_parts;
  for (const GradientReduction* part : parts_) of_parts.push_back(part->gradients());
  std::vector<at::Tensor> all;
  for (const auto& [part, index] : places_) all.push_back(of_parts[part].at(index));
  return all;
}

}  // namespace shoal::parallel
