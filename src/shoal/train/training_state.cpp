#include "shoal/train/training_state.h"

#include <ATen/ops/zeros.h>

#include "shoal/base/check.h"

namespace shoal::train {
namespace {

/// Sets of items by the ranks that hold them: those of one stage, and of several (tied weights).
constexpr int kUntied = 0;
constexpr int kTied = 1;
constexpr int kCounts = 2;
constexpr int kTiedCounts = 3;

/// The range as a tensor of the checkpoint: whole in the parameter's shape, or flat with its boxes.
checkpoint::StateItem item_of(const std::string& prefix, const parallel::OwnedRange& range,
                              const at::Tensor& values) {
  const nn::Parameter& parameter = *range.parameter;
  checkpoint::StateItem item{.name = prefix + parameter.name(),
                             .local = values,
                             .global_shape = parameter.global_shape(),
                             .boxes = {},
                             .replica = range.owner(),
                             .replicas = range.owners(),
                             .holders = range.ties > 1 ? kTied : kUntied};
  // No boxes stand for the whole tensor, so a part of it needs them, also where this rank owns all
  // of its own box. A flat range is saved as the few boxes that it consists of, so that any other
  // cut can be loaded.
  if (range.end - range.begin < parameter.global_count())
    item.boxes = mesh::boxes_of(parameter.box(), range.begin, range.end);
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

std::vector<checkpoint::StateItem> TrainingState::items() const {
  std::vector<checkpoint::StateItem> items;
  std::vector<const parallel::OwnedRange*> trained;
  for (const parallel::OwnedRange& range : owned_) {
    const bool train = range.parameter->requires_grad();
    // A parameter with a master is saved as that: no digit is lost.
    const at::Tensor master = train ? optimizer_.master(trained.size()) : at::Tensor();
    items.push_back(item_of("model.", range, master.defined() ? master : range.values));
    if (train) trained.push_back(&range);
  }
  for (const optim::State& state : optimizer_.states()) {
    items.push_back(
        item_of("optimizer." + state.kind + ".", *trained.at(state.slice), state.tensor));
  }
  // How often a parameter was updated all ranks of its stages know, whatever they own of it.
  for (std::size_t i = 0; i < optimizer_.slices().size(); ++i) {
    const parallel::OwnedRange& range = *trained.at(i);
    items.push_back({.name = "optimizer.updates." + optimizer_.slices()[i].name,
                     .local = updates_.select(0, static_cast<std::int64_t>(i)),
                     .global_shape = {},
                     .boxes = {},
                     .replica = range.tie * stage_.size() + stage_.rank(),
                     .replicas = range.ties * stage_.size(),
                     .holders = range.ties > 1 ? kTiedCounts : kCounts});
  }
  return items;
}

std::vector<checkpoint::StateItem> TrainingState::items_to_save() const {
  // The counts as a tensor of the checkpoint; items() hands out views of it.
  std::copy(optimizer_.updates().begin(), optimizer_.updates().end(),
            updates_.data_ptr<std::int64_t>());
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
  const auto* counts = updates_.const_data_ptr<std::int64_t>();
  optimizer_.set_updates(std::vector<std::int64_t>(counts, counts + updates_.numel()));
  // Loading filled the masters; the weights of the forward pass are rounded from them.
  optimizer_.copy_masters_to_parameters();
}

void TrainingState::load_parameters(const std::string& path) {
  auto parameters = items();
  std::erase_if(parameters, [](const auto& item) { return !item.name.starts_with("model."); });
  checkpoint::load(path, parameters, group_, {.scope = "model."});
  optimizer_.copy_masters_to_parameters();
}

void load_model(nn::Model& model, const std::string& path, const comm::Group& group) {
  std::vector<checkpoint::StateItem> items;
  for (const parallel::OwnedRange& range : parallel::whole_ranges(model.parameters(), group))
    items.push_back(item_of("model.", range, range.values));
  checkpoint::load(path, items, group, {.scope = "model."});
}

}  // namespace shoal::train
