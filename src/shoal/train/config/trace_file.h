#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/base/span_log.h"

namespace shoal::train {

/// The facts of a traced run that are no spans.
struct TraceHead {
  std::string job;
  std::int64_t first_step = 0;  ///< counted from 1
  std::int64_t last_step = 0;
  int threads = 1;  ///< of a rank
  std::string precision;
  double clock_error_us = 0;  ///< times of different ranks are wrong by at most this
  /// The peaks that plain loops reach on each rank while all ranks run them; 0: not known.
  std::vector<double> peak_flops;  ///< float32 FLOP/s
  std::vector<double> peak_bytes;  ///< bytes/s that are read and written
};

/// Returns the recordings of all ranks, whose times are those of one clock, in the Trace Event
/// format that Perfetto and chrome://tracing open: a process for each rank, with a thread that
/// shows the spans and others that show operations between ranks, as many side by side as were in
/// flight. Flow arrows join what matches on different ranks. Times are microseconds from the first
/// span; the head lies under "otherData".
///
/// The arguments of a slice are `flops` and `bytes`, where they were counted, and by kind: `step`;
/// `micro_batch` and `stage`, counted from 1; `m`, `n` and `k` of a matmul of [m, k] and [k, n].
std::string trace_json(const TraceHead& head, const std::vector<SpanLog>& ranks);

}  // namespace shoal::train
