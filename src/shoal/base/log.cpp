#include "shoal/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <vector>

namespace shoal {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kNothing:
      return spdlog::level::off;
  }
  return spdlog::level::err;
}

}  // namespace

Log::Log(const std::string& file, int rank, LogLevel level, LogLevel console) {
  std::vector<spdlog::sink_ptr> sinks;
  const std::string pattern = fmt::format("%Y-%m-%dT%H:%M:%S.%f rank {} %l: %v", rank);
  if (!file.empty()) {
    sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(file));
    sinks.back()->set_level(to_spdlog(level));
    sinks.back()->set_pattern(pattern);
  }
  sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  sinks.back()->set_level(to_spdlog(console));
  sinks.back()->set_pattern(fmt::format("[rank {}] %l: %v", rank));
  logger_ = std::make_shared<spdlog::logger>("shoal", sinks.begin(), sinks.end());
  logger_->set_level(spdlog::level::debug);
  // A process that is killed loses what it has not flushed; debug lines are too many to flush each.
  logger_->flush_on(spdlog::level::info);
}

void Log::write(LogLevel level, const std::string& line) const {
  if (logger_) logger_->log(to_spdlog(level), line);
}

}  // namespace shoal
