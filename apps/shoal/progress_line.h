#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace shoal::apps {

/// Prints progress as one line that is rewritten on a terminal, and as a line at the end of each
/// stage elsewhere.
class ProgressLine {
 public:
  void operator()(const std::string& stage, std::uint64_t done, std::uint64_t total) {
    if (done == 0 || stage != stage_) begin_ = std::chrono::steady_clock::now();
    stage_ = stage;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
    const bool end = done >= total;
    if (!terminal_) {
      if (end) fmt::print(stderr, "{}: done in {:.1f} s\n", stage, seconds.count());
      return;
    }
    constexpr int kWidth = 30;
    const int filled = total == 0 ? kWidth : static_cast<int>(kWidth * done / total);
    fmt::print(stderr, "\r\x1b[K{:<24} [{:█<{}}{:·<{}}] {:3}%  {:.1f} s{}", stage, "", filled, "",
               kWidth - filled, total == 0 ? 100 : 100 * done / total, seconds.count(),
               end ? "\n" : "");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  std::string stage_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace shoal::apps
