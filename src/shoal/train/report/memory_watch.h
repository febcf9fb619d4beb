#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/group.h"
#include "shoal/nn/module.h"
#include "shoal/train/config/metrics.h"
#include "shoal/train/report/memory_timeline.h"
#include "shoal/wire/arena.h"

namespace shoal::train {

/// Bytes of tensors at the worst moment of a step: the total and its categories.
struct MemoryPeak {
  double total = 0;
  double staged = 0;      ///< part of it that checkpoints had copied when the step began
  double evaluation = 0;  ///< the total at the worst moment of an evaluation
  MemoryByCategory categories{};
};

/// Records how much of the installed arena the steps of one rank take. Without an arena it records
/// nothing. Ranks that are threads of one process share one arena, and rank 0 records it for all.
class MemoryWatch {
 public:
  MemoryWatch(const comm::Group& group, bool in_process);

  /// Returns true when this rank records.
  bool active() const { return watches_ && answers_; }
  /// Marks the next `steps` steps moment by moment, at the passes of `model`'s units. The model
  /// must not run after this is destroyed.
  void record(nn::Model& model, std::int64_t steps);

  /// `staged_bytes` is the size of the copies that checkpoints hold.
  void begin_step(std::int64_t step, double staged_bytes = 0);
  /// Adds a mark when the step is one of those that are recorded.
  void mark(const std::string& where);
  /// Returns true after the last step that is recorded.
  bool end_step();

  /// Stand around an evaluation, which is between steps: its peak is a figure of its own.
  void begin_evaluation();
  void end_evaluation();

  /// Returns the worst moment so far; zero where this rank does not record.
  const MemoryPeak& peak() const { return peak_; }
  const std::vector<MemoryMark>& marks() const { return marks_; }
  /// Returns the peak of every rank, on every rank; empty without an arena. Collective.
  std::vector<MemoryPeak> of_all_ranks() const;

 private:
  void keep(const wire::Ledger& ledger);

  comm::Group group_;
  bool watches_, answers_;
  MemoryPeak peak_;
  double staged_ = 0;
  std::int64_t steps_left_ = 0, step_ = 0;
  bool in_step_ = false;
  Clock::time_point began_;
  std::vector<MemoryMark> marks_;
};

/// Adds the peaks of ranks up, as if they had come at the same moment.
MemoryPeak sum(const std::vector<MemoryPeak>& ranks);

/// Returns e.g. "Tensors took 1230 MB at the peak (parameters ...); planned were 1250 MB (+1.6 %)."
/// for all ranks together. Copies for checkpoints are named; the plan does not contain them.
std::string describe(const MemoryPeak& measured, std::optional<double> planned_bytes);
/// Returns one JSON object: peak_bytes, the staged_bytes among them, planned_bytes, which contains
/// no staged bytes (null: not planned), evaluation_peak_bytes, and the same four by rank, with the
/// categories of peak_bytes. `planned_bytes` is by rank too; empty: not planned. One peak of
/// several ranks, which are threads, stands beside the sum of their plans.
std::string to_json(const std::vector<MemoryPeak>& ranks, const std::vector<double>& planned_bytes);

}  // namespace shoal::train
