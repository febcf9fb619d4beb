#include "shoal/forecast/step_time.h"

#include <algorithm>
#include <vector>

#include "shoal/forecast/gradient_exchange.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/rank_states.h"
#include "shoal/forecast/unit_times.h"
#include "shoal/plan/logits_recomputation.h"

namespace shoal::forecast {
namespace {

/// AdamW in fp32 reads 16 bytes of a parameter (itself, its gradient, two moments) and writes 12.
constexpr double kUpdateBytes = 28;

class KernelStep {
 public:
  KernelStep(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec), training_(training), cluster_(cluster), units_(spec, training, cluster) {}

  StepTime run() const {
    StepTime time = training_.degrees.pp > 1 ? pipeline() : in_turn();
    time.of_measured_kernels = true;
    time.data_exposed += small_exchanges() + tied_exchange(spec_, training_, cluster_) +
                         member_exchange(spec_, training_, cluster_);
    // The norm of the gradient has brought all ranks together: the one with the most parameters is
    // waited for.
    const StateShares shares(training_, cluster_);
    const std::string name = training_.precision == "bf16" ? "optimizer_bf16" : "optimizer";
    for (const plan::HeldParameters& held : plan::held_by_rank(spec_, training_)) {
      time.optimizer = std::max(
          time.optimizer, kernel_seconds(cluster_, name, plan::memory_work(shares.owned(held))));
    }
    // The update copies first what it may have to take back: it reads and writes that once more.
    if (training_.post_validates()) time.optimizer *= 1 + 2 * training_.states->undo / kUpdateBytes;
    return time;
  }

  schedule::Costs stage_costs() const {
    schedule::Costs costs;
    for (const auto& [units, input, gradient] : stage_times()) {
      costs.stages.push_back({.forward = units.forward + input,
                              .input_gradient = units.input_gradient + gradient,
                              .weight_gradient = units.weight_gradient});
    }
    return costs;
  }

 private:
  std::int64_t rank_of(std::size_t stage) const {
    return plan::rank_of_stage(training_, static_cast<std::int64_t>(stage));
  }

  /// One micro-batch after the other.
  StepTime in_turn() const {
    const double m = static_cast<double>(training_.micro_batches());
    UnitTime all = units_.embedding();
    all += blocks(0, spec_.layers);
    all += units_.head();
    StepTime time;
    time.pipeline = m * all.all();
    time.communication = m * all.exchanged;
    time.recomputed = m * all.recomputed;
    time.data_exposed = gradient_exchange(spec_, training_, cluster_, 0);
    return time;
  }

  UnitTime blocks(std::int64_t begin, std::int64_t end) const {
    UnitTime all;
    for (std::int64_t b = begin; b < end; ++b) all += units_.block(b);
    return all;
  }

  /// The times of each stage's own units, and of what comes to it from the stages on both sides.
  struct Stage {
    UnitTime units;
    double input = 0;
    double gradient = 0;
  };
  std::vector<Stage> stage_times() const {
    std::vector<Stage> stages;
    std::int64_t first = 0;
    for (const std::int64_t count : plan::stage_blocks(spec_, training_)) {
      stages.push_back({blocks(first, first + count)});
      first += count;
    }
    stages.front().units += units_.embedding();
    stages.back().units += units_.head();
    for (std::size_t s = 0; s + 1 < stages.size(); ++s) {
      if (rank_of(s) == rank_of(s + 1)) continue;
      // Messages arrive where the receiver copies them, on the thread that computes.
      stages[s].gradient = stages[s + 1].input = units_.message();
    }
    return stages;
  }

  /// The table of the schedule, as the executor carries it out.
  StepTime pipeline() const {
    const schedule::Schedule table = plan::computation_table(training_);
    const schedule::Timeline timeline = schedule::simulate(table, stage_costs());
    std::vector<UnitTime> ranks(static_cast<std::size_t>(table.ranks()));
    const std::vector<Stage> stages = stage_times();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      UnitTime& rank = ranks[static_cast<std::size_t>(rank_of(s))];
      rank += stages[s].units;
      rank.exchanged += stages[s].input + stages[s].gradient;
    }
    StepTime time;
    double work = 0;
    for (const double busy : timeline.busy) work += busy / static_cast<double>(table.ranks());
    const double span = plan::step_span(training_, timeline);
    time.pipeline = elapsed(span, work);
    time.bubble = time.pipeline - work;
    const bool alone = training_.post_validates();
    double last = 0;
    for (int rank = 0; rank < table.ranks(); ++rank) {
      const UnitTime& own = ranks[static_cast<std::size_t>(rank)];
      const auto m = static_cast<double>(table.micro_batches);
      time.communication = std::max(time.communication, m * own.exchanged);
      time.recomputed = std::max(time.recomputed, m * own.recomputed);
      // A rank whose table ends early sums its gradients while others compute.
      const auto r = static_cast<std::size_t>(rank);
      last = std::max(last, timeline.end[r] - (alone ? timeline.begin[r] : 0) +
                                gradient_exchange(spec_, training_, cluster_, rank));
    }
    time.data_exposed = last - span;
    return time;
  }

  /// Returns the time that a table takes from step to step, where its own critical path takes
  /// `span`; `work`: the mean of its ranks. Kernels were measured with all ranks at work. If those
  /// share cores, a rank that waits leaves its share to others: the table then takes the work of
  /// all, or, with a core for each that does not wait, its own critical path.
  double elapsed(double span, double work) const {
    const double at_once = cluster_.host.devices_at_once;
    const auto ranks = static_cast<double>(cluster_.devices_per_host);
    if (at_once == 0 || at_once >= ranks) return span;
    return std::max(work, span * at_once / ranks);
  }

  /// Labels, loss with norm, and the map of used parameters: exchanges of a few bytes, which cost
  /// their start.
  double small_exchanges() const {
    if (training_.degrees.ranks() == 1) return 0;
    return 3 * kernel_seconds(cluster_, "all_reduce", {});
  }

  const ModelSpec& spec_;
  const Training& training_;
  const Cluster& cluster_;
  UnitTimes units_;
};

/// Returns true for fp32, and for bf16 with the usual fp32 masters, gradients and moments, if the
/// cluster has its kernels.
bool type_measured(const Training& training, const Cluster& cluster) {
  if (training.precision == "fp32") return true;
  const StateBytes usual = plan::precision("bf16", training.optimizer)->state;
  return training.precision == "bf16" && (!training.states || *training.states == usual) &&
         cluster.kernels.contains("linear_bf16");
}

}  // namespace

bool predicts_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return !cluster.kernels.empty() && predicts_memory(training) &&
         type_measured(training, cluster) && !training.offload_optimizer &&
         (training.zero_stage >= 2 || !training.reduces_every_micro_batch()) &&
         spec.family == Family::kTransformer && cluster.hosts == 1;
}

StepTime kernel_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return KernelStep(spec, training, cluster).run();
}

schedule::Costs kernel_stage_costs(const ModelSpec& spec, const Training& training,
                                   const Cluster& cluster) {
  return KernelStep(spec, training, cluster).stage_costs();
}

}  // namespace shoal::forecast
