#include "shoal/train/run_record.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/manifest.h"
#include "shoal/model/model_json.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/members.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {
namespace {

constexpr int kDeepest = 64;

/// Calls body(key, old, value) for each key that has another value in the two jobs. Values are
/// compared as the text of a job file: one rule for all types of keys.
template <class Body>
void for_changed_keys(const JobConfig& before, const JobConfig& after, const Body& body) {
  for (const ConfigKey& key : all_keys()) {
    const std::string old = value_text(key, before);
    const std::string value = value_text(key, after);
    if (old != value) body(key, old, value);
  }
}

/// The keys that decide which samples a run sees and have other values in the two jobs.
std::vector<std::string> differing_data_keys(const JobConfig& before, const JobConfig& after) {
  std::vector<std::string> differences;
  for_changed_keys(before, after, [&](const ConfigKey& key, const auto& old, const auto& value) {
    const std::string path = key.path();
    if (key.section == "data" || path == "training.sequence_length" || path == "debug.seed")
      differences.push_back(fmt::format("{} was {} and is {}", path, old, value));
  });
  return differences;
}

/// Returns true for a key that exchanges depend on which a checkpoint is in the midst of.
bool decides_exchanges(const ConfigKey& key) {
  return key.section == "low_communication" && key.name != "learning_rate" && key.name != "mix" &&
         key.name != "shares";
}

/// Lists keys that a resumed run must not change although the tensors would fit.
std::vector<std::string> differing_training_keys(const JobConfig& before, const JobConfig& after) {
  const auto loss = [](const JobConfig& job) {
    if (job.training.loss != LossKind::kAuto) return name_of(job.training.loss);
    return name_of(learns_classes(job) ? LossKind::kCrossEntropy : LossKind::kMeanSquaredError);
  };
  std::vector<std::string> differences;
  const auto compare = [&](const char* key, const std::string& old, const std::string& value) {
    if (old != value) differences.push_back(fmt::format("{} was {} and is {}", key, old, value));
  };
  compare("training.loss", loss(before), loss(after));
  compare("optimizer.name", name_of(before.optimizer.name), name_of(after.optimizer.name));
  // A run without members is in the midst of none.
  if (!has_members(before) || !has_members(after)) return differences;
  for_changed_keys(before, after, [&](const ConfigKey& key, const auto& old, const auto& value) {
    if (decides_exchanges(key)) compare(key.path().c_str(), old, value);
  });
  return differences;
}

}  // namespace

void RunRecord::move_to(const RunRecord& other) {
  step = other.step;
  samples = other.samples;
  tokens = other.tokens;
}

std::string RunRecord::to_json() const {
  nlohmann::json object{{"step", step},
                        {"samples", samples},
                        {"tokens", tokens},
                        {"data", data},
                        {"model", nlohmann::json::parse(model::to_json(model))},
                        {"precision", name_of(precision)},
                        {"instruction_set", instruction_set},
                        {"job", job},
                        {"job_file", job_file}};
  if (!members.empty()) object["members"] = members;
  if (exchanges_after > 0) object["exchanges_after"] = exchanges_after;
  if (loss_scale) {
    object["loss_scale"] = {{"scale", loss_scale->scale},
                            {"good_steps", loss_scale->good_steps},
                            {"skipped", loss_scale->skipped}};
  }
  return object.dump();
}

RunRecord parse_record(const std::string& json, const std::string& origin) {
  const auto broken = [&](const std::string& what) {
    return Error(ErrorKind::kData, "checkpoint",
                 fmt::format("{} is not a checkpoint of a training run: {}", origin, what));
  };
  // No record is nested deeper, and printing deeper text in an error would take one stack frame a
  // level.
  const auto shallow = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDeepest) throw broken(fmt::format("nested more than {} deep", kDeepest));
    return true;
  };
  try {
    const auto object = nlohmann::json::parse(json, shallow);
    const auto number = [&](const nlohmann::json& in, const char* key) {
      const auto& value = in.at(key);
      // As C++ numbers: compared as JSON, a number of 2^63 or more would count as negative.
      if (!value.is_number_unsigned() ||
          value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
        throw broken(fmt::format("{} is no whole number of at least 0", key));
      return value.get<std::int64_t>();
    };
    std::optional<optim::LossScale::State> loss_scale;
    if (object.contains("loss_scale")) {
      const auto& state = object.at("loss_scale");
      loss_scale = {.scale = state.at("scale"),
                    .good_steps = number(state, "good_steps"),
                    .skipped = number(state, "skipped")};
      if (!std::isfinite(loss_scale->scale) || loss_scale->scale <= 0)
        throw broken("loss_scale.scale is no number above 0");
    }
    // Records of earlier versions have no precision: everything was fp32.
    const std::string type = object.value("precision", "fp32");
    const auto precision = find_choice<Precision>(type);
    if (!precision || *precision == Precision::kAuto)
      throw broken(fmt::format("precision is \"{}\"", type));
    if (!object.at("data").is_number_unsigned()) throw broken("data is no fingerprint");
    const std::int64_t step = number(object, "step");
    // Most records have none.
    std::int64_t exchanges_after = 0;
    if (object.contains("exchanges_after")) exchanges_after = number(object, "exchanges_after");
    if (exchanges_after > step) throw broken("exchanges_after lies behind its step");
    return {.step = step,
            .samples = number(object, "samples"),
            .tokens = number(object, "tokens"),
            .data = object.at("data"),
            .model = model::from_json(object.at("model").dump(), origin),
            .precision = *precision,
            .loss_scale = loss_scale,
            .instruction_set = object.value("instruction_set", ""),
            .members = object.value("members", ""),
            .exchanges_after = exchanges_after,
            .job = object.at("job"),
            .job_file = object.at("job_file")};
  } catch (const nlohmann::json::exception& error) {
    throw broken(error.what());
  }
}

RunRecord read_record(const std::string& path) {
  return parse_record(checkpoint::format::read_manifest(path).metadata,
                      path + "/" + checkpoint::format::kManifestName);
}

std::string describe_changes(const RunRecord& saved, const RunRecord& now) {
  const JobConfig before = parse_job(saved.job, saved.job_file).config;
  const JobConfig after = parse_job(now.job, now.job_file).config;
  std::vector<std::string> changes;
  for_changed_keys(before, after, [&](const ConfigKey& key, const auto& old, const auto& value) {
    const bool length = key.name == "steps" || key.name == "tokens" || key.name == "epochs";
    const bool shown = key.section == "optimizer" || key.section == "lr_scheduler" ||
                       key.section == "low_communication" || (key.section == "training" && !length);
    const auto or_unset = [](const std::string& text) { return text.empty() ? "not set" : text; };
    if (shown)
      changes.push_back(fmt::format("{} {} -> {}", key.path(), or_unset(old), or_unset(value)));
  });
  if (changes.empty()) return "";
  return fmt::format("Changed since step {}: {}.", saved.step, fmt::join(changes, ", "));
}

void check_same_run(const RunRecord& saved, const RunRecord& now, const std::string& path) {
  std::vector<std::string> differences;
  const auto before = nlohmann::json::parse(model::to_json(saved.model));
  const auto after = nlohmann::json::parse(model::to_json(now.model));
  for (const auto& [key, value] : after.items()) {
    // A name is no property of the model: the same shape may be called otherwise.
    if (key == "name") continue;
    const auto old = before.contains(key) ? before.at(key) : nlohmann::json();
    if (old != value) {
      differences.push_back(fmt::format("model.{} was {} and is {}", key,
                                        old.is_null() ? "absent" : old.dump(), value.dump()));
    }
  }
  if (differences.empty()) {
    const JobConfig old = parse_job(saved.job, saved.job_file).config;
    const JobConfig job = parse_job(now.job, now.job_file).config;
    // The most specific reason first: keys of the job, then keys of the data, then contents that no
    // key explains.
    differences = differing_training_keys(old, job);
    if (differences.empty() && saved.data != now.data) {
      differences = differing_data_keys(old, job);
      if (differences.empty()) {
        differences.push_back(
            fmt::format("the contents of the data had the fingerprint {:016x} and have {:016x}",
                        saved.data, now.data));
      }
    }
  }
  if (differences.empty()) return;
  throw Error(ErrorKind::kConfig, "train",
              fmt::format("the checkpoint {} belongs to another job: {}", path,
                          fmt::join(differences, "; ")))
      .hint(fmt::format(
          "--fresh moves the old run aside and starts anew; --run-dir DIR starts a second one{}",
          saved.members.empty() ? "" : ", which model.from lets begin with the saved model"));
}

}  // namespace shoal::train
