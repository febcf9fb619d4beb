#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/base/span_recorder.h"
#include "shoal/comm/clock_offset.h"
#include "shoal/comm/group.h"
#include "shoal/train/config/trace_file.h"

namespace shoal::train {

/// Records the steps of a run that the job asks for, on every rank, and writes them to one file.
/// Measures the time in communication in all steps. One thread makes it, trains and destroys it.
class RunTrace {
 public:
  explicit RunTrace(comm::Group group);

  /// Sets the steps that are recorded, which are none at first: `head.first_step` to
  /// `head.last_step`. Rank 0 writes them to `path`.
  void plan(TraceHead head, std::string path);

  /// Is called before each step. Before the first one that is recorded, all ranks compare their
  /// clocks. Collective.
  void begin_step(std::int64_t step);
  /// Is called when all that follows `step` is done too. After the last step that is recorded, all
  /// ranks compare their clocks again and measure their peaks, and rank 0 writes the file: returns
  /// true on all ranks. Collective.
  bool end_step(std::int64_t step);
  /// As end_step after the last recorded step, where the run ends before it. Collective.
  bool finish();

  /// Returns the time in communication since it was asked last.
  Duration take_communication_time() { return recorder_.take_communication_time(); }
  const TraceHead& head() const { return head_; }
  const std::string& path() const { return path_; }

 private:
  void write();
  std::vector<SpanLog> gather(const std::vector<comm::ClockOffset>& after) const;

  comm::Group group_;
  SpanRecorder recorder_;
  TraceHead head_;
  std::string path_;
  std::int64_t step_ = 0;  ///< the last that was recorded
  bool recording_ = false;
  std::vector<comm::ClockOffset> before_;  ///< on rank 0
};

}  // namespace shoal::train
