#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal::apps {

/// The state of a process of this host.
enum class ProcessState : std::uint8_t {
  kUnknown,  ///< it is not known here: on another host, or started by somebody else
  kRunning,
  kStopped,  ///< by a signal or a debugger
  kEnded
};

/// Returns the word for it: "running".
const char* name(ProcessState state);
/// Returns the state that name() has this word for; kUnknown for any other word.
ProcessState process_state_named(std::string_view word);

/// Returns the state of a process; kEnded when there is none with that number.
ProcessState state_of_process(int process);
/// Returns the state that a line of /proc/PID/stat tells.
ProcessState state_in(std::string_view stat_line);

/// Returns the bytes of memory that a process has in RAM, also what it shares with others; 0 when
/// there is no such process.
std::int64_t resident_bytes(int process);

}  // namespace shoal::apps
