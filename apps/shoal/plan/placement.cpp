#include "apps/shoal/plan/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/parallel/recipe/check.h"
#include "shoal/parallel/recipe/print.h"
#include "shoal/train/config/validate.h"

namespace shoal::apps {

void print_recipe(const PlanOptions& options) {
  PlanOptions of_job = options;
  of_job.model = options.recipe;
  const train::Job job = job_of(of_job);
  const train::ParallelismSection& p = job.config.parallelism;
  const std::int64_t tp = options.tp != 0 ? options.tp : p.tensor_parallel_degree;
  if (tp < 2) {
    reject(
        fmt::format("--recipe {}: tp = {}, and one rank divides nothing: set "
                    "parallelism.tensor_parallel_degree, or add --tp",
                    options.recipe, tp));
  }
  const model::ModelSpec spec = model_of(of_job);
  fmt::print("# {} on {} tensor-parallel ranks\n[parallelism]\ntensor_parallel_degree = {}\n{}",
             spec.name, tp, tp,
             parallel::print(parallel::check_recipe(train::job_recipe(job), spec, tp)));
}

void print_mesh(const PlanOptions& options) {
  const plan::Cluster cluster = cluster_of(options);
  plan::Degrees degrees;
  std::int64_t rest = 1;
  for (const auto& [option, given, degree] : {std::tuple{"tp", options.tp, &degrees.tp},
                                              {"pp", options.pp, &degrees.pp},
                                              {"cp", options.cp, &degrees.cp},
                                              {"ep", options.ep, &degrees.ep}}) {
    if (given < 0 || given > kMostDevices)
      reject(fmt::format("--{} {}: must lie between 1 and {}", option, given, kMostDevices));
    *degree = std::max<std::int64_t>(1, given);
    if (degree != &degrees.ep) rest *= *degree;
    if (rest > kMostDevices)
      reject(fmt::format("--{} {}: the mesh has more than {} ranks", option, given, kMostDevices));
  }
  const std::int64_t devices = cluster.devices();
  if (devices % rest != 0)
    reject(fmt::format("--devices {}: tp x pp x cp = {} must divide it", devices, rest));
  // Ranks that the cluster does not have would stand on hosts that it does not have.
  const std::int64_t dp = devices / rest;
  if (options.dp != 0 && options.dp != dp) {
    reject(fmt::format("--dp {}: {} devices / (tp x pp x cp = {}) are {} data ranks", options.dp,
                       devices, rest, dp));
  }
  degrees.shard_over(options.shard != 0 ? options.shard : dp * degrees.cp, dp);
  if (degrees.stage_ranks() % degrees.ep != 0) {
    reject(fmt::format("--ep {}: must divide tp x cp x dp = {}, as {} does", degrees.ep,
                       degrees.stage_ranks(),
                       plan::nearest_divisors(degrees.stage_ranks(), degrees.ep)));
  }
  fmt::print("{}", plan::rank_table(degrees, cluster.devices_per_host));
}

}  // namespace shoal::apps
