#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/memory_category.h"
#include "shoal/train/config/step_lines.h"

namespace shoal::train {

/// The result of an evaluation over all ranks.
struct Evaluation {
  double loss = 0;                        ///< mean over the valid labels
  std::int64_t labels = 0;                ///< number of valid labels
  std::optional<double> bits_per_byte{};  ///< token data: loss per byte of text, base 2
  std::optional<double> accuracy{};  ///< classes: the part of rows whose largest logit is the label
  std::optional<double> mean_squared_error{}, mean_absolute_error{};  ///< regression
};

bool is_finite(const Evaluation& evaluation);

/// Bytes of each category, indexed by MemoryCategory.
using MemoryByCategory = std::array<double, kMemoryCategories>;

/// The figures of one training step over all ranks: a line of metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;    ///< counted from 1: how many steps the model has been trained
  double loss = 0;          ///< mean over the valid labels of the global batch, before the update
  double grad_norm = 0;     ///< before clipping; infinite in a step that was skipped
  double lr = 0;            ///< learning rate of this update
  std::int64_t tokens = 0;  ///< trained so far (rows, of a table)
  double tokens_per_s = 0;  ///< speed of this step
  std::optional<double> step_s{};  ///< seconds that this step took on rank 0
  /// Model FLOPs of this step, by the second, over the float32 FLOP/s that plain loops reach on all
  /// ranks when the run begins.
  std::optional<double> mfu{};
  /// Seconds of the step before, means over the ranks: in which a rank read its samples, and in
  /// which it was busy with communication instead of computing. Empty in the first step of a start.
  std::optional<double> data_wait_s{}, comm_exposed_s{};
  std::optional<double> loss_scale{};     ///< fp16: by which the loss of this step was multiplied
  std::optional<std::int64_t> members{};  ///< of an elastic group, that made this step
  std::optional<double> memory_bytes{};   ///< most that tensors of all ranks took together in the
                                          ///< steps before; empty: not known
  MemoryByCategory memory{};              ///< bytes of that by category
  bool skipped = false;  ///< fp16: the gradient overflowed, and there was no update
  std::optional<Evaluation> evaluation{};  ///< after the update
};

/// Returns one JSON object without a line end; numbers have 17 significant digits, so that they
/// read back to the same bits. Throws Error(non-finite) for a value that JSON has no number for.
std::string to_json(const StepMetrics& metrics);
/// Writes an evaluation alone, with the keys that it has in such a line.
std::string to_json(const Evaluation& evaluation);
/// Throws Error(data) when `line` is no such object.
StepMetrics parse_metrics(const std::string& line);

/// Reads every line of a metrics file that is whole, in order; returns nothing when there is no
/// file. Throws Error(data) with file and line for a line that is broken.
std::vector<StepMetrics> read_metrics(const std::string& path);

/// Writes metrics.jsonl: one line a step.
class MetricsFile {
 public:
  /// Opens `path` and cuts off every line after `step` (what was trained after the checkpoint that
  /// a run resumes from) and a torn last one. Throws Error(output), Error(data) with file and line.
  MetricsFile(const std::string& path, std::int64_t step);

  void append(const StepMetrics& metrics);  ///< throws Error(output)

 private:
  StepLines lines_;
};

}  // namespace shoal::train
