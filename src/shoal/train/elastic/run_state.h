#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shoal/collective/membership/member.h"
#include "shoal/train/run_record.h"
#include "shoal/train/training_state.h"

namespace shoal::train {

using collective::membership::Digest;

/// All that a step changes, as bytes for another member of an elastic group: the tensors of a
/// checkpoint, and its record. The digest covers the names, types and values of the tensors, and of
/// the record what is the same on all members. Not covered, but sent along, are the job and the
/// instruction set, so that a joiner whose own do not fit is refused with the reason.
class RunState {
 public:
  /// Must outlive this.
  explicit RunState(TrainingState& state) : state_(state) {}

  Digest digest(const RunRecord& record) const;
  std::vector<std::byte> write(const RunRecord& record) const;
  /// Returns the digest of such bytes; zeros for bytes that are none.
  static Digest digest_of(std::span<const std::byte> bytes);
  /// Fills the tensors, and returns the record. `own`: of this run. Throws Error(data) for bytes
  /// that are no state of this model, and Error(config) that names what differs where they belong
  /// to another job.
  RunRecord read(std::span<const std::byte> bytes, const RunRecord& own);

 private:
  TrainingState& state_;
};

}  // namespace shoal::train
