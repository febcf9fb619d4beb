#pragma once

#include <optional>
#include <string>

#include "shoal/base/clock.h"
#include "shoal/wire/descriptor.h"

namespace shoal::apps {

/// Returns a socket that listens as <run directory>/control, for this user alone (mode 0600),
/// whatever the length of the path. The caller holds the directory's lock: a socket that is there
/// was left by a process that was killed, and is replaced. Throws Error(output).
wire::Descriptor listen_in(const std::string& run_directory);
/// Removes the socket file.
void remove_socket(const std::string& run_directory);

/// Sends a request of JobRequests to the run that uses `run_directory`. Returns the answer, without
/// its line end; nothing where no process listens. Throws Error(timeout) when a process listens and
/// does not answer until `deadline`, and Error(usage) when it is another user's.
std::optional<std::string> ask_run(const std::string& run_directory, const std::string& request,
                                   Deadline deadline);

}  // namespace shoal::apps
