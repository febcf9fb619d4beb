#include <map>

#include "shoal/base/even_part.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/data/used_parameters.h"
#include "shoal/parallel/ownership.h"

namespace shoal::parallel {
namespace {

class ReduceAfterBackward final : public GradientReduction {
 public:
  ReduceAfterBackward(const Parameters& parameters, comm::Group group)
      : owned_(whole_ranges(parameters, group)),
        parameters_(trained_among(parameters)),
        group_(std::move(group)) {}

  void begin(std::int64_t, std::int64_t) override {}

  const std::vector<OwnedRange>& owned() const override { return owned_; }
  std::vector<at::Tensor> gradients() const override { return whole_gradients(owned_); }

  void finish() override {
    if (group_.size() == 1) return;
    // All ranks reduce the same gradients in the same order, whichever they use themselves.
    const std::vector<bool> used = agree_on_used(parameters_, group_);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (used[i]) group_.all_reduce(parameters_[i]->gradient());
  }

 private:
  std::vector<OwnedRange> owned_;
  Parameters parameters_;
  comm::Group group_;
};

}  // namespace

std::vector<OwnedRange> whole_ranges(const Parameters& parameters, const comm::Group& holders) {
  std::vector<OwnedRange> ranges;
  for (const auto& parameter : parameters) {
    ranges.push_back({parameter, 0, parameter->tensor().numel(), parameter->tensor().detach(),
                      holders.rank(), holders.size()});
  }
  return ranges;
}

std::vector<OwnedRange> whole_ranges(const nn::Module& model, const mesh::Mesh& mesh) {
  std::map<const nn::Parameter*, OwnedRange> of;
  for (const HeldParameters& set : by_holders(model.parameters(), mesh)) {
    for (OwnedRange& range : whole_ranges(set.parameters, mesh.along(set.holders.axes)))
      of.emplace(range.parameter.get(), std::move(range));
  }
  std::vector<OwnedRange> ranges;
  for (const auto& parameter : model.parameters()) ranges.push_back(of.at(parameter.get()));
  return ranges;
}

std::vector<at::Tensor> whole_gradients(const std::vector<OwnedRange>& owned) {
  std::vector<at::Tensor> gradients;
  for (const OwnedRange& range : owned) {
    if (range.parameter->requires_grad()) {
      const at::Tensor gradient = range.parameter->gradient();
      gradients.push_back(gradient.defined() ? gradient.contiguous() : gradient);
    }
  }
  return gradients;
}

std::vector<at::Tensor> counted_parts(const std::vector<OwnedRange>& owned,
                                      const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> parts;
  std::size_t next = 0;
  for (const OwnedRange& range : owned) {
    if (!range.parameter->requires_grad()) continue;
    const at::Tensor& gradient = gradients.at(next++);
    if (!gradient.defined()) continue;
    const auto [begin, end] =
        even_part_of<std::int64_t>(gradient.numel(), range.owners(), range.owner());
    parts.push_back(gradient.view({-1}).narrow(0, begin, end - begin));
  }
  return parts;
}

std::unique_ptr<GradientReduction> reduce_after_backward(nn::Module& model, comm::Group group) {
  return reduce_after_backward(model.parameters(), std::move(group));
}

std::unique_ptr<GradientReduction> reduce_after_backward(const Parameters& parameters,
                                                         comm::Group group) {
  return std::make_unique<ReduceAfterBackward>(parameters, std::move(group));
}

}  // namespace shoal::parallel
