#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "apps/shoal/app_library.h"
#include "apps/shoal/command.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/instruction_sets.h"
#include "shoal/train/config/lineage.h"

namespace shoal::apps {
namespace {

/// The bits of a step depend on the instruction set. Where the user sets no limit, it becomes that
/// of the members, as far as this processor reaches. It must be set before anything computes.
void compute_as_the_members(const std::string& run_directory) {
  const auto lineage = train::read_lineage(run_directory + "/lineage.jsonl");
  if (lineage.empty() || std::getenv("SHOAL_CPU") != nullptr) return;
  const std::string& set = lineage.front().instruction_set;
  const std::string own = instruction_set_in_use();
  const std::vector<std::string> limits = instruction_set_limits();
  if (set == own || std::find(limits.begin(), limits.end(), set) == limits.end()) return;
  limit_instruction_sets(set);
  ask_for_repeatable_products();
  if (instruction_set_in_use() == set)
    fmt::print("The members computed with {} instructions: this process is limited to them.\n",
               set);
}

}  // namespace

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
    compute_as_the_members(options->run_directory);
    exit_code = AppLibrary().entry<int(const ReplayArguments*)>("shoal_replay_main")(options.get());
  });
}

}  // namespace shoal::apps
