#include "shoal/train/elastic/round_state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"
#include "shoal/optim/clipping.h"
#include "shoal/train/job_options.h"

namespace shoal::train {
namespace {

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
  const auto& slices = run.optimizer->slices();
  // A rank that owns nothing encodes nothing.
  if (!slices.empty()) outer.coding.key = outer.coding.key.child(slices.front().name);
  return outer;
}

RunRecord record_of_all(RunRecord record) {
  record.loss_scale.reset();
  record.members.clear();
  record.exchanges_after = 0;
  return record;
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

at::Tensor RoundState::difference(double weight) const {
  at::Tensor difference;
  {
    const ScopedCategory category(MemoryCategory::kCommunication);
    difference = at::empty({values_}, at::kFloat);
  }
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const std::int64_t count = anchors_[i].numel();
    optim::write_difference(span_of(anchors_[i]), span_of(run_.optimizer->master(i)), weight,
                            span_of(difference.narrow(0, begin, count)));
    begin += count;
  }
  return difference;
}

at::Tensor RoundState::all(const std::vector<at::Tensor>& parts) const {
  if (parts.empty()) return {};
  const ScopedCategory category(MemoryCategory::kOptimizer);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& part : parts) flat.push_back(part.view({-1}));
  return at::cat(flat);
}

RoundState::Next RoundState::moved_by(const at::Tensor& sum, const MemberRanks& ranks) const {
  const double squares = ranks.sum(optim::sum_of_squares({sum}));
  // The sum has the same bits on all members, so that all throw, or none.
  if (!std::isfinite(squares)) {
    throw FailedTogether(
        Error(ErrorKind::kNonFinite, "elastic",
              fmt::format("the norm of the members' mean difference is {}", std::sqrt(squares)))
            .hint("a member's parameters are not finite, or have gone very far"));
  }
  Next next{.anchor = all(anchors_), .momentum = all(momenta_)};
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

}  // namespace shoal::train
