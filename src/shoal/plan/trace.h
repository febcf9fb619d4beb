#pragma once

#include <ostream>
#include <string>

#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// Writes a simulated step in the Trace Event format that Perfetto and chrome://tracing open: one
/// track a rank, one slice an action, microseconds. What is added goes out in pieces of at most
/// kPieceBytes, so that a trace of any length takes no more memory than that. Whether `out` took it
/// all is the caller's to ask. Used by one thread.
class TraceWriter {
 public:
  static constexpr std::size_t kPieceBytes = 64 * 1024;

  TraceWriter(std::ostream& out, int ranks);
  void add(int rank, const schedule::Span& span);
  void finish();  ///< once, after the last `add`; without it the file is not complete

 private:
  void write(bool all);

  std::ostream& out_;
  std::string piece_;
};

/// A timeline as a drawing: one row a rank, forwards blue, input gradients (and whole backwards)
/// orange, weight gradients green, numbered by micro-batch.
std::string to_svg(const schedule::Timeline& timeline, const std::string& title);

}  // namespace shoal::plan
