#pragma once

#include <string>
#include <vector>

namespace shoal::apps {

// In a child, between fork and exec.

/// A process group of its own, killed when `parent` dies.
void follow(int parent);
/// This executable anew with `words` behind the program's name. Returns only when that fails; errno
/// says why.
void become_own_program(const std::vector<std::string>& words);

/// What this program, started anew, wrote, and how it ended.
struct Answer {
  int code = 0;  ///< exit code; 128 + n when signal n killed it
  std::string out, err;
};

/// Starts this program anew with `words` behind its name and waits for its end. Throws
/// Error(resource) when it cannot be started.
Answer ask_own_program(const std::vector<std::string>& words);

}  // namespace shoal::apps
