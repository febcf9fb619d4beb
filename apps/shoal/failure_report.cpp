#include "apps/shoal/failure_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/shoal/exit_code.h"
#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// POSIX writes up to PIPE_BUF bytes (at least 4 KiB here) as a whole: reports of several writers
/// do not mix, and a reader finds all or nothing.
constexpr std::size_t kLongest = 4000;

}  // namespace

std::int64_t monotonic_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

FailureReport failure_report(const std::exception& error, int own_rank) {
  const Ending ending = ending_of(error);
  // The monotonic clock is one for all processes of the host: reports can be ordered by it.
  FailureReport report{ending.code, false, monotonic_ns(), ending.text};
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    const ErrorKind kind = known->kind();
    // A rank that learned of another's failure throws the error of that rank, and names it, over
    // TCP as the rank of the error itself.
    const bool from_another = known->rank() >= 0 && known->rank() != own_rank;
    report.about_a_peer = known->peer() >= 0 || from_another || kind == ErrorKind::kPeerLost ||
                          kind == ErrorKind::kAborted || kind == ErrorKind::kTimeout;
  }
  return report;
}

void write_failure_report(int pipe, const FailureReport& report) {
  std::string message =
      fmt::format("{} {:d} {}\n{}", report.code, report.about_a_peer, report.time_ns, report.text);
  message.resize(std::min(message.size(), kLongest));
  // Nothing can be done about a failure here: the process ends, and the launcher sees its code.
  [[maybe_unused]] const auto written = ::write(pipe, message.data(), message.size());
}

std::optional<FailureReport> read_failure_report(int pipe) {
  char buffer[kLongest];
  const auto length = ::read(pipe, buffer, sizeof buffer);
  if (length <= 0) return std::nullopt;
  std::istringstream message(std::string(buffer, length));
  FailureReport report;
  if (!(message >> report.code >> report.about_a_peer >> report.time_ns)) return std::nullopt;
  message.ignore(1);
  std::getline(message, report.text, '\0');
  return report;
}

void write_torchrun_error_file(const std::string& path, const FailureReport& report) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const nlohmann::json extra = {
      {"py_callstack", report.text},
      {"timestamp", std::to_string(seconds + (report.about_a_peer ? 1 : 0))}};
  const nlohmann::json file = {{"message", {{"message", report.text}, {"extraInfo", extra}}}};
  // An error may quote bytes of a file that are no UTF-8.
  std::ofstream(path) << file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace shoal::apps
