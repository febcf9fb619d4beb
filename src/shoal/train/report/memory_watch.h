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

/// Bytes of tensors at the worst moment of a step, in all and of that by category.
struct MemoryPeak {
  double total = 0;
  double staged = 0;  ///< of that, what checkpoints had copied aside when the step began
  MemoryByCategory categories{};
};

/// Watches what the steps of one rank take of the installed arena. Without an arena nothing is
/// known. Ranks that are threads share one arena, which rank 0 answers for; the others have
/// nothing.
class MemoryWatch {
 public:
  MemoryWatch(const comm::Group& group, bool in_process);

  /// Whether this rank knows what it takes.
  bool active() const { return watches_ && answers_; }
  /// The first `steps` steps from here on have marks. `model`: its units mark their passes; it must
  /// not run when this is gone.
  void record(nn::Model& model, std::int64_t steps);

  /// `staged_bytes`: what checkpoints hold aside.
  void begin_step(std::int64_t step, double staged_bytes = 0);
  /// A moment of a step that is recorded.
  void mark(const std::string& where);
  /// True when this was the last step that is recorded.
  bool end_step();

  /// The worst moment so far; nothing where it is not known, or rank 0 answers.
  const MemoryPeak& peak() const { return peak_; }
  const std::vector<MemoryMark>& marks() const { return marks_; }
  /// Of every rank, on every rank; empty without an arena. Collective.
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

/// The sum over ranks: their worst moments are taken to be the same.
MemoryPeak sum(const std::vector<MemoryPeak>& ranks);

/// "Tensors took 1230 MB at the peak (parameters ...); planned were 1250 MB (+1.6 %)." of all ranks
/// together. What checkpoints had copied aside is named, and no part of what was planned.
std::string describe(const MemoryPeak& measured, std::optional<double> planned_bytes);
/// One JSON object: peak_bytes, staged_bytes of that, planned_bytes without them (null: not
/// planned), and by rank peak_bytes with its categories.
std::string to_json(const std::vector<MemoryPeak>& ranks, std::optional<double> planned_bytes);

}  // namespace shoal::train
