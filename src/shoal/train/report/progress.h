#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/train/config/metrics.h"

namespace shoal::train {

/// A part of the progress line, in ASCII: "loss 2.3026".
struct ProgressWord {
  std::string text;
  int last_to_go = 0;  ///< the higher, the longer it stays as the line gets narrower
};
/// Joins words to one line of at most `width` columns (0: any). Words that do not fit are left out,
/// and the last one that stays is cut.
std::string fitted(std::vector<ProgressWord> words, int width);

/// Prints the progress of a run on the console: one line that is rewritten in place on a terminal
/// and never wraps, a line every `interval` steps elsewhere.
class Progress {
 public:
  /// `first_step`: steps that were trained before; the remaining time is estimated from those after
  /// it. `counted`: the unit of speed, "tokens".
  Progress(std::FILE* out, bool terminal, std::int64_t interval, std::int64_t first_step,
           std::int64_t total_steps, std::string counted);

  void step(const StepMetrics& metrics);
  /// Prints a line above the progress line.
  void print(const std::string& line);
  /// Ends the progress line.
  void finish();

 private:
  std::vector<ProgressWord> words(const StepMetrics& metrics) const;
  int width() const;  ///< columns that a line may take; 0: any

  std::FILE* out_;
  bool terminal_;
  std::int64_t interval_, first_, total_;
  Clock::time_point began_ = Clock::now(), drawn_{};
  std::string counted_;
  std::string shown_;  ///< text of the progress line on the terminal
};

}  // namespace shoal::train
