#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shoal::apps {

/// How the last start of a run ended: logs/last_run.json in its directory. There is none while it
/// runs, and none after it was killed.
struct LastRun {
  int code = 0;                  ///< exit code; 128 + n: signal n
  std::int64_t ended = 0;        ///< seconds since 1970
  std::int64_t total_steps = 0;  ///< 0: not known
  int ranks = 1;
  std::string cause{};  ///< the first failure, in one line or several; empty: none
};

std::string to_json(const LastRun& last);
/// Returns nothing for a text that is no such file.
std::optional<LastRun> parse_last_run(const std::string& text);

std::string last_run_file(const std::string& run_directory);
/// Returns nothing where no such file is, or one that is broken.
std::optional<LastRun> read_last_run(const std::string& run_directory);
/// Writes the file whole or not at all; a directory that takes none is no error.
void write_last_run(const std::string& run_directory, const LastRun& last);
/// Removes the file of the start before.
void forget_last_run(const std::string& run_directory);

/// Says an ending in words: "finished", "stopped by SIGTERM", "failed with code 80".
std::string describe_code(int code);
/// True for a run that did what it was asked: it has finished, or was asked to stop and has saved.
bool ended_in_order(int code);

}  // namespace shoal::apps
