#include "shoal/forecast/step_time.h"

#include <fmt/format.h>

#include "shoal/base/error.h"
#include "shoal/forecast/memory.h"

namespace shoal::forecast {
namespace {

class KernelStep {
 public:
  KernelStep(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec),
        training_(training),
        cluster_(cluster),
        rows_(static_cast<double>(training.micro_batch * training.length(spec))),
        parameters_(static_cast<double>(model::parameter_count(spec))),
        of_type_(training.precision == "bf16" ? "_bf16" : "") {}

  StepTime run() const {
    const double m = static_cast<double>(training_.micro_batches());
    const double layers = static_cast<double>(spec_.layers);
    StepTime time;
    time.recomputed = m * recomputed();
    time.pipeline = m * (layers * (block_forward() + block_backward()) + ends()) + time.recomputed;
    time.data_exposed = exchange();
    time.optimizer = kernel("optimizer" + of_type_, plan::memory_work(parameters_ / shards()));
    return time;
  }

 private:
  double kernel(const std::string& name, const KernelWork& work) const {
    const auto found = cluster_.kernels.find(name);
    if (found != cluster_.kernels.end()) return found->second.seconds(work);
    throw Error(ErrorKind::kConfig, "cluster",
                fmt::format("{}: kernels.{} is missing", cluster_.name, name))
        .hint("run `shoal plan calibrate` anew, with as many ranks as the job has on a host");
  }

  double width() const { return static_cast<double>(spec_.hidden); }
  double ffn() const { return static_cast<double>(spec_.ffn); }
  double queries() const { return static_cast<double>(spec_.heads * spec_.head_size); }
  double qkv() const {
    return static_cast<double>((spec_.heads + 2 * spec_.kv_heads) * spec_.head_size);
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
        spec_.dropout > 0 ? 2 * kernel("norm" + suffix, plan::pass_work(rows_ * width())) : 0;
    return 2 * kernel("norm" + suffix, plan::pass_work(rows_ * width())) + normed + turned +
           dropped +
           kernel("activation" + suffix, plan::pass_work(rows_ * ffn() * (spec_.gated ? 2 : 1))) +
           kernel("attention" + suffix,
                  plan::attention_work(static_cast<double>(training_.micro_batch),
                                       training_.length(spec_), static_cast<double>(spec_.heads),
                                       static_cast<double>(spec_.head_size)));
  }

  double block_forward() const { return products("linear") + between(""); }
  double block_backward() const { return products("linear_backward") + between("_backward"); }

  double recomputed() const {
    double seconds = 0;
    for (std::int64_t b = 0; b < spec_.layers; ++b) {
      const Keep keep = training_.kept.empty() ? kept_under(training_.recompute)
                                               : training_.kept[static_cast<std::size_t>(b)];
      // kProducts repeats everything but the matmuls; kInput repeats them too.
      if (keep != Keep::kEverything) seconds += between("");
      if (keep == Keep::kInput) seconds += products("linear");
    }
    return seconds;
  }

  /// Returns the time of embedding and head.
  /// Of the embedding only the look-up (both passes are in the kernel), of the head the final norm
  /// and the loss with its matmuls.
  double ends() const {
    return kernel("embedding", plan::pass_work(rows_ * width())) +
           kernel("norm", plan::pass_work(rows_ * width())) +
           kernel("norm_backward", plan::pass_work(rows_ * width())) +
           kernel("loss" + of_type_,
                  plan::loss_work(rows_, width(), static_cast<double>(spec_.vocab)));
  }

  double shards() const {
    return training_.zero_stage > 0 ? static_cast<double>(training_.degrees.shard_ranks()) : 1;
  }

  /// Returns the time to reduce gradients over all ranks, and of three small exchanges a step.
  double exchange() const {
    if (training_.degrees.dp() == 1) return 0;
    // Labels, loss with norm, and the map of used parameters: exchanges of a few bytes, which cost
    // their start.
    const double small = 3 * kernel("all_reduce", {});
    if (training_.zero_stage == 0) {
      // Without shards each parameter is reduced in place by a call of its own.
      return small + spread("all_reduce", parameters_,
                            static_cast<double>(model::parameters(spec_).size()));
    }
    const double units = static_cast<double>(spec_.layers) + 2;
    const double times =
        training_.reduces_every_micro_batch() ? static_cast<double>(training_.micro_batches()) : 1;
    const double replicas = static_cast<double>(training_.degrees.dp()) / shards();
    // Hybrid sharding: what a rank owns is summed over the replicas once a step.
    const double across = replicas > 1 ? spread("all_reduce", parameters_ / shards(), units) : 0;
    return small + times * spread("reduce_scatter", parameters_, units) + across;
  }

  /// Returns the time of so many elements in so many calls.
  double spread(const std::string& name, double elements, double calls) const {
    return calls * kernel(name, plan::memory_work(elements / calls));
  }

  const ModelSpec& spec_;
  const Training& training_;
  const Cluster& cluster_;
  double rows_;
  double parameters_;
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
  return !cluster.kernels.empty() && predicts_memory(training) && training.degrees.tp == 1 &&
         training.degrees.pp == 1 && type_measured(training, cluster) &&
         !training.offload_optimizer &&
         (training.zero_stage >= 2 || !training.reduces_every_micro_batch()) &&
         spec.family == Family::kTransformer && spec.experts == 0 && cluster.hosts == 1;
}

StepTime kernel_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return KernelStep(spec, training, cluster).run();
}

}  // namespace shoal::forecast
