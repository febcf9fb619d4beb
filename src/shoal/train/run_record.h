#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shoal/model/model_spec.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/train/config/choices.h"

namespace shoal::train {

/// What a checkpoint says beside its tensors: where the run is and what it is a run of.
struct RunRecord {
  std::int64_t step = 0;     ///< optimizer steps done
  std::int64_t samples = 0;  ///< training samples used: the next step begins with this one
  std::int64_t tokens = 0;
  std::uint64_t data = 0;  ///< DataSource::fingerprint
  model::ModelSpec model;
  Precision precision = Precision::kFp32;               ///< precision.type as decided: not kAuto
  std::optional<optim::LossScale::State> loss_scale{};  ///< fp16
  std::string job;                                      ///< the job file as resolved, TOML
  std::string job_file;                                 ///< what it was called

  std::string to_json() const;
};

/// Throws Error(data) that names `origin` when the text is no such record.
RunRecord parse_record(const std::string& json, const std::string& origin);
/// Of the checkpoint in folder `path`; reads no tensor.
RunRecord read_record(const std::string& path);

/// The run goes on with the same model, seed and data only. Throws Error(config) that names each
/// key that differs, with both values.
void check_same_run(const RunRecord& saved, const RunRecord& now, const std::string& path);

}  // namespace shoal::train
