#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "shoal/parallel/data/gradient_reduction.h"

namespace shoal::parallel {

/// The ranges and gradients of several reductions, each of which has some parameters of a model, in
/// the order of the model's parameters.
class JoinedRanges {
 public:
  JoinedRanges(const nn::Module& model, std::vector<const GradientReduction*> parts);

  const std::vector<OwnedRange>& owned() const { return owned_; }
  std::vector<at::Tensor> gradients() const;

 private:
  std::vector<const GradientReduction*> parts_;
  std::vector<OwnedRange> owned_;
  /// By trained range: the part that has it, and its place among the part's gradients.
  std::vector<std::pair<std::size_t, std::size_t>> places_;
};

/// Several reductions as one, each of the parameters that have the same holders. Each communicates
/// in groups of its own, so that what one has sent may arrive in any order among the others; every
/// rank ends them in the same order. `Base` is GradientReduction or a kind of it.
template <class Base>
class Joined : public Base {
 public:
  Joined(const nn::Module& model, std::vector<std::unique_ptr<Base>> parts)
      : parts_(std::move(parts)), ranges_(model, pointers()) {}

  void begin(std::int64_t index, std::int64_t count) override {
    end_backward();
    for (const auto& part : parts_) part->begin(index, count);
  }
  void end_backward() override {
    for (const auto& part : parts_) part->end_backward();
  }
  void finish() override {
    // All leave the backward pass before one waits: a peer that is still in its own may need
    // another part of this rank than the one that waits.
    end_backward();
    for (const auto& part : parts_) part->finish();
  }
  const std::vector<OwnedRange>& owned() const override { return ranges_.owned(); }
  std::vector<at::Tensor> gradients() const override { return ranges_.gradients(); }
  void begin_update() override {
    for (const auto& part : parts_) part->begin_update();
  }
  void end_update() override {
    for (const auto& part : parts_) part->end_update();
  }

 protected:
  const std::vector<std::unique_ptr<Base>>& parts() const { return parts_; }

 private:
  std::vector<const GradientReduction*> pointers() const {
    std::vector<const GradientReduction*> list;
    for (const auto& part : parts_) list.push_back(part.get());
    return list;
  }

  std::vector<std::unique_ptr<Base>> parts_;
  JoinedRanges ranges_;
};

}  // namespace shoal::parallel
