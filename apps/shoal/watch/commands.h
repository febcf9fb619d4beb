#pragma once

#include <chrono>
#include <string>

namespace CLI {
class App;
}

namespace shoal::apps {

// The subcommands that watch and steer a run from another terminal, as in apps/shoal/command.h.

/// `shoal status`: one screen, or one JSON object, about a run that goes on or is over.
void add_status_command(CLI::App& program);
/// `shoal top`: the same, again each second.
void add_top_command(CLI::App& program);
/// `shoal stop`, `shoal save`, `shoal diagnose`. The last leaves exit code 1 where something stands
/// still.
void add_steer_commands(CLI::App& program, int& exit_code);

/// A process that serves a run answers at once; one that stands still never does.
inline constexpr auto kAnswerWithin = std::chrono::seconds(2);

/// Adds the run directory to a command. Without it the run below ./runs that was started last is
/// meant.
void add_directory_option(CLI::App& command, std::string& directory);
/// Returns the run directory that is meant.
std::string chosen_directory(const std::string& directory);

}  // namespace shoal::apps
