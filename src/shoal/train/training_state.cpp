#include "shoal/train/training_state.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/train/member_resumption.h"
#include "shoal/train/state_items.h"

namespace shoal::train {
namespace {

/// Makes the ranks of all members holders of what those of one member hold.
checkpoint::StateItem of_all_members(checkpoint::StateItem item, const MemberExchange& exchange) {
  item.replica += exchange.member() * item.replicas;
  item.replicas *= exchange.members();
  item.holders += kAllMembers;
  return item;
}

}  // namespace

TrainingState::TrainingState(std::vector<parallel::OwnedRange> owned, optim::Optimizer& optimizer,
                             comm::Group group, comm::Group stage)
    : owned_(std::move(owned)),
      optimizer_(optimizer),
      group_(std::move(group)),
      stage_(std::move(stage)),
      updates_(at::zeros({static_cast<std::int64_t>(optimizer.slices().size())}, at::kLong)) {}

void TrainingState::exchange_through(const MemberExchange& exchange, optim::LossScale* scale) {
  exchange_ = &exchange;
  scale_ = scale;
  scale_state_ = at::zeros({3}, at::kDouble);
}

std::vector<checkpoint::StateItem> TrainingState::items() const {
  std::vector<checkpoint::StateItem> items =
      exchange_ ? member_items() : std::vector<checkpoint::StateItem>();
  const std::string own = exchange_ ? fmt::format("member.{}.", exchange_->member()) : "";
  std::vector<const parallel::OwnedRange*> trained;
  for (const parallel::OwnedRange& range : owned_) {
    const bool train = range.parameter->requires_grad();
    // A parameter with a master is saved as that: no digit is lost.
    const at::Tensor master = train ? optimizer_.master(trained.size()) : at::Tensor();
    if (exchange_ && !train) {
      items.push_back(of_all_members(item_of("model.", range, range.values), *exchange_));
      continue;
    }
    items.push_back(item_of(own + "model.", range, master.defined() ? master : range.values));
    if (train) trained.push_back(&range);
  }
  for (const optim::State& state : optimizer_.states()) {
    items.push_back(
        item_of(own + "optimizer." + state.kind + ".", *trained.at(state.slice), state.tensor));
  }
  // How often a parameter was updated all ranks of its stages know, whatever they own of it.
  for (std::size_t i = 0; i < optimizer_.slices().size(); ++i) {
    const parallel::OwnedRange& range = *trained.at(i);
    items.push_back({.name = own + "optimizer.updates." + optimizer_.slices()[i].name,
                     .local = updates_.select(0, static_cast<std::int64_t>(i)),
                     .global_shape = {},
                     .boxes = {},
                     .replica = range.tie * stage_.size() + stage_.rank(),
                     .replicas = range.ties * stage_.size(),
                     .holders = range.ties > 1 ? kTiedCounts : kCounts});
  }
  return items;
}

/// Returns the items that belong to all members, or to the exchanges.
std::vector<checkpoint::StateItem> TrainingState::member_items() const {
  std::vector<checkpoint::StateItem> items;
  const std::string own = fmt::format("member.{}.outer.", exchange_->member());
  const auto of_all = [&](checkpoint::StateItem item) {
    items.push_back(of_all_members(std::move(item), *exchange_));
  };
  std::vector<const parallel::OwnedRange*> trained;
  for (const parallel::OwnedRange& range : owned_) {
    if (!range.parameter->requires_grad()) continue;
    const std::size_t slice = trained.size();
    trained.push_back(&range);
    of_all(item_of("model.", range, exchange_->anchor_of(slice)));
    if (const at::Tensor momentum = exchange_->momentum_of(slice); momentum.defined())
      of_all(item_of("outer.momentum.", range, momentum));
    if (const at::Tensor residual = exchange_->residual_of(slice); residual.defined())
      items.push_back(item_of(own + "residual.", range, residual));
  }
  for (const MemberExchange::Part& part : exchange_->sums_in_flight()) {
    for (auto& item :
         boxes_to_save("outer.difference.", *trained.at(part.slice), part.begin, part.values))
      of_all(std::move(item));
  }
  // Each member has those of other values.
  for (const MemberExchange::Part& part : exchange_->sum_residuals()) {
    for (auto& item :
         boxes_to_save("outer.sum_residual.", *trained.at(part.slice), part.begin, part.values))
      items.push_back(std::move(item));
  }
  // Always there, so that a run may go on with another precision.type.
  items.push_back({.name = fmt::format("member.{}.loss_scale", exchange_->member()),
                   .local = scale_state_,
                   .global_shape = {3},
                   .boxes = {},
                   .replica = exchange_->rank(),
                   .replicas = exchange_->ranks(),
                   .holders = kScale});
  return items;
}

std::vector<checkpoint::StateItem> TrainingState::items_to_save() const {
  // The counts as a tensor of the checkpoint; items() hands out views of it.
  std::copy(optimizer_.updates().begin(), optimizer_.updates().end(),
            updates_.data_ptr<std::int64_t>());
  // Zeros without a scale, whatever the checkpoint had with which the run began.
  if (exchange_) scale_state_.zero_();
  if (scale_) {
    auto* values = scale_state_.data_ptr<double>();
    values[0] = scale_->state().scale;
    values[1] = static_cast<double>(scale_->state().good_steps);
    values[2] = static_cast<double>(scale_->state().skipped);
  }
  return items();
}

std::string TrainingState::save(const std::string& directory, const RunRecord& record,
                                const checkpoint::SaveOptions& options) const {
  return checkpoint::save(directory, record.step, items_to_save(), record.to_json(), group_,
                          options);
}

void TrainingState::start_saving(checkpoint::Saver& saver, const std::string& directory,
                                 const RunRecord& record,
                                 const checkpoint::SaveOptions& options) const {
  saver.start(directory, record.step, items_to_save(), record.to_json(), options);
}

void TrainingState::load(const std::string& path) {
  checkpoint::load(path, items(), group_);
  take_filled();
}

void TrainingState::take_filled() {
  const auto* counts = updates_.const_data_ptr<std::int64_t>();
  optimizer_.set_updates(std::vector<std::int64_t>(counts, counts + updates_.numel()));
  const bool saved = scale_ && *scale_state_.const_data_ptr<double>() > 0;
  if (saved) {
    const auto* values = scale_state_.const_data_ptr<double>();
    scale_->restore({.scale = values[0],
                     .good_steps = static_cast<std::int64_t>(values[1]),
                     .skipped = static_cast<std::int64_t>(values[2])});
  }
  // Loading filled the masters; the weights of the forward pass are rounded from them.
  optimizer_.copy_masters_to_parameters();
}

void TrainingState::load_other_members(const std::string& path, const RunRecord& saved,
                                       optim::LossScale* scale) {
  std::vector<parallel::OwnedRange> trained = owned_;
  std::erase_if(trained, [](const auto& range) { return !range.parameter->requires_grad(); });
  MemberResumption(path, saved, {trained, optimizer_, group_, exchange_, scale}).load();
  optimizer_.copy_masters_to_parameters();
}

void TrainingState::load_parameters(const std::string& path) {
  auto parameters = items();
  std::erase_if(parameters, [](const auto& item) { return !item.name.starts_with("model."); });
  checkpoint::load(path, parameters, group_, {.scope = "model."});
  optimizer_.copy_masters_to_parameters();
}

void TrainingState::load_momentum(const std::string& path) {
  constexpr const char* kMomentum = "outer.momentum.";
  const auto& saved = checkpoint::format::read_manifest(path).tensors;
  const bool has_one = std::any_of(saved.begin(), saved.end(), [](const auto& tensor) {
    return tensor.name.starts_with(kMomentum);
  });
  if (!has_one) return;
  auto momentum = items();
  std::erase_if(momentum, [](const auto& item) { return !item.name.starts_with(kMomentum); });
  checkpoint::load(path, momentum, group_, {.scope = kMomentum});
}

void load_model(nn::Model& model, const std::string& path, const comm::Group& group) {
  std::vector<checkpoint::StateItem> items;
  for (const parallel::OwnedRange& range : parallel::whole_ranges(model.parameters(), group))
    items.push_back(item_of("model.", range, range.values));
  checkpoint::load(path, items, group, {.scope = "model."});
}

}  // namespace shoal::train
