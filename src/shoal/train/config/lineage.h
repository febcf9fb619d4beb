#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/train/config/step_lines.h"

namespace shoal::train {

/// The part of one member of an elastic group in a step, or in a round of steps.
struct LineageMember {
  std::string id;
  /// Training samples [first, first + samples). In a round: the first one of the first step and
  /// the samples of all steps; each step has as many, at the same place of its global batch.
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  std::int64_t threads = 1;  ///< with which it computed: they decide the last bits
  bool is_new = false;       ///< in a round: its optimizer began with it
  bool operator==(const LineageMember&) const = default;
};

/// A committed step of an elastic group, or a round of steps between which its members were by
/// themselves: all that it takes to repeat it.
struct LineageStep {
  std::int64_t step = 0;               ///< counted from 1, as in metrics.jsonl
  std::int64_t steps = 0;              ///< of the round that ends with it; 0: a step by itself
  std::int64_t epoch = 0;              ///< of the view that has committed it
  std::vector<LineageMember> members;  ///< in the order in which their gradients were added
  std::string instruction_set;         ///< with which all computed: it decides the last bits too
  /// SHA-256 of the state before the step, and behind it, as hex digits. They say which steps
  /// follow each other: a number may be that of several, where a group has gone on in two branches.
  std::string before;
  std::string state;
  /// Returns the step before the first one of these.
  std::int64_t behind() const { return step - (steps > 0 ? steps : 1); }
  bool operator==(const LineageStep&) const = default;
};

/// Returns one JSON object without a line end.
std::string to_json(const LineageStep& step);
/// Throws Error(data) when `line` is no such object.
LineageStep parse_lineage(const std::string& line);
/// Reads every line of a lineage that is whole, in order; nothing when there is no file. Throws
/// Error(data) with file and line for a line that is broken, or does not follow the one before: by
/// its number, and by the state that it goes on from.
std::vector<LineageStep> read_lineage(const std::string& path);

/// Writes lineage.jsonl: one line a committed step.
class LineageFile {
 public:
  /// Opens `path` and cuts off every line after `step`; all of them where they do not lead to
  /// `step` with this state, because this member was away, or was in another branch of the group.
  /// Throws Error(output), Error(data).
  LineageFile(const std::string& path, std::int64_t step, const std::string& state);
  void append(const LineageStep& step);  ///< throws Error(output)

 private:
  StepLines lines_;
};

}  // namespace shoal::train
