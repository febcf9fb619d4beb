#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

namespace spdlog {
class logger;
}

namespace shoal {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kNothing };

/// The log of one rank: writes to its own file and, from a chosen level up, to the console. A value
/// over a shared logger; thread-safe. A default-constructed Log discards everything.
class Log {
 public:
  Log() = default;
  /// Lines go to `file` (empty: none) from `level` up, and to standard error from `console` up,
  /// each with time, rank and level.
  Log(const std::string& file, int rank, LogLevel level, LogLevel console);

  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kDebug, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kInfo, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kWarning, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kError, fmt::format(text, std::forward<Args>(args)...));
  }
  void write(LogLevel level, const std::string& line) const;

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace shoal
