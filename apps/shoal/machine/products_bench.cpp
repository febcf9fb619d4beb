#include "apps/shoal/machine/products_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "apps/shoal/app_library.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/machine/compare_options.h"
#include "apps/shoal/machine/compared_cluster.h"
#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/machine/product_table.h"
#include "apps/shoal/other_load.h"
#include "apps/shoal/plan/options.h"
#include "shoal/base/error.h"
#include "shoal/forecast/product_shapes.h"
#include "shoal/wire/host_memory.h"

namespace shoal::apps {
namespace {

/// Tokens of a sample of a model that is no job, unless it takes fewer.
constexpr std::int64_t kTokens = 1024;

struct ProductsOptions {
  PlanOptions plan;  ///< the model or job, and how it is trained
  ComparedCluster cluster;
  int ranks = 0;  ///< 0: those of the job, or one
  int threads = 0;
  double seconds = 0.1;
  bool no_bf16 = false;
  bool json = false;
};

/// The products that are measured, and the ranks that run them.
struct Task {
  std::string title = "shapes of a calibration";
  int ranks = 1;
  int threads = 0;
  std::vector<forecast::ProductShape> shapes = forecast::calibration_shapes();
  std::optional<model::ModelSpec> spec = std::nullopt;  ///< nothing: no model
  plan::Training training = {};                         ///< of the model
};

Task task_of(const ProductsOptions& options) {
  Task task{.ranks = std::max(options.ranks, 1), .threads = options.threads};
  if (options.plan.model.empty()) return task;
  PlanOptions plan = options.plan;
  task.title = plan.model;
  if (is_job(plan)) require_known_sizes(plan);
  const model::ModelSpec spec = model_of(plan);
  if (plan.sequence != 0 && spec.family == model::Family::kMlp) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("products {}: --seq-len is of a transformer, and this model is a "
                            "multi-layer perceptron",
                            plan.model));
  }
  std::int64_t devices = 1;
  if (is_job(plan)) {
    const train::ParallelismSection& parallelism = job_of(plan).config.parallelism;
    devices = parallelism.ranks;
    task.ranks = ranks_to_measure("products", plan.model, devices, options.ranks);
    if (options.threads == 0) task.threads = static_cast<int>(parallelism.threads_per_rank);
  } else if (plan.sequence == 0 && spec.sequence > 0) {
    plan.sequence = std::min(spec.sequence, kTokens);
  }
  task.spec = spec;
  task.training = training_of(plan, spec, devices);
  task.shapes = forecast::product_shapes(spec, task.training);
  return task;
}

/// Refuses what would not fit, before anything is allocated.
void check_memory(const Task& task) {
  const auto larger = [](const auto& a, const auto& b) { return a.bytes() < b.bytes(); };
  const auto largest = std::max_element(task.shapes.begin(), task.shapes.end(), larger);
  const double wanted = task.ranks * largest->bytes();
  const auto available = static_cast<double>(wire::available_memory_bytes());
  if (wanted <= 0.9 * available) return;
  throw Error(ErrorKind::kResource, "bench",
              fmt::format("products {}: the matrices of {} take {:.4g} MB on {} rank{}, and {:.4g} "
                          "MB are available",
                          task.title, largest->layers, wanted / 1e6, task.ranks,
                          task.ranks == 1 ? "" : "s", available / 1e6))
      .hint("fewer rows: --micro-batch, --seq-len; or fewer ranks: --nproc");
}

void check(const ProductsOptions& options) {
  if (!options.plan.model.empty() && options.cluster.update) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("products {}: --update takes the shapes of a calibration, which tell "
                            "what a matmul of any size takes: leave the model out",
                            options.plan.model));
  }
  const PlanOptions& plan = options.plan;
  if (plan.model.empty() && (!plan.sets.empty() || plan.micro_batch != 0 || plan.sequence != 0)) {
    throw Error(ErrorKind::kUsage, "bench",
                "products: --set, --micro-batch and --seq-len go with a model");
  }
  if (!plan.sets.empty() && !is_job(plan)) {
    throw Error(
        ErrorKind::kUsage, "bench",
        fmt::format("products {}: --set sets a key of a job file, and there is none", plan.model));
  }
}

void measure(const ProductsOptions& options) {
  check(options);
  const Task task = task_of(options);
  plan::Cluster cluster = options.cluster.load(task.ranks, Measured::kRanks);
  check_memory(task);
  ProductTable table{.title = task.title, .planned_by = options.cluster.called(cluster)};
  ProductArguments& arguments = table.measured;
  arguments.by = measured_by(task.ranks, task.threads, options.seconds);
  arguments.shapes = task.shapes;
  arguments.passes = {forecast::ProductPass::kForward, forecast::ProductPass::kInputGradient,
                      forecast::ProductPass::kWeightGradient};
  arguments.types = {ElementType::kF32};
  if (!options.no_bf16) arguments.types.push_back(ElementType::kBF16);
  arguments.peaks = true;
  const std::string crowded =
      crowding(cores_of_this_process(), arguments.by.ranks, arguments.by.threads);
  const OtherLoad load;
  AppLibrary().entry<int(ProductArguments*)>("shoal_products_main")(&arguments);
  table.others_cores = load.cores();
  table.planned = cluster;
  for (const ElementType type : arguments.types) {
    if (task.spec && forecast::planned_by_kernels(*task.spec, task.training, cluster, type))
      table.by_kernels.insert(type);
  }
  fmt::print("{}", options.json ? products_json(table) : products_text(table));
  if (options.cluster.update) {
    forecast::set_products(cluster, timed_products(arguments));
    options.cluster.write(cluster);
  }
  if (options.json) return;
  if (options.cluster.update) {
    fmt::print("written to {}: device.peak_flops and what a matmul gets of it\n",
               options.cluster.name);
  }
  fmt::print("{}{}", crowded, disturbance(table.others_cores));
}

}  // namespace

void add_products_bench(CLI::App& bench) {
  auto options = std::make_shared<ProductsOptions>();
  CLI::App* command = bench.add_subcommand(
      "products",
      "Time the matmuls of a model's linear layers, forward and for both gradients, beside what a "
      "plain loop reaches and what the planner counts");
  command->option_defaults()->always_capture_default();
  command->add_option("model", options->plan.model,
                      "A job file (.toml), a named size, or a Hugging Face config.json; otherwise "
                      "the shapes of a calibration");
  command
      ->add_option("--set", options->plan.sets, "Of a job file: section.key=value; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--micro-batch", options->plan.micro_batch,
                   "Samples that a rank runs at once (the job's, or 1)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--seq-len", options->plan.sequence,
                   "Tokens of a sample (the job's, or the model's longest, 1024 at most)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--nproc", options->ranks,
                   "Ranks at work at the same time; 0: those of the job, or one")
      ->check(CLI::Range(0, kMostRanks));
  command
      ->add_option("--threads", options->threads,
                   "Threads of each; 0: those of the job, or an equal part of the cores")
      ->check(CLI::Range(0, 1024));
  command->add_option("--seconds", options->seconds, "Time per case")->check(CLI::PositiveNumber);
  command->add_flag("--no-bf16", options->no_bf16, "Measure fp32 alone");
  add_compare_options(*command, options->cluster, options->json);
  command->callback([options] { measure(*options); });
}

}  // namespace shoal::apps
