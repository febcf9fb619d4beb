#include "apps/shoal/watch/last_run.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/shoal/exit_code.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"

namespace shoal::apps {

std::string to_json(const LastRun& last) {
  const nlohmann::ordered_json object = {{"code", last.code},
                                         {"ended", last.ended},
                                         {"total_steps", last.total_steps},
                                         {"ranks", last.ranks},
                                         {"cause", last.cause}};
  // A cause may quote bytes of a file that are no UTF-8.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<LastRun> parse_last_run(const std::string& text) {
  try {
    const auto object = nlohmann::json::parse(text);
    return LastRun{.code = object.at("code"),
                   .ended = object.at("ended"),
                   .total_steps = object.at("total_steps"),
                   .ranks = object.at("ranks"),
                   .cause = object.at("cause")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string last_run_file(const std::string& run_directory) {
  return run_directory + "/logs/last_run.json";
}

std::optional<LastRun> read_last_run(const std::string& run_directory) {
  const auto text = read_text(last_run_file(run_directory));
  return text ? parse_last_run(*text) : std::nullopt;
}

void write_last_run(const std::string& run_directory, const LastRun& last) {
  try {
    replace_text(last_run_file(run_directory), to_json(last) + "\n", "watch");
  } catch (const Error&) {
    // The run's own ending is what its caller hears of; without the file, `shoal status` says that
    // it does not know how the run ended.
  }
}

void forget_last_run(const std::string& run_directory) {
  std::error_code ignored;
  std::filesystem::remove(last_run_file(run_directory), ignored);
}

std::string describe_code(int code) {
  if (code == 0) return "finished";
  const char* signal = code > 128 && code < 128 + NSIG ? ::sigabbrev_np(code - 128) : nullptr;
  if (signal) {
    return fmt::format("{} by SIG{}", ended_in_order(code) ? "stopped" : "ended", signal);
  }
  return fmt::format("failed with code {}", code);
}

bool ended_in_order(int code) { return code == 0 || is_stop_code(code); }

}  // namespace shoal::apps
