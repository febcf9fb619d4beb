#pragma once

#include <string>
#include <vector>

namespace shoal::apps {

// The first two run in a child, between fork and exec.

/// Puts this process into a group of its own and has the kernel kill it when `parent` dies.
void die_with_parent(int parent);
/// Replaces this process by its own executable with `arguments` behind the program's name. Returns
/// only when that fails; errno says why.
void exec_self(const std::vector<std::string>& arguments);

/// The output of this program, run once more, and how it ended.
struct SelfRun {
  int code = 0;  ///< exit code; 128 + n when signal n killed it
  std::string out;
  std::string err;
};

/// Runs this program once more with `arguments` behind its name and waits for its end. Throws
/// Error(resource) when it cannot be started.
SelfRun run_self(const std::vector<std::string>& arguments);

/// As above, and returns what it has printed. Where it does not end with code 0, throws
/// Error(internal) of `operation` with `failure` and all of its words.
std::string output_of_self(const std::vector<std::string>& arguments, const std::string& operation,
                           const std::string& failure);

}  // namespace shoal::apps
