#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shoal/model/model_spec.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/train/config/choices.h"

namespace shoal::train {

/// The metadata of a checkpoint beside its tensors: the position of the run, its model and job.
struct RunRecord {
  std::int64_t step = 0;     ///< optimizer steps done
  std::int64_t samples = 0;  ///< training samples used: the next step begins with this one
  std::int64_t tokens = 0;
  std::uint64_t data = 0;  ///< DataSource::fingerprint
  model::ModelSpec model;
  Precision precision = Precision::kFp32;               ///< precision.type as decided: not kAuto
  std::optional<optim::LossScale::State> loss_scale{};  ///< fp16
  /// instruction_set_in_use on rank 0; empty in records of earlier versions.
  std::string instruction_set;
  std::string members;  ///< how members divide the ranks; empty: there are none
  /// The step in which the run resumed with other members, with nothing in flight: exchanges that
  /// began in it or before have no result to come.
  std::int64_t exchanges_after = 0;
  std::string job;       ///< the job file as resolved, TOML
  std::string job_file;  ///< its name

  std::string to_json() const;
  /// Takes over the position of another record: steps, samples and tokens.
  void move_to(const RunRecord& other);
};

/// Throws Error(data) that names `origin` when the text is no such record.
RunRecord parse_record(const std::string& json, const std::string& origin);
/// Reads the record of the checkpoint in folder `path`, and no tensor.
RunRecord read_record(const std::string& path);

/// Returns a line that says which keys of batch, optimizer and learning rate a resumed run changes,
/// which is allowed: "Changed since step 6: optimizer.learning_rate 0.0003 -> 0.01."; empty: none.
/// The length of the run is no change: it may become longer.
std::string describe_changes(const RunRecord& saved, const RunRecord& now);

/// Checks that a run goes on with the same model, loss, optimizer and data. Throws Error(config)
/// that names each key that differs, with both values.
void check_same_run(const RunRecord& saved, const RunRecord& now, const std::string& path);

}  // namespace shoal::train
