#include "apps/shoal/watch/process_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

namespace shoal::apps {

const char* name(ProcessState state) {
  switch (state) {
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kStopped:
      return "stopped";
    case ProcessState::kEnded:
      return "ended";
    case ProcessState::kUnknown:
      break;
  }
  return "unknown";
}

ProcessState process_state_named(std::string_view word) {
  for (const auto state : {ProcessState::kRunning, ProcessState::kStopped, ProcessState::kEnded})
    if (word == name(state)) return state;
  return ProcessState::kUnknown;
}

ProcessState state_of_process(int process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  return std::getline(file, line) ? state_in(line) : ProcessState::kEnded;
}

ProcessState state_in(std::string_view stat_line) {
  // The name in parentheses may itself hold ") ", so the last one counts; the state stands behind
  // it.
  const auto name_end = stat_line.rfind(") ");
  if (name_end == std::string_view::npos || name_end + 2 >= stat_line.size())
    return ProcessState::kUnknown;
  switch (stat_line[name_end + 2]) {
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'Z':
    case 'X':
      return ProcessState::kEnded;
    default:
      return ProcessState::kRunning;
  }
}

std::int64_t resident_bytes(int process) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  std::int64_t size = 0;
  std::int64_t resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace shoal::apps
