#include "shoal/forecast/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/forecast/memory.h"
#include "shoal/schedule/generators.h"

namespace shoal::forecast {
namespace {

class KernelStep {
 public:
  KernelStep(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec),
        training_(training),
        cluster_(cluster),
        rows_(static_cast<double>(training.micro_batch * training.length(spec))),
        tensor_(static_cast<double>(training.degrees.tp)),
        of_type_(training.precision == "bf16" ? "_bf16" : "") {}

  StepTime run() const {
    // The ranks of a step end it together: the one with the most parameters is waited for.
    double parameters = 0;
    for (const plan::HeldParameters& held : plan::held_by_rank(spec_, training_))
      parameters = std::max(parameters, held.all());
    StepTime time = training_.degrees.pp > 1 ? pipeline() : in_turn();
    time.data_exposed = exchange(parameters) + tied_sum();
    time.optimizer = kernel("optimizer" + of_type_, plan::memory_work(parameters / shards()));
    return time;
  }

 private:
  /// One micro-batch after the other.
  StepTime in_turn() const {
    const double m = static_cast<double>(training_.micro_batches());
    const double layers = static_cast<double>(spec_.layers);
    StepTime time;
    time.recomputed = m * recomputed(0, spec_.layers);
    time.communication = m * (layers * 8 + 2) * stream_exchange();
    time.pipeline = m * (layers * (block_forward() + block_backward()) + embedding() + head()) +
                    time.communication + time.recomputed;
    return time;
  }

  /// The table of the schedule, with the times of each stage's own units. Messages between stages
  /// are thousandths of them, and go on beside them.
  StepTime pipeline() const {
    const auto table = schedule::make_schedule(
        training_.schedule, static_cast<int>(training_.degrees.pp),
        static_cast<int>(training_.chunks()), static_cast<int>(training_.micro_batches()));
    const std::vector<std::int64_t> blocks = plan::stage_blocks(spec_, training_);
    schedule::Costs costs;
    std::vector<double> recomputed_by(static_cast<std::size_t>(table.ranks()));
    std::int64_t first = 0;
    for (std::size_t s = 0; s < blocks.size(); ++s) {
      const double count = static_cast<double>(blocks[s]);
      const double again = recomputed(first, first + blocks[s]);
      const double exchanges = 4 * stream_exchange();
      // Half of the products of a backward pass are for weights.
      const double weights = products("linear_backward") / 2;
      schedule::StageCost cost{
          .forward = count * (block_forward() + exchanges),
          .input_gradient = count * (block_backward() - weights + exchanges) + again,
          .weight_gradient = count * weights};
      if (s == 0) cost.forward += embedding() + stream_exchange();
      // One product forward, two backward.
      if (s + 1 == blocks.size()) {
        cost.forward += head() / 3 + stream_exchange();
        cost.input_gradient += head() / 3;
        cost.weight_gradient += head() / 3;
      }
      recomputed_by[static_cast<std::size_t>(table.rank_of_stage[s])] +=
          static_cast<double>(table.micro_batches) * again;
      first += blocks[s];
      costs.stages.push_back(cost);
    }
    const schedule::Timeline timeline = schedule::simulate(table, costs);
    StepTime time;
    time.pipeline = timeline.makespan();
    time.bubble = timeline.bubble_fraction() * time.pipeline;
    time.recomputed = *std::max_element(recomputed_by.begin(), recomputed_by.end());
    return time;
  }

  /// Returns the time to sum the gradient of an embedding that two stages' ranks have.
  double tied_sum() const {
    const std::int64_t stages = training_.stages();
    const bool apart = training_.degrees.pp > 1 && plan::rank_of_stage(training_, 0) !=
                                                       plan::rank_of_stage(training_, stages - 1);
    if (!spec_.tied_embeddings || !apart) return 0;
    const double elements = static_cast<double>(spec_.vocab * spec_.hidden) / tensor_ / shards();
    return kernel("all_reduce", plan::memory_work(elements));
  }

  /// Returns the time of one gather or scattered sum of the residual stream among tensor-parallel
  /// ranks.
  double stream_exchange() const {
    return tensor_ > 1 ? kernel("reduce_scatter", plan::memory_work(rows_ * width())) : 0;
  }

  double kernel(const std::string& name, const KernelWork& work) const {
    const auto found = cluster_.kernels.find(name);
    if (found != cluster_.kernels.end()) return found->second.seconds(work);
    throw Error(ErrorKind::kConfig, "cluster",
                fmt::format("{}: kernels.{} is missing", cluster_.name, name))
        .hint("run `shoal plan calibrate` anew, with as many ranks as the job has on a host");
  }

  double width() const { return static_cast<double>(spec_.hidden); }
  // What a tensor-parallel rank has of features and heads; norms and dropout run on its rows.
  double own_rows() const { return rows_ / tensor_; }
  double ffn() const { return static_cast<double>(spec_.ffn) / tensor_; }
  double heads() const { return static_cast<double>(spec_.heads) / tensor_; }
  double queries() const { return heads() * static_cast<double>(spec_.head_size); }
  double qkv() const {
    const double pairs = std::max(static_cast<double>(spec_.kv_heads) / tensor_, 1.0);
    return (heads() + 2 * pairs) * static_cast<double>(spec_.head_size);
  }

  // The linear layers of a block: queries, keys and values; output; up, with gate where there is
  // one; down. All ranks are at work as they were when the kernels were timed.
  double products(const std::string& linear) const {
    const std::string name = linear + of_type_;
    return kernel(name, plan::linear_work(rows_, width(), qkv())) +
           kernel(name, plan::linear_work(rows_, queries(), width())) +
           (spec_.gated ? 2 : 1) * kernel(name, plan::linear_work(rows_, width(), ffn())) +
           kernel(name, plan::linear_work(rows_, ffn(), width()));
  }

  /// Returns the time between the matmuls of a block. `suffix` is "" or "_backward", as in the
  /// names of kernels.
  double between(const std::string& suffix) const {
    // What has no kernel name of its own is a pass over memory and takes what a norm of as many
    // elements takes.
    const double turned = spec_.positions == Positions::kRotary
                              ? kernel("norm" + suffix, plan::pass_work(rows_ * qkv()))
                              : 0;
    const double normed =
        spec_.qk_norm ? kernel("norm" + suffix, plan::pass_work(rows_ * qkv())) : 0;
    const double dropped =
        spec_.dropout > 0 ? 2 * kernel("norm" + suffix, plan::pass_work(own_rows() * width())) : 0;
    return 2 * kernel("norm" + suffix, plan::pass_work(own_rows() * width())) + normed + turned +
           dropped +
           kernel("activation" + suffix, plan::pass_work(rows_ * ffn() * (spec_.gated ? 2 : 1))) +
           kernel("attention" + suffix,
                  plan::attention_work(static_cast<double>(training_.micro_batch),
                                       training_.length(spec_), heads(),
                                       static_cast<double>(spec_.head_size)));
  }

  double block_forward() const { return products("linear") + between(""); }
  double block_backward() const { return products("linear_backward") + between("_backward"); }

  /// Returns the time of what blocks [begin, end) compute again.
  double recomputed(std::int64_t begin, std::int64_t end) const {
    double seconds = 0;
    for (std::int64_t b = begin; b < end; ++b) {
      const Keep keep = training_.kept.empty() ? kept_under(training_.recompute)
                                               : training_.kept[static_cast<std::size_t>(b)];
      // kProducts repeats everything but the matmuls; kInput repeats them too.
      if (keep != Keep::kEverything) seconds += between("");
      if (keep == Keep::kInput) seconds += products("linear");
    }
    return seconds;
  }

  /// Returns the time of the look-up: both passes are in the kernel.
  double embedding() const { return kernel("embedding", plan::pass_work(rows_ * width())); }
  /// Returns the time of the final norm and of the loss with its matmuls, both passes.
  double head() const {
    return kernel("norm", plan::pass_work(own_rows() * width())) +
           kernel("norm_backward", plan::pass_work(own_rows() * width())) +
           kernel("loss" + of_type_,
                  plan::loss_work(rows_, width(), static_cast<double>(spec_.vocab) / tensor_));
  }

  double shards() const {
    return training_.zero_stage > 0 ? static_cast<double>(training_.degrees.shard_ranks()) : 1;
  }

  /// Returns the time to reduce `parameters` over the data ranks, and of three small exchanges a
  /// step.
  double exchange(double parameters) const {
    const Degrees& degrees = training_.degrees;
    if (degrees.dp() * degrees.pp * degrees.tp == 1) return 0;
    // Labels, loss with norm, and the map of used parameters: exchanges of a few bytes, which cost
    // their start.
    const double small = 3 * kernel("all_reduce", {});
    if (degrees.dp() == 1) return small;
    if (training_.zero_stage == 0) {
      // Without shards each parameter is reduced in place by a call of its own.
      return small + spread("all_reduce", parameters,
                            static_cast<double>(model::parameters(spec_).size()) /
                                static_cast<double>(degrees.pp));
    }
    const double units = static_cast<double>(spec_.layers) / static_cast<double>(degrees.pp) + 2;
    const double times =
        training_.reduces_every_micro_batch() ? static_cast<double>(training_.micro_batches()) : 1;
    const double replicas = static_cast<double>(training_.degrees.dp()) / shards();
    // Hybrid sharding: what a rank owns is summed over the replicas once a step.
    const double across = replicas > 1 ? spread("all_reduce", parameters / shards(), units) : 0;
    return small + times * spread("reduce_scatter", parameters, units) + across;
  }

  /// Returns the time of so many elements in so many calls.
  double spread(const std::string& name, double elements, double calls) const {
    return calls * kernel(name, plan::memory_work(elements / calls));
  }

  const ModelSpec& spec_;
  const Training& training_;
  const Cluster& cluster_;
  double rows_;
  double tensor_;        ///< ranks that divide heads, features, vocabulary and the stream
  std::string of_type_;  ///< suffix of kernels that differ by the type of the weights
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
         spec.family == Family::kTransformer && spec.experts == 0 && cluster.hosts == 1;
}

StepTime kernel_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return KernelStep(spec, training, cluster).run();
}

}  // namespace shoal::forecast
