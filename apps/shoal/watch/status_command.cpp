#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "apps/shoal/watch/commands.h"
#include "apps/shoal/watch/run_summary.h"
#include "apps/shoal/watch/status_text.h"

namespace shoal::apps {

void add_directory_option(CLI::App& command, std::string& directory) {
  command.add_option("directory", directory,
                     "The run directory; default: the one below ./runs that was started last");
}

std::string chosen_directory(const std::string& directory) {
  return directory.empty() ? newest_run_directory() : directory;
}

void add_status_command(CLI::App& program) {
  struct Options {
    std::string directory;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("status", "Show how far a run is, from another terminal");
  add_directory_option(*command, options->directory);
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] {
    const RunSummary run =
        look_at_run(chosen_directory(options->directory), Deadline::in(kAnswerWithin));
    fmt::print("{}", options->json ? status_json(run) : status_text(run));
  });
}

}  // namespace shoal::apps
