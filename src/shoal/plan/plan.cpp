#include "shoal/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"
#include "shoal/plan/search.h"

namespace shoal::plan {
namespace {

/// Seconds to notice a failure, end the processes and start them again.
constexpr double kRestartS = 180;

double peak_bytes(const Estimator& estimator, const ModelSpec& spec, const Training& training,
                  const Cluster& cluster) {
  return worst(estimator.memory(spec, training, cluster)).peak().use.all();
}

bool fits(const Estimator& estimator, const ModelSpec& spec, const Training& training,
          const Cluster& cluster) {
  try {
    validate(spec, training, cluster.runtime);
  } catch (const Error&) {
    return false;
  }
  return peak_bytes(estimator, spec, training, cluster) <= cluster.device.memory_bytes &&
         offloaded_bytes(spec, training, cluster) <= cluster.host.memory_bytes;
}

std::vector<std::string> remedies(const Estimator& estimator, const ModelSpec& spec,
                                  const Training& training, const Cluster& cluster) {
  std::vector<std::string> list;
  // Each change is tried alone: what is listed suffices by itself.
  const auto try_change = [&](const Training& changed, const std::string& remedy) {
    if (fits(estimator, spec, changed, cluster)) list.push_back(remedy);
  };
  const auto gib = [&](const Training& changed) {
    return peak_bytes(estimator, spec, changed, cluster) / (1024.0 * 1024 * 1024);
  };
  for (int zero = training.zero_stage + 1; zero <= 3 && training.degrees.shard_ranks() > 1;
       ++zero) {
    Training changed = training;
    changed.zero_stage = zero;
    try_change(changed, fmt::format("--zero {} ({:.1f} GiB)", zero, gib(changed)));
  }
  for (const auto& [recompute, word] :
       {std::pair{Recompute::kSelective, "selective"}, {Recompute::kFull, "full"}}) {
    if (recompute <= training.recompute) continue;
    Training changed = training;
    changed.recompute = recompute;
    try_change(changed, fmt::format("--recompute {} ({:.1f} GiB)", word, gib(changed)));
  }
  if (training.micro_batch > 1) {
    Training changed = training;
    changed.micro_batch = 1;
    try_change(changed, fmt::format("--micro-batch 1 ({:.1f} GiB)", gib(changed)));
  }
  if (!training.offload_optimizer && cluster.host.link_bandwidth > 0) {
    Training changed = training;
    changed.offload_optimizer = true;
    try_change(changed, fmt::format("--offload-optimizer ({:.1f} GiB)", gib(changed)));
  }
  // Devices are moved from data to tensor or pipeline parallelism; their number stays.
  for (const std::int64_t factor : {2, 4, 8}) {
    Training fewer = training;
    // Copies go first: with as many shards as before, a rank's states do not grow.
    Degrees& degrees = fewer.degrees;
    std::int64_t& given_up =
        degrees.dp_replicate % factor == 0 ? degrees.dp_replicate : degrees.dp_shard;
    if (given_up % factor != 0) break;
    given_up /= factor;
    Training wider = fewer;
    Training deeper = fewer;
    wider.degrees.tp *= factor;
    deeper.degrees.pp *= factor;
    // A recipe is of one degree.
    if (!training.division && fits(estimator, spec, wider, cluster)) {
      try_change(wider, fmt::format("--tp {} --dp {} ({:.1f} GiB)", wider.degrees.tp,
                                    wider.degrees.dp(), gib(wider)));
    }
    if (fits(estimator, spec, deeper, cluster)) {
      try_change(deeper, fmt::format("--pp {} --dp {} ({:.1f} GiB)", deeper.degrees.pp,
                                     deeper.degrees.dp(), gib(deeper)));
    }
  }
  Training everything = training;
  everything.micro_batch = 1;
  everything.recompute = Recompute::kFull;
  everything.zero_stage = 3;
  // Nothing alone suffices: the three that cost no devices, together.
  if (list.empty() && training.degrees.shard_ranks() > 1) {
    try_change(everything,
               fmt::format("--zero 3 --recompute full --micro-batch 1 together ({:.1f} GiB)",
                           gib(everything)));
  }
  return list;
}

FailureModel failures(const Plan& plan, double checkpoint) {
  FailureModel model;
  const double devices = static_cast<double>(plan.cluster.devices());
  // Any device stops the run, so that the mean time between failures falls with their number.
  model.mtbf_s = plan.cluster.device.hours_between_failures * 3600 / devices;
  const Storage& storage = plan.cluster.storage;
  // Training stands still while a checkpoint is written: the estimate is for those that are not
  // written behind it.
  model.checkpoint_s = storage.write_bandwidth > 0 ? checkpoint / storage.write_bandwidth : 0;
  model.restart_s =
      kRestartS + (storage.read_bandwidth > 0 ? checkpoint / storage.read_bandwidth : 0);
  return model;
}

RunEstimate estimate(const Plan& plan, const Budget& budget) {
  RunEstimate run;
  const double step = plan.time.all();
  // Tokens of a step, or rows where there are no tokens.
  const double per_step = static_cast<double>(plan.training.global_batch) *
                          (plan.spec.family == Family::kMlp ? 1 : plan.training.length(plan.spec));
  const double devices = static_cast<double>(plan.cluster.devices());
  const double price = plan.cluster.device.price_per_hour;
  run.checkpoint_bytes = checkpoint_bytes(plan.spec, plan.training);
  const FailureModel model = run.failures = failures(plan, run.checkpoint_bytes);
  if (model.checkpoint_s > 0) {
    // No checkpoint can be written within a step; without failures an hour is as good as any.
    run.checkpoint_interval_s = model.mtbf_s > 0 ? std::max(step, daly_interval_s(model)) : 3600;
    run.goodput = goodput(model, run.checkpoint_interval_s);
  }
  double seconds = 0;
  // Tokens give the time, or time and money give the tokens; goodput is the share of the time that
  // trains.
  if (budget.tokens > 0) {
    run.tokens = budget.tokens;
    seconds = budget.tokens / per_step * step / run.goodput;
  } else {
    if (budget.money > 0 && price <= 0) {
      throw Error(
          ErrorKind::kConfig, "plan",
          fmt::format("money = {}: cluster {} names no price", budget.money, plan.cluster.name))
          .hint("set device.price_per_hour in the cluster file");
    }
    seconds = budget.hours > 0 ? budget.hours * 3600 : budget.money / (price * devices) * 3600;
    run.tokens = seconds * run.goodput / step * per_step;
  }
  run.steps = run.tokens / per_step;
  run.days = seconds / 86400;
  run.device_hours = seconds / 3600 * devices;
  run.energy_kwh = run.device_hours * plan.cluster.device.power_w / 1000;
  run.cost = run.device_hours * price;
  run.data_bytes = run.tokens * budget.bytes_per_token;
  run.read_bytes_per_s = per_step * budget.bytes_per_token / step;
  return run;
}

void validate_budget(const Budget& budget) {
  int given = 0;
  for (const auto& [name, value] :
       {std::pair{"tokens", budget.tokens}, {"hours", budget.hours}, {"money", budget.money}}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      throw Error(ErrorKind::kConfig, "plan",
                  fmt::format("{} = {}: must not be negative", name, value));
    }
    given += value > 0;
  }
  if (!(budget.bytes_per_token > 0) || !std::isfinite(budget.bytes_per_token)) {
    throw Error(ErrorKind::kConfig, "plan",
                fmt::format("bytes-per-token = {}: must be positive", budget.bytes_per_token));
  }
  if (given > 1) {
    throw Error(ErrorKind::kConfig, "plan",
                "only one of tokens, hours and money can be the budget");
  }
}

}  // namespace

double Plan::activation_bytes() const {
  double most = 0;
  for (const MemoryPhase& phase : worst(memory).phases)
    most = std::max(most, phase.use.activations);
  return most;
}

Plan make_plan(const Estimator& estimator, const ModelSpec& spec, const Training& training,
               const Cluster& cluster, const Budget& budget) {
  validate(spec, training, cluster.runtime);
  validate(cluster);
  validate_budget(budget);
  if (training.degrees.ranks() != cluster.devices()) {
    throw Error(ErrorKind::kConfig, "plan",
                fmt::format("devices = {}: the mesh dp {} x tp {} x pp {} x cp {} has {}",
                            cluster.devices(), training.degrees.dp(), training.degrees.tp,
                            training.degrees.pp, training.degrees.cp, training.degrees.ranks()));
  }
  Plan plan;
  plan.spec = spec;
  plan.training = training;
  plan.cluster = cluster;
  plan.parameters = parameter_count(spec);
  plan.recompute_logits = estimator.recomputes_logits(spec, training, cluster);
  Training chosen = training;
  chosen.recompute_logits = plan.recompute_logits;
  plan.memory = estimator.memory(spec, chosen, cluster);
  plan.capacity_bytes = cluster.device.memory_bytes;
  plan.host_bytes = offloaded_bytes(spec, training, cluster);
  plan.flops = step_flops(spec, training);
  plan.traffic = traffic(spec, training, cluster);
  plan.time = estimator.step_time(spec, chosen, cluster);
  // MFU (Chowdhery et al., 2022, appendix B): model FLOPs over what all devices could do in the
  // time of the step. HFU counts what is recomputed too.
  const double peak = cluster.peak(precision(training.precision)->compute) *
                      static_cast<double>(cluster.devices()) * plan.time.all();
  plan.mfu = plan.flops.model / peak;
  plan.mfu_causal = plan.flops.model_causal / peak;
  plan.hfu = plan.flops.hardware / peak;
  plan.limited_by = limiting_part(spec, training, cluster, plan.time);
  if (!plan.fits()) plan.remedies = remedies(estimator, spec, training, cluster);
  if (budget.tokens > 0 || budget.hours > 0 || budget.money > 0) plan.run = estimate(plan, budget);
  return plan;
}

}  // namespace shoal::plan
