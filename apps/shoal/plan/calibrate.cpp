#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "apps/shoal/app_library.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/machine/compared_cluster.h"
#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/machine/product_table.h"
#include "apps/shoal/other_load.h"
#include "apps/shoal/plan/commands.h"
#include "apps/shoal/plan/output_files.h"
#include "apps/shoal/self_exec.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/forecast/calibration.h"
#include "shoal/train/config/link_costs.h"

namespace shoal::apps {
namespace {

struct CalibrateOptions {
  std::string output = "cluster.toml";
  std::string name = "here";
  int ranks = 1;
  int threads = 0;
  int rounds = KernelArguments{}.rounds;
  double seconds = 0.2;
  bool no_bf16 = false;
};

/// Runs `shoal bench collectives` and returns its line of each case. Its ranks are processes that
/// make public calls and check the results.
std::vector<nlohmann::json> collectives(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "collectives"});
  arguments.push_back("--json");
  const SelfRun answer = run_self(arguments);
  if (answer.code != 0) {
    throw Error(ErrorKind::kInternal, "calibrate",
                fmt::format("the collectives' benchmark failed: {}", answer.err));
  }
  std::vector<nlohmann::json> cases;
  std::istringstream lines(answer.out);
  for (std::string line; std::getline(lines, line);) {
    // Lines that are no measurement are passed over.
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("us_p50")) cases.push_back(std::move(json));
  }
  return cases;
}

forecast::TimedWork timed_work(const nlohmann::json& line) {
  return {line.at("bytes").get<double>(), line.at("us_p50").get<double>() * 1e-6};
}

/// Times the all-reduce among as many ranks as a job will have.
std::vector<forecast::TimedWork> all_reduces(const CalibrateOptions& options) {
  if (options.ranks == 1) return {};
  std::vector<forecast::TimedWork> timed;
  for (const nlohmann::json& line : collectives(
           {"--nproc", fmt::format("{}", options.ranks), "--op", "all_reduce", "--bytes",
            "4096:268435456", "--factor", "256", "--seconds", fmt::format("{}", options.seconds)}))
    timed.push_back(timed_work(line));
  return timed;
}

/// Returns bytes folded into a result and the time of the fastest of a few rounds: nothing else
/// runs beside the ranks of a job either.
forecast::TimedWork folding() {
  constexpr std::size_t kCount = 1 << 18;
  std::vector<float> mine(kCount, 1);
  std::vector<float> theirs(kCount, 1);
  const void* sources[] = {mine.data(), theirs.data()};
  void* target = mine.data();
  forecast::TimedWork best{kCount * sizeof(float), 1e9};
  for (int round = 0; round < 50; ++round) {
    const auto start = Clock::now();
    // Maxima of equal values stay what they are, however often they are folded.
    collective::fold(ElementType::kF32, collective::Reduction::kMax, sources, 2, &target, 1,
                     kCount);
    best.seconds = std::min(best.seconds, to_seconds(Clock::now() - start));
  }
  return best;
}

/// Measures what messages over TCP cost between two ranks of this host.
collective::CostModel link_costs(const CalibrateOptions& options) {
  forecast::MessageTimes measured;
  measured.fold = folding();
  const auto timed = [&](const char* op, const char* bytes) {
    std::vector<forecast::TimedWork> work;
    for (const nlohmann::json& line :
         collectives({"--nproc", "2", "--transport", "tcp", "--op", op, "--bytes", bytes,
                      "--factor", "8", "--seconds", fmt::format("{}", options.seconds)}))
      work.push_back(timed_work(line));
    return work;
  };
  measured.one_way = timed("ping_pong", "8:4194304");
  measured.message_s = timed("message_rate", "8").at(0).seconds;
  return forecast::message_costs(measured);
}

/// Measures what one of as many ranks as a job will have gets of cores and memory, by the pieces
/// of `shoal bench`.
void measure_ranks(const CalibrateOptions& options, const MeasuringRanks& by,
                   forecast::Measurements& measured) {
  const AppLibrary library;
  ProductArguments products{.by = by,
                            .shapes = forecast::calibration_shapes(),
                            .passes = {forecast::ProductPass::kForward},
                            .types = {ElementType::kF32},
                            .seconds = {},
                            .peak_flops = {}};
  if (!options.no_bf16) products.types.push_back(ElementType::kBF16);
  library.entry<int(ProductArguments*)>("shoal_products_main")(&products);
  measured.products = timed_products(products);
  MemoryArguments memory{.by = by, .loops = {}, .traversals = {}};
  library.entry<int(MemoryArguments*)>("shoal_memory_main")(&memory);
  measured.traversals = memory.traversals;
  KernelArguments kernels{
      .by = by, .rounds = options.rounds, .bf16 = !options.no_bf16, .kernels = {}};
  library.entry<int(KernelArguments*)>("shoal_kernels_main")(&kernels);
  measured.kernels = kernels.kernels;
}

void print_figures(const CalibrateOptions& options, const MeasuringRanks& by,
                   const plan::Cluster& cluster, const std::optional<collective::CostModel>& tcp) {
  const plan::Device& device = cluster.device;
  const double share = device.efficiency.matmul;
  fmt::print("{} ranks of {} threads: products {:.4g} GFLOP/s f32", by.ranks, by.threads,
             device.peak_flops.at(ElementType::kF32) * share / 1e9);
  if (const auto bf16 = device.peak_flops.find(ElementType::kBF16); bf16 != device.peak_flops.end())
    fmt::print(", {:.4g} bf16", bf16->second * share / 1e9);
  fmt::print("; memory {:.4g} GB/s; an operation {:.3g} us",
             device.memory_bandwidth * device.efficiency.memory / 1e9,
             device.efficiency.operation_s * 1e6);
  if (by.ranks > 1) {
    fmt::print("; all-reduce {:.4g} GB/s, {:.3g} us", cluster.inside.bandwidth / 1e9,
               cluster.inside.latency_s * 1e6);
  }
  if (tcp) {
    fmt::print("; TCP {:.4g} GB/s, {:.3g} us", 1e-9 / tcp->inside.beta,
               (tcp->inside.alpha + 2 * tcp->overhead) * 1e6);
  }
  fmt::print("\nwritten to {}: shoal plan --cluster {}\n", options.output, options.output);
}

void calibrate(const CalibrateOptions& options) {
  const MeasuringRanks by = measured_by(options.ranks, options.threads, options.seconds);
  forecast::Measurements measured;
  const OtherLoad load;
  // These processes start before threads of this process are pinned to cores: they would inherit
  // the pinning.
  measured.all_reduces = all_reduces(options);
  const auto tcp = options.ranks > 1 ? std::optional(link_costs(options)) : std::nullopt;
  measure_ranks(options, by, measured);
  const double others_cores = load.cores();
  measured.name = options.name;
  measured.ranks = options.ranks;
  const auto cores = static_cast<double>(cores_of_this_process().usable());
  if (cores < options.ranks * by.threads)
    measured.ranks_at_once = std::max(1.0, cores / by.threads);
  measured.memory_bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const plan::Cluster cluster = forecast::calibrated(measured);
  write_file(options.output, cluster_text(cluster, tcp));
  print_figures(options, by, cluster, tcp);
  fmt::print("{}", disturbance(others_cores));
}

}  // namespace

void add_calibrate_command(CLI::App& plan_command) {
  auto* command =
      plan_command.add_subcommand("calibrate", "Measure this machine and write a cluster file");
  auto options = std::make_shared<CalibrateOptions>();
  command->option_defaults()->always_capture_default();
  command->add_option("--output", options->output, "The file");
  command->add_option("--name", options->name, "What to call the machine");
  command
      ->add_option("--nproc", options->ranks, "Ranks at work at the same time, as a job will have")
      ->check(CLI::Range(1, kMostRanks));
  command
      ->add_option("--threads", options->threads, "Threads of each; 0: an equal part of the cores")
      ->check(CLI::Range(0, 1024));
  command->add_option("--seconds", options->seconds, "Time per case")->check(CLI::PositiveNumber);
  command
      ->add_option("--rounds", options->rounds,
                   "In how many rounds Shoal's kernels are measured; the mean without the slowest "
                   "quarter counts")
      ->check(CLI::Range(1, 100));
  command->add_flag("--no-bf16", options->no_bf16,
                    "Measure fp32 alone: a bf16 job is then planned by the device's peak");
  command->callback([options] { calibrate(*options); });
}

}  // namespace shoal::apps
