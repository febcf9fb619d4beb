#pragma once

#include <CLI/CLI.hpp>

namespace shoal::apps {

/// Returns a check for options of unsigned types, which would read text such as -1 as a number near
/// 2^64.
inline CLI::Validator not_negative() {
  return {[](std::string& text) {
            return std::string(text.starts_with('-') ? "must not be negative" : "");
          },
          "NONNEGATIVE"};
}

// The subcommands, one file each. A command adds itself to the program and works while the program
// parses; it throws shoal::Error, or leaves an exit code other than 0 in `exit_code`, which lives
// as long as the program.

void add_train_command(CLI::App& program, int& exit_code);
void add_generate_command(CLI::App& program, int& exit_code);
void add_eval_command(CLI::App& program, int& exit_code);
void add_env_command(CLI::App& program);

}  // namespace shoal::apps
