#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/collective/membership/member.h"
#include "shoal/train/run_record.h"
#include "shoal/train/training_state.h"

namespace shoal::train {

using collective::membership::Digest;

/// Gives the tensors of a state as views, with the same names, types and sizes on all members.
struct StateTensors {
  std::function<std::vector<checkpoint::StateItem>()> to_save;
  /// Returns those to fill with other values; `take_filled` then brings into effect what they hold.
  std::function<std::vector<checkpoint::StateItem>()> to_fill;
  std::function<void()> take_filled;
};
/// Returns those of a checkpoint. `state` must outlive them.
StateTensors tensors_of(TrainingState& state);

/// All that a step changes, as bytes for another member of an elastic group: tensors, and the
/// record of the run. The digest covers the names, types and values of the tensors, and of
/// the record what is the same on all members. Not covered, but sent along, are the job and the
/// instruction set, so that a joiner whose own do not fit is refused with the reason.
class RunState {
 public:
  explicit RunState(StateTensors tensors) : tensors_(std::move(tensors)) {}

  Digest digest(const RunRecord& record) const { return digest_with(record, tensors_.to_save()); }
  /// Returns the digest of a state with these tensors.
  static Digest digest_with(const RunRecord& record,
                            const std::vector<checkpoint::StateItem>& items);
  std::vector<std::byte> write(const RunRecord& record) const;
  /// Returns the digest of such bytes; zeros for bytes that are none.
  static Digest digest_of(std::span<const std::byte> bytes);
  /// Fills the tensors, and returns the record. `own`: of this run. Throws Error(data) for bytes
  /// that are no state of this model, and Error(config) that names what differs where they belong
  /// to another job.
  RunRecord read(std::span<const std::byte> bytes, const RunRecord& own);

 private:
  StateTensors tensors_;
};

}  // namespace shoal::train
