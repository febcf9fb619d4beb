#pragma once

#include <string>

#include "shoal/train/config/lineage.h"

namespace shoal::train {

/// Repeats on one process what the members of an elastic group have computed, a line of their
/// lineage at a time.
class Repetition {
 public:
  virtual ~Repetition() = default;
  /// Returns the digest of the state before the next line.
  virtual std::string state() const = 0;
  /// Repeats a line and returns the digest of the state behind it. Throws Error(data) where its
  /// samples are not those of the job.
  virtual std::string repeat(const LineageStep& line) = 0;
};

}  // namespace shoal::train
