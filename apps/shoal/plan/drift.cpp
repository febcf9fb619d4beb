#include "apps/shoal/plan/drift.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/shoal/app_library.h"
#include "apps/shoal/cluster_file.h"
#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/plan/commands.h"
#include "apps/shoal/self_exec.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// Rounds of a measurement. They last several seconds: where other machines use the memory too, the
/// optimizer may take 1.6 times as long in one second as in the next.
constexpr int kRounds = 20;

struct DriftOptions {
  std::string cluster;
  double seconds = 1.2;
  bool json = false;
};

void drift(const DriftOptions& options) {
  const plan::Cluster cluster = load_cluster(options.cluster);
  if (cluster.kernels.empty()) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("drift {}: it has no [kernels]: `shoal plan calibrate` writes them",
                            options.cluster));
  }
  if (cluster.devices() > kMostRanks) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("drift {}: {} devices are not the ranks of one host", options.cluster,
                            cluster.devices()));
  }
  KernelArguments arguments{
      .by = measured_by(static_cast<int>(cluster.devices()), 0, options.seconds),
      .rounds = kRounds,
      .drift_only = true,
      .kernels = {}};
  AppLibrary().entry<int(KernelArguments*)>("shoal_kernels_main")(&arguments);
  const forecast::Drift drift = forecast::drift(cluster, arguments.kernels);
  if (options.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{
                   {"cluster", cluster.name}, {"core", drift.core}, {"memory", drift.memory}}
                   .dump());
  } else {
    fmt::print(
        "{} now takes {:.3f} times as long for what the cores do and {:.3f} times for what comes "
        "from memory as when {} was written\n",
        cluster.name, drift.core, drift.memory, options.cluster);
  }
}

}  // namespace

forecast::Drift measured_drift(const std::string& cluster_file) {
  // A new process, as a training run starts its ranks in new ones.
  const SelfRun answer = run_self({"plan", "drift", "--cluster", cluster_file, "--json"});
  const auto json = nlohmann::json::parse(answer.out, nullptr, false);
  if (answer.code != 0 || !json.is_object()) {
    throw Error(ErrorKind::kInternal, "plan",
                fmt::format("the machine could not be measured:\n{}{}", answer.out, answer.err));
  }
  return {json.at("core"), json.at("memory")};
}

void add_drift_command(CLI::App& plan_command) {
  auto* command = plan_command.add_subcommand(
      "drift", "How much slower this machine is now than when a cluster file was written");
  auto options = std::make_shared<DriftOptions>();
  command->add_option("--cluster", options->cluster, "What `shoal plan calibrate` wrote")
      ->required();
  command->add_option("--seconds", options->seconds, "Time per case")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { drift(*options); });
}

}  // namespace shoal::apps
