#include "shoal/train/training_state.h"

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "shoal/base/check.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/plan/model_json.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {
namespace {

/// The keys that decide which samples a run sees and have other values in the two jobs.
std::vector<std::string> differing_data_keys(const JobConfig& before, const JobConfig& after) {
  std::vector<std::string> differences;
  for (const train::Key& key : all_keys()) {
    const std::string path = key.path(), old = value_text(key, before), value = value_text(key, after);
    const bool decides = key.section == "data" || path == "training.sequence_length" || path == "debug.seed";
    if (decides && old != value) differences.push_back(fmt::format("{} was {} and is {}", path, old, value));
  }
  return differences;
}

/// What a resumed run must not change although the tensors would fit.
std::vector<std::string> differing_training_keys(const JobConfig& before, const JobConfig& after) {
  const auto loss = [](const JobConfig& job) {
    return job.training.loss != "auto" ? job.training.loss : learns_classes(job) ? "cross_entropy" : "mean_squared_error";
  };
  std::vector<std::string> differences;
  const auto compare = [&](const char* key, const std::string& old, const std::string& value) {
    if (old != value) differences.push_back(fmt::format("{} was {} and is {}", key, old, value));
  };
  compare("training.loss", loss(before), loss(after));
  compare("optimizer.name", before.optimizer.name, after.optimizer.name);
  return differences;
}

/// The range as a tensor of the checkpoint: whole in the parameter's shape, or flat with its boxes.
checkpoint::StateItem item_of(const std::string& prefix, const parallel::OwnedRange& range, const at::Tensor& values, int replica, int replicas) {
  const nn::Parameter& parameter = *range.parameter;
  checkpoint::StateItem item{.name = prefix + parameter.name(),
                             .local = values,
                             .global_shape = parameter.global_shape(),
                             .boxes = {},
                             .replica = replica,
                             .replicas = replicas};
  if (range.end - range.begin < parameter.box().count()) item.boxes = mesh::boxes_of(parameter.box(), range.begin, range.end);
  return item;
}

}  // namespace

std::string RunRecord::to_json() const {
  nlohmann::json object{
      {"step", step},           {"samples", samples}, {"tokens", tokens},    {"data", data}, {"model", nlohmann::json::parse(plan::to_json(model))},
      {"precision", precision}, {"job", job},         {"job_file", job_file}};
  if (loss_scale) object["loss_scale"] = {{"scale", loss_scale->scale}, {"good_steps", loss_scale->good_steps}, {"skipped", loss_scale->skipped}};
  return object.dump();
}

RunRecord parse_record(const std::string& json, const std::string& origin) {
  try {
    const auto object = nlohmann::json::parse(json);
    std::optional<optim::LossScale::State> loss_scale;
    if (object.contains("loss_scale")) {
      const auto& state = object.at("loss_scale");
      loss_scale = {.scale = state.at("scale"), .good_steps = state.at("good_steps"), .skipped = state.at("skipped")};
    }
    return {.step = object.at("step"),
            .samples = object.at("samples"),
            .tokens = object.at("tokens"),
            .data = object.at("data"),
            .model = plan::from_json(object.at("model").dump(), origin),
            .precision = object.value("precision", "fp32"),
            .loss_scale = loss_scale,
            .job = object.at("job"),
            .job_file = object.at("job_file")};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kData, "checkpoint", fmt::format("{} is not a checkpoint of a training run: {}", origin, error.what()));
  }
}

RunRecord read_record(const std::string& path) {
  return parse_record(checkpoint::format::read_manifest(path).metadata, path + "/" + checkpoint::format::kManifestName);
}

void check_same_run(const RunRecord& saved, const RunRecord& now, const std::string& path) {
  std::vector<std::string> differences;
  const auto before = nlohmann::json::parse(plan::to_json(saved.model)), after = nlohmann::json::parse(plan::to_json(now.model));
  for (const auto& [key, value] : after.items()) {
    if (key == "name") continue;
    const auto old = before.contains(key) ? before.at(key) : nlohmann::json();
    if (old != value) differences.push_back(fmt::format("model.{} was {} and is {}", key, old.is_null() ? "absent" : old.dump(), value.dump()));
  }
  if (differences.empty()) {
    const JobConfig old = parse_job(saved.job, saved.job_file).config, job = parse_job(now.job, now.job_file).config;
    differences = differing_training_keys(old, job);
    if (differences.empty() && saved.data != now.data) {
      differences = differing_data_keys(old, job);
      if (differences.empty())
        differences.push_back(fmt::format("the contents of the data had the fingerprint {:016x} and have {:016x}", saved.data, now.data));
    }
  }
  if (differences.empty()) return;
  throw Error(ErrorKind::kConfig, "train", fmt::format("the checkpoint {} belongs to another job: {}", path, fmt::join(differences, "; ")))
      .hint("--fresh moves the old run aside and starts anew; --run-dir DIR starts a second one");
}

TrainingState::TrainingState(std::vector<parallel::OwnedRange> owned, optim::Optimizer& optimizer, comm::Group group, int replica, int replicas)
    : owned_(std::move(owned)),
      optimizer_(optimizer),
      group_(std::move(group)),
      replica_(replica),
      replicas_(replicas),
      updates_(at::zeros({static_cast<std::int64_t>(optimizer.slices().size())}, at::kLong)) {}

std::vector<checkpoint::StateItem> TrainingState::items() const {
  std::vector<checkpoint::StateItem> items;
  std::vector<const parallel::OwnedRange*> trained;
  for (const parallel::OwnedRange& range : owned_) {
    const bool train = range.parameter->requires_grad();
    const at::Tensor master = train ? optimizer_.master(trained.size()) : at::Tensor();
    items.push_back(item_of("model.", range, master.defined() ? master : range.values, replica_, replicas_));
    if (train) trained.push_back(&range);
  }
  for (const optim::State& state : optimizer_.states())
    items.push_back(item_of("optimizer." + state.kind + ".", *trained.at(state.slice), state.tensor, replica_, replicas_));
  // How often a parameter was updated all ranks know, whatever they own of it.
  for (std::size_t i = 0; i < optimizer_.slices().size(); ++i)
    items.push_back({.name = "optimizer.updates." + optimizer_.slices()[i].name,
                     .local = updates_.select(0, static_cast<std::int64_t>(i)),
                     .global_shape = {},
                     .boxes = {},
                     .replica = group_.rank(),
                     .replicas = group_.size()});
  return items;
}

std::vector<checkpoint::StateItem> TrainingState::items_to_save() const {
  std::copy(optimizer_.updates().begin(), optimizer_.updates().end(), updates_.data_ptr<std::int64_t>());
  return items();
}

std::string TrainingState::save(const std::string& directory, const RunRecord& record, const checkpoint::SaveOptions& options) const {
  return checkpoint::save(directory, record.step, items_to_save(), record.to_json(), group_, options);
}

void TrainingState::start_saving(checkpoint::Saver& saver, const std::string& directory, const RunRecord& record,
                                 const checkpoint::SaveOptions& options) const {
  saver.start(directory, record.step, items_to_save(), record.to_json(), options);
}

void TrainingState::load(const std::string& path) {
  checkpoint::load(path, items(), group_);
  const auto* counts = updates_.const_data_ptr<std::int64_t>();
  optimizer_.set_updates(std::vector<std::int64_t>(counts, counts + updates_.numel()));
  optimizer_.copy_masters_to_parameters();
}

void load_model(nn::Model& model, const std::string& path, const comm::Group& group) {
  std::vector<checkpoint::StateItem> items;
  for (const parallel::OwnedRange& range : parallel::whole_ranges(model))
    items.push_back(item_of("model.", range, range.values, group.rank(), group.size()));
  checkpoint::load(path, items, group, {.scope = "model."});
}

}  // namespace shoal::train
