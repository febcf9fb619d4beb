#pragma once

#include <csignal>
#include <exception>
#include <string>

namespace shoal::apps {

/// The ending of a program. Scripts read its code: 0 when the program has done its work,
/// shoal::exit_code(kind) for an Error: 1 unclassified, 2 bad command line, 65 bad data, 66 input
/// missing, 74 output failed, 78 bad configuration, 80 non-finite loss, 81 out of memory, 201 timed
/// out, 202 peer lost. 128 + n: signal n.
struct Ending {
  int code = 0;
  std::string text;  ///< for people, without a stack trace; empty when all went well
};

/// Returns the ending for an exception that ends the program.
Ending ending_of(const std::exception& error);

inline constexpr int signal_exit_code(int signal) { return 128 + signal; }

/// True for the code of a run that was asked to stop, and has saved.
inline constexpr bool is_stop_code(int code) {
  return code == signal_exit_code(SIGTERM) || code == signal_exit_code(SIGINT) ||
         code == signal_exit_code(SIGUSR1);
}

}  // namespace shoal::apps
