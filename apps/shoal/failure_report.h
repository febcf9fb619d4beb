#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace shoal::apps {

/// A rank's report of its failure. It writes it to a pipe for the launcher before it ends.
struct FailureReport {
  int code = 1;
  /// True when the rank reports that another is lost or silent. It is not the first cause then if
  /// another rank reports a failure of its own.
  bool about_a_peer = false;
  std::int64_t time_ns = 0;  ///< time on the monotonic clock, which all processes of a host share
  std::string text;
};

/// Returns the report of an exception that ends rank `own_rank` now.
FailureReport failure_report(const std::exception& error, int own_rank);

/// Writes a report as one message, shortened to what a pipe takes at once. A launcher that is gone
/// is no error.
void write_failure_report(int pipe, const FailureReport& report);
/// Reads a report; empty when the rank ended without one. Does not wait.
std::optional<FailureReport> read_failure_report(int pipe);

/// Writes the file that torchrun reads for its summary (TORCHELASTIC_ERROR_FILE), in its format.
/// torchrun takes the earliest second for the root cause, so a report about a peer is dated one
/// second later. A file that cannot be written is no error.
void write_torchrun_error_file(const std::string& path, const FailureReport& report);

std::int64_t monotonic_ns();

}  // namespace shoal::apps
