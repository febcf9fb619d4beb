#include "shoal/train/elastic/round_state.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"
#include "shoal/optim/clipping.h"
#include "shoal/train/job_options.h"

namespace shoal::train {
namespace {

/// Is worked on by one thread at a time.
constexpr std::int64_t kGrain = 1 << 15;

std::span<float> span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

checkpoint::StateItem item(std::string name, const at::Tensor& tensor) {
  checkpoint::StateItem item;
  item.name = std::move(name);
  item.local = tensor;
  return item;
}

}  // namespace

// As MemberExchange has it: ranks of one job that exchange the same parameters have the same bits.
optim::OuterOptions outer_of_rounds(const JobConfig& config, const Run& run) {
  optim::OuterOptions outer = exchange_options(config).synchronisation.outer;
  outer.coding.key = outer.coding.key.child(run.optimizer->slices().front().name);
  return outer;
}

RoundState::RoundState(Run& run, const optim::OuterOptions& options)
    : run_(run), options_(options) {
  for (std::size_t i = 0; i < run.optimizer->slices().size(); ++i) {
    anchors_.push_back(run.exchange->anchor_of(i));
    values_ += anchors_.back().numel();
    if (const at::Tensor momentum = run.exchange->momentum_of(i); momentum.defined())
      momenta_.push_back(momentum);
  }
}

void RoundState::write_difference(double weight, std::span<float> to) const {
  const auto factor = static_cast<float>(weight);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const std::span<float> anchor = span_of(anchors_[i]);
    const float* const x = run_.optimizer->master(i).const_data_ptr<float>();
    float* const d = to.subspan(begin, anchor.size()).data();
    at::parallel_for(0, static_cast<std::int64_t>(anchor.size()), kGrain,
                     [&](std::int64_t first, std::int64_t end) {
                       for (std::int64_t j = first; j < end; ++j)
                         d[j] = factor * (anchor[static_cast<std::size_t>(j)] - x[j]);
                     });
    begin += anchor.size();
  }
}

at::Tensor RoundState::all(const std::vector<at::Tensor>& parts) const {
  if (parts.empty()) return {};
  const ScopedCategory category(MemoryCategory::kOptimizer);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& part : parts) flat.push_back(part.view({-1}));
  return at::cat(flat);
}

RoundState::Next RoundState::moved_by(const at::Tensor& sum) const {
  Next next{.anchor = all(anchors_),
            .momentum = all(momenta_),
            .norm = std::sqrt(optim::sum_of_squares({sum}))};
  // The sum has the same bits on all members, so that all throw, or none.
  if (!std::isfinite(next.norm)) {
    throw Error(ErrorKind::kNonFinite, "elastic",
                fmt::format("the norm of the members' mean difference is {}", next.norm))
        .hint("a member's parameters are not finite, or have gone very far");
  }
  optim::move_anchor(span_of(next.anchor), span_of(sum), span_of(next.momentum), 1, options_);
  return next;
}

void RoundState::take(const Next& next) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const std::int64_t count = anchors_[i].numel();
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, count); };
    anchors_[i].view({-1}).copy_(part(next.anchor));
    if (!momenta_.empty()) momenta_[i].view({-1}).copy_(part(next.momentum));
    begin += count;
  }
  take_anchor();
}

void RoundState::take_anchor() { run_.exchange->take_anchor(); }

std::vector<checkpoint::StateItem> RoundState::items() const {
  std::vector<checkpoint::StateItem> items;
  const auto& slices = run_.optimizer->slices();
  for (std::size_t i = 0; i < anchors_.size(); ++i)
    items.push_back(item("model." + slices[i].name, anchors_[i]));
  for (std::size_t i = 0; i < momenta_.size(); ++i)
    items.push_back(item("outer.momentum." + slices[i].name, momenta_[i]));
  for (const auto& parameter : run_.model->parameters()) {
    if (!parameter->requires_grad())
      items.push_back(item("model." + parameter->name(), parameter->tensor()));
  }
  return items;
}

std::vector<checkpoint::StateItem> RoundState::items_of(const Next& next) const {
  std::vector<checkpoint::StateItem> items = this->items();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const std::int64_t count = anchors_[i].numel();
    items[i].local = next.anchor.narrow(0, begin, count);
    if (!momenta_.empty()) items[anchors_.size() + i].local = next.momentum.narrow(0, begin, count);
    begin += count;
  }
  return items;
}

StateTensors RoundState::tensors() const {
  return {[this] { return items(); }, [this] { return items(); }, [] {}};
}

}  // namespace shoal::train
