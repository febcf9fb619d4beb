#pragma once

#include <string>

namespace shoal::python {

/// Returns whether this is the thread in which Python runs the handlers of signals.
bool runs_signal_handlers();

/// Runs the handlers of the signals that have come, and throws what a handler raises, such as
/// KeyboardInterrupt after Ctrl-C. Takes Python's global lock, so the caller may hold no lock for
/// which a thread with that one waits.
void run_signal_handlers();

/// Returns whether somebody types at this process, in Python or in a notebook: an exception ends
/// nothing there. Takes Python's global lock.
bool at_a_prompt();

/// Prints a line where Python prints errors: in a notebook below the cell. Takes Python's global
/// lock.
void print_error(const std::string& line);

}  // namespace shoal::python
