#include "shoal/forecast/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/rank_states.h"
#include "shoal/schedule/generators.h"

namespace shoal::forecast {
namespace {

class KernelStep {
 public:
  KernelStep(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec),
        training_(training),
        cluster_(cluster),
        rows_(static_cast<double>(training.micro_batch * training.length(spec)) /
              static_cast<double>(training.degrees.cp)),
        context_(static_cast<double>(training.degrees.cp)),
        tensor_(static_cast<double>(training.degrees.tp)),
        of_type_(training.precision == "bf16" ? "_bf16" : "") {}

  StepTime run() const {
    // The ranks of a step end it together: the one with the most parameters is waited for.
    plan::HeldParameters most;
    for (const plan::HeldParameters& held : plan::held_by_rank(spec_, training_))
      if (held.all() > most.all()) most = held;
    StepTime time = training_.degrees.pp > 1 ? pipeline() : in_turn();
    time.data_exposed = exchange(most) + tied_sum();
    time.optimizer = kernel("optimizer" + of_type_,
                            plan::memory_work(StateShares(training_, cluster_).owned(most)));
    return time;
  }

 private:
  /// One micro-batch after the other.
  StepTime in_turn() const {
    const double m = static_cast<double>(training_.micro_batches());
    const double layers = static_cast<double>(spec_.layers);
    StepTime time;
    double blocks = 0;
    double travel = 0;
    for (std::int64_t b = 0; b < spec_.layers; ++b) {
      blocks += block_forward(b) + block_backward(b);
      travel += messages(b, 1) + messages(b, 2);
    }
    time.recomputed = m * recomputed(0, spec_.layers);
    time.communication = m * ((layers * 8 + 2) * stream_exchange() + travel);
    time.pipeline = m * (blocks + embedding() + head()) + time.communication + time.recomputed;
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
      const double again = recomputed(first, first + blocks[s]);
      const double exchanges = 4 * stream_exchange();
      schedule::StageCost cost{.forward = 0, .input_gradient = again, .weight_gradient = 0};
      for (std::int64_t b = first; b < first + blocks[s]; ++b) {
        // Half of the products of a backward pass are for weights.
        const double weights = products("linear_backward", b) / 2;
        cost.forward += block_forward(b) + exchanges + messages(b, 1);
        cost.input_gradient += block_backward(b) - weights + exchanges + messages(b, 2);
        cost.weight_gradient += weights;
      }
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

  /// Returns the time of what travels through block `b`: once forward, and twice backward (the ring
  /// of keys and values) or once (heads, and rows of experts). It takes what a scattered sum of as
  /// many elements takes, and nothing hides it.
  double messages(std::int64_t b, double ring_passes) const {
    double seconds = 0;
    if (context_ > 1) {
      const double others = (context_ - 1) / context_;
      const double keys = qkv() - queries();
      if (training_.ulysses) {
        seconds += kernel("reduce_scatter", plan::memory_work(others * rows_ * qkv())) +
                   kernel("reduce_scatter", plan::memory_work(others * rows_ * queries()));
      } else {
        seconds += ring_passes * (context_ - 1) *
                   kernel("reduce_scatter", plan::memory_work(rows_ * keys));
      }
    }
    if (training_.degrees.ep > 1 && model::has_experts(spec_, b)) {
      // To the experts and back.
      const auto ranks = static_cast<double>(training_.degrees.ep);
      seconds += 2 * kernel("reduce_scatter",
                            plan::memory_work((ranks - 1) / ranks * expert_rows() * width()));
    }
    return seconds;
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
  double ffn() const { return static_cast<double>(model::dense_width(spec_)) / tensor_; }
  /// Rows that the experts of this rank compute: those of the busiest rank.
  double expert_rows() const {
    const double busiest = training_.degrees.ep > 1 ? training_.expert_imbalance : 1;
    return own_rows() * static_cast<double>(spec_.experts_per_token) * busiest;
  }
  double heads() const { return static_cast<double>(spec_.heads) / tensor_; }
  double queries() const { return heads() * static_cast<double>(spec_.head_size); }
  double qkv() const {
    const double pairs = std::max(static_cast<double>(spec_.kv_heads) / tensor_, 1.0);
    return (heads() + 2 * pairs) * static_cast<double>(spec_.head_size);
  }

  /// Returns the time of a feed-forward layer: up, with gate where there is one; down.
  double feed_forward(const std::string& name, double rows, double features) const {
    return (spec_.gated ? 2 : 1) * kernel(name, plan::linear_work(rows, width(), features)) +
           kernel(name, plan::linear_work(rows, features, width()));
  }

  /// Returns the time of the products of a mixture: the router in fp32, each expert of this rank on
  /// its rows, and the shared ones.
  double mixture_products(const std::string& linear) const {
    const std::string name = linear + of_type_;
    const double here =
        static_cast<double>(spec_.experts) / static_cast<double>(training_.degrees.ep);
    const double shared =
        spec_.shared_ffn > 0 ? feed_forward(name, own_rows(), static_cast<double>(spec_.shared_ffn))
                             : 0;
    return kernel(linear,
                  plan::linear_work(own_rows(), width(), static_cast<double>(spec_.experts))) +
           here * feed_forward(name, expert_rows() / here, static_cast<double>(spec_.ffn)) + shared;
  }

  // The linear layers of block `b`: queries, keys and values; output; the feed-forward layer or the
  // mixture. All ranks are at work as they were when the kernels were timed.
  double products(const std::string& linear, std::int64_t b) const {
    const std::string name = linear + of_type_;
    return kernel(name, plan::linear_work(rows_, width(), qkv())) +
           kernel(name, plan::linear_work(rows_, queries(), width())) +
           (model::has_experts(spec_, b) ? mixture_products(linear)
                                         : feed_forward(name, rows_, ffn()));
  }

  /// Returns the time of the activations of block `b`, and of the passes that bring rows to experts
  /// and add up their results.
  double activations(const std::string& suffix, std::int64_t b) const {
    const double inner = spec_.gated ? 2 : 1;
    if (!model::has_experts(spec_, b))
      return kernel("activation" + suffix, plan::pass_work(rows_ * ffn() * inner));
    const double shared = own_rows() * static_cast<double>(spec_.shared_ffn);
    const double routed = expert_rows() * static_cast<double>(spec_.ffn);
    return kernel("activation" + suffix, plan::pass_work((routed + shared) * inner)) +
           2 * kernel("norm" + suffix, plan::pass_work(expert_rows() * width()));
  }

  /// Returns the time between the matmuls of a block. `suffix` is "" or "_backward", as in the
  /// names of kernels.
  double between(const std::string& suffix, std::int64_t b) const {
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
           dropped + activations(suffix, b) +
           // Context ranks share the pairs of queries and keys evenly.
           kernel("attention" + suffix,
                  plan::attention_work(static_cast<double>(training_.micro_batch) / context_,
                                       training_.length(spec_), heads(),
                                       static_cast<double>(spec_.head_size)));
  }

  double block_forward(std::int64_t b) const { return products("linear", b) + between("", b); }
  double block_backward(std::int64_t b) const {
    return products("linear_backward", b) + between("_backward", b);
  }

  /// Returns the time of what blocks [begin, end) compute again.
  double recomputed(std::int64_t begin, std::int64_t end) const {
    double seconds = 0;
    for (std::int64_t b = begin; b < end; ++b) {
      const Keep keep = training_.kept.empty() ? kept_under(training_.recompute)
                                               : training_.kept[static_cast<std::size_t>(b)];
      // kProducts repeats everything but the matmuls; kInput repeats them too.
      if (keep != Keep::kEverything) seconds += between("", b) + messages(b, 1);
      if (keep == Keep::kInput) seconds += products("linear", b);
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

  /// Returns the time to reduce the gradients of `held` over the ranks that hold the same
  /// parameters, and of three small exchanges a step.
  double exchange(const plan::HeldParameters& held) const {
    const Degrees& degrees = training_.degrees;
    if (degrees.stage_ranks() * degrees.pp == 1) return 0;
    // Labels, loss with norm, and the map of used parameters: exchanges of a few bytes, which cost
    // their start.
    const double small = 3 * kernel("all_reduce", {});
    // An expert has fewer ranks, or none beside this one.
    const bool experts = degrees.ep == 1 || training_.expert_data() > 1;
    const double dense = degrees.dp() * degrees.cp > 1 ? held.dense() : 0;
    const double parameters = dense + (experts ? held.expert : 0);
    if (parameters == 0) return small;
    if (training_.zero_stage == 0) {
      // Without shards each parameter is reduced in place by a call of its own.
      return small + spread("all_reduce", parameters,
                            static_cast<double>(model::parameters(spec_).size()) /
                                static_cast<double>(degrees.pp));
    }
    const double units = static_cast<double>(spec_.layers) / static_cast<double>(degrees.pp) + 2;
    const double times =
        training_.reduces_every_micro_batch() ? static_cast<double>(training_.micro_batches()) : 1;
    const double replicas = static_cast<double>(degrees.dp() * degrees.cp) / shards();
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
  double context_;       ///< ranks that divide the columns
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
         spec.family == Family::kTransformer && cluster.hosts == 1;
}

StepTime kernel_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return KernelStep(spec, training, cluster).run();
}

}  // namespace shoal::forecast
