#include "apps/shoal/plan/calibrate.h"

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
#include "apps/shoal/cluster_file.h"
#include "apps/shoal/cores.h"
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
  int rounds = CalibrateArguments{}.rounds;
  double seconds = 0.2;
  bool no_bf16 = false;
};

std::vector<forecast::TimedWork> work_of(const std::vector<TimedSample>& samples) {
  std::vector<forecast::TimedWork> list;
  for (const TimedSample& sample : samples) list.push_back({sample.work, sample.seconds});
  return list;
}

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

void calibrate(const CalibrateOptions& options) {
  CalibrateArguments arguments = measured_by(options.ranks, options.threads);
  arguments.seconds = options.seconds;
  arguments.rounds = options.rounds;
  arguments.bf16 = !options.no_bf16;
  forecast::Measurements measured;
  const OtherLoad load;
  // These processes start before threads of this process are pinned to cores: they would inherit
  // the pinning.
  measured.all_reduces = all_reduces(options);
  const auto tcp = options.ranks > 1 ? std::optional(link_costs(options)) : std::nullopt;
  AppLibrary().entry<int(CalibrateArguments*)>("shoal_calibrate_main")(&arguments);
  const double others_cores = load.cores();
  measured.name = options.name;
  measured.ranks = options.ranks;
  const auto cores = static_cast<double>(cores_of_this_process().usable());
  if (cores < options.ranks * arguments.threads)
    measured.ranks_at_once = std::max(1.0, cores / arguments.threads);
  measured.memory_bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  measured.products[ElementType::kF32] = work_of(arguments.products_f32);
  if (!arguments.products_bf16.empty())
    measured.products[ElementType::kBF16] = work_of(arguments.products_bf16);
  measured.traversals = work_of(arguments.traversals);
  measured.kernels = arguments.kernels;
  const plan::Cluster cluster = forecast::calibrated(measured);
  std::string text = to_toml(cluster);
  if (tcp) {
    text +=
        "\n# parallelism.link_costs of a job reads this. Between hosts nothing is measured: "
        "what stands there is 10-gigabit Ethernet's.\n" +
        train::link_costs_section(*tcp);
  }
  write_file(options.output, text);
  const plan::Efficiency& efficiency = cluster.device.efficiency;
  fmt::print("{} ranks of {} threads: products {:.4g} GFLOP/s f32", options.ranks,
             arguments.threads,
             cluster.device.peak_flops.at(ElementType::kF32) * efficiency.matmul / 1e9);
  if (cluster.device.peak_flops.contains(ElementType::kBF16)) {
    fmt::print(", {:.4g} bf16",
               cluster.device.peak_flops.at(ElementType::kBF16) * efficiency.matmul / 1e9);
  }
  fmt::print("; memory {:.4g} GB/s; an operation {:.3g} us",
             cluster.device.memory_bandwidth * efficiency.memory / 1e9,
             efficiency.operation_s * 1e6);
  if (options.ranks > 1) {
    fmt::print("; all-reduce {:.4g} GB/s, {:.3g} us", cluster.inside.bandwidth / 1e9,
               cluster.inside.latency_s * 1e6);
  }
  if (tcp) {
    fmt::print("; TCP {:.4g} GB/s, {:.3g} us", 1e-9 / tcp->inside.beta,
               (tcp->inside.alpha + 2 * tcp->overhead) * 1e6);
  }
  fmt::print("\nwritten to {}: shoal plan --cluster {}\n", options.output, options.output);
  if (others_cores > kDisturbing) {
    fmt::print(
        "Other processes kept {:.2g} cores busy meanwhile: measure again when they have ended.\n",
        others_cores);
  }
}

}  // namespace

CalibrateArguments measured_by(int ranks, int threads) {
  CalibrateArguments arguments;
  arguments.ranks = ranks;
  const Cores cores = cores_of_this_process();
  arguments.threads = threads_per_rank(cores, ranks, threads);
  // Where there are fewer cores than threads nobody is pinned, as in a job.
  if (ranks * arguments.threads <= static_cast<int>(cores.list.size())) {
    for (int rank = 0; rank < ranks; ++rank)
      arguments.cores.push_back(cores_of_rank(cores, rank, ranks, arguments.threads));
  }
  return arguments;
}

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
