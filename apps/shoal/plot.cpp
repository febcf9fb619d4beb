#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/shoal/command.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/train/config/loss_plot.h"

namespace shoal::apps {
namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::string out = "losses.svg";
  std::string title = "Training loss";
};

train::RunCurve read_run(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string file = fs::is_directory(path) ? path + "/metrics.jsonl" : path;
  if (!fs::exists(file)) {
    throw Error(ErrorKind::kInputMissing, "plot", fmt::format("there is no {}", file))
        .hint("name run directories, or their metrics.jsonl");
  }
  return {path, train::read_metrics(file)};
}

}  // namespace

void add_plot_command(CLI::App& program) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command =
      program.add_subcommand("plot", "Draw the loss curves of several runs in one picture");
  command->option_defaults()->always_capture_default();
  command->add_option("runs", options->runs, "Run directories, or files metrics.jsonl")->required();
  command->add_option("-o,--out", options->out, "The SVG picture");
  command->add_option("--title", options->title, "Its title");
  command->callback([options] {
    std::vector<train::RunCurve> curves;
    for (const std::string& run : options->runs) curves.push_back(read_run(run));
    replace_text(options->out, train::loss_curves(options->title, curves), "plot");
    fmt::print("{} shows {} run{}.\n", options->out, curves.size(), curves.size() == 1 ? "" : "s");
  });
}

}  // namespace shoal::apps
