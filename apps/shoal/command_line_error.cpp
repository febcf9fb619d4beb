#include "apps/shoal/command_line_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "shoal/base/nearest.h"

namespace shoal::apps {
namespace {

/// Options by which other programs choose an accelerator.
constexpr std::array<std::string_view, 7> kAccelerators = {
    "--gpus", "--gpu", "--device", "--devices", "--cuda", "--accelerator", "--nproc-per-gpu"};

/// The commands that the help lists.
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string with_hint(const std::string& what, const std::string& hint) {
  return hint.empty() ? what : fmt::format("{}. Hint: {}", what, hint);
}

/// "shoal data" of the command that was parsed.
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent ? full_name(*parent) + " " + app.get_name() : app.get_name();
}

std::string missing_command(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto commands = commands_of(app);
  const auto word = std::find_if(extras.begin(), extras.end(),
                                 [](const std::string& one) { return !one.starts_with('-'); });
  if (word == extras.end())
    return fmt::format("{}: name a command: {}", full_name(app), fmt::join(commands, ", "));
  const std::string near = nearest(*word, commands);
  return with_hint(fmt::format("no command '{}'", *word),
                   near.empty() ? fmt::format("there are {}", fmt::join(commands, ", "))
                                : fmt::format("did you mean {}?", near));
}

std::string unexpected(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto option = std::find_if(extras.begin(), extras.end(),
                                   [](const std::string& one) { return one.starts_with("--"); });
  if (option == extras.end())
    return fmt::format("{} does not expect: {}", full_name(app), fmt::join(extras, " "));
  const std::string name = option->substr(0, option->find('='));
  const std::string what = fmt::format("{} has no option {}", full_name(app), name);
  if (std::find(kAccelerators.begin(), kAccelerators.end(), name) != kAccelerators.end()) {
    return with_hint(what,
                     "--set parallelism.device=cuda of `shoal train` asks for GPUs, and --nproc is "
                     "the number of ranks");
  }
  const std::string near = nearest(name, options_of(app));
  return with_hint(what, near.empty() ? "" : fmt::format("did you mean {}?", near));
}

}  // namespace

std::string describe_command_line_error(const CLI::App& program, const CLI::ParseError& error) {
  // The innermost command that was parsed, or the first on the way to it that has arguments left.
  const CLI::App* app = &program;
  while (app->remaining().empty() && !app->get_subcommands().empty())
    app = app->get_subcommands().front();
  const std::vector<std::string> extras = app->remaining();
  // CLI11 names some errors after the command, so their kinds are told by their codes. It requires
  // options too: a command is missing only where none was parsed.
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (kind == CLI::ExitCodes::RequiredError && app->get_subcommands().empty() &&
      app->get_require_subcommand_min() > 0)
    return missing_command(*app, extras);
  if (kind == CLI::ExitCodes::ExtrasError && !extras.empty()) return unexpected(*app, extras);
  return error.what();
}

}  // namespace shoal::apps
