#include <CLI/CLI.hpp>
#include <memory>

#include "apps/shoal/app_library.h"
#include "apps/shoal/command.h"
#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

void add_replay_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<ReplayArguments>();
  CLI::App* command = program.add_subcommand(
      "replay",
      "Repeat the steps of a run of an elastic group on one process, and compare every bit");
  command
      ->add_option("run", options->run_directory,
                   "The run directory of a member; that of the member that began the group has all "
                   "steps")
      ->required();
  command->callback([options, &exit_code] {
    exit_code = AppLibrary().entry<int(const ReplayArguments*)>("shoal_replay_main")(options.get());
  });
}

}  // namespace shoal::apps
