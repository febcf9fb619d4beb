#pragma once

#include <ostream>
#include <string>

#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// Writes a simulated step in the Trace Event format that Perfetto and chrome://tracing open: one
/// track a rank, one slice an action, microseconds. It writes in chunks of at most kChunkBytes, so
/// that a trace of any length takes no more memory than that. The caller checks whether `out` took
/// everything. One thread may use it.
class TraceWriter {
 public:
  static constexpr std::size_t kChunkBytes = 64 * 1024;

  TraceWriter(std::ostream& out, int ranks);
  void add(int rank, const schedule::Span& span);
  /// Ends the file. Call it once, after the last `add`.
  void finish();

 private:
  void write(bool all);

  std::ostream& out_;
  std::string chunk_;
};

/// Returns a timeline as a drawing: one row a rank, forwards blue, input gradients (and whole
/// backwards) orange, weight gradients green, numbered by micro-batch.
std::string to_svg(const schedule::Timeline& timeline, const std::string& title);

}  // namespace shoal::plan
