#include "shoal/train/config/profile.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "apps/shoal/command.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"

namespace shoal::apps {
namespace {

struct ProfileOptions {
  std::string path;
  bool units = false;
  bool json = false;
};

std::string read_trace(const std::string& path) {
  const std::string file = std::filesystem::is_directory(path) ? path + "/trace.json" : path;
  auto text = read_text(file);
  if (!text) {
    throw Error(ErrorKind::kInputMissing, "profile", "cannot read " + file)
        .hint("a job writes it with --set 'metrics.trace_steps=[10, 12]'");
  }
  return *std::move(text);
}

}  // namespace

void add_profile_command(CLI::App& program) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command =
      program.add_subcommand("profile", "Show where the time of the recorded steps went");
  command->add_option("trace", options->path, "A run directory, or a trace.json")->required();
  command->add_flag("--units", options->units, "Show the units of the model too");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] {
    const train::Profile profile = train::profile_of(read_trace(options->path));
    fmt::print("{}", options->json ? to_json(profile) : describe(profile, options->units));
  });
}

}  // namespace shoal::apps
