#include "shoal/forecast/memory.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "shoal/forecast/unit_moments.h"

namespace shoal::forecast {
namespace {

constexpr double kElement = UnitMoments::kElement;
/// Blocks whose gradients still travel to their owners when the next block begins.
constexpr double kFlying = 2;

/// Parameters of each unit that a rank holds or shards: embedding, one block, head.
struct Units {
  double embedding = 0;
  double block = 0;
  double head = 0;
  double all = 0;

  Units(const ModelSpec& spec, const Training& training) {
    if (spec.family == Family::kMlp) {
      all = static_cast<double>(model::parameter_count(spec));
      return;
    }
    embedding = plan::held_by_embedding(spec, training).all();
    block = plan::held_by_block(spec, training).all();
    head = plan::held_by_head(spec, training).all();
    all = embedding + static_cast<double>(spec.layers) * block + head;
  }
  /// Returns the units in bytes. The few vectors count as the matrices do.
  Units operator*(double bytes) const {
    Units product = *this;
    product.embedding *= bytes;
    product.block *= bytes;
    product.head *= bytes;
    product.all *= bytes;
    return product;
  }
};

class StepMemory {
 public:
  StepMemory(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec),
        training_(training),
        bytes_(states_of(training)),
        moments_(spec, training),
        weights_(Units(spec, training) * bytes_.parameter),
        gradients_(Units(spec, training) * bytes_.gradient),
        shards_(training.zero_stage > 0 ? static_cast<double>(training.degrees.shard_ranks()) : 1),
        shared_(training.degrees.shard_ranks() <= cluster.devices_per_host),
        readers_(copy_readers(training, cluster)) {
    for (std::int64_t b = 0; b < blocks(); ++b)
      held_.push_back((held_.empty() ? 0 : held_.back()) + moments_.block(b).kept);
  }

  RankMemory run() const {
    RankMemory memory;
    if (spec_.family == Family::kMlp) {
      memory.phases = {{"loss", perceptron_loss()}, {"optimizer", optimizer()}};
    } else {
      memory.phases = {{"loss", loss()},
                       {"backward", backward()},
                       {"last gradients", last_gradients()},
                       {"optimizer", optimizer()}};
    }
    return memory;
  }

 private:
  // ---- states ----

  /// Returns the model states at a moment that holds so many bytes of gradients.
  MemoryUse states(double gradients) const {
    MemoryUse use;
    // Stage 3 keeps a shard; stages 1 and 2 keep whole parameters, once a host where ranks can
    // share them.
    use.parameters = weights_.all / (training_.zero_stage == 3 ? shards_ : readers_);
    use.optimizer = training_.offload_optimizer
                        ? 0
                        : weights_.all / bytes_.parameter * bytes_.optimizer() / shards_;
    use.gradients = gradients;
    use.staging = std::min(training_.staging_bytes, own_state());
    return use;
  }

  /// Returns the bytes that this rank writes to a checkpoint: its part of the parameters, or their
  /// masters, and of the moments.
  double own_state() const {
    // weights_.all / bytes_.parameter is the number of parameters.
    return weights_.all / bytes_.parameter *
           ((bytes_.master > 0 ? bytes_.master : bytes_.parameter) + bytes_.moments) /
           static_cast<double>(training_.degrees.dp());
  }

  /// Returns true if a unit's gradient is whole only from its first use in a backward pass until it
  /// is reduced. After that the rank holds its shard.
  bool gradients_leave() const { return training_.zero_stage >= 2 && shards_ > 1; }
  /// Returns true if whole gradients of earlier micro-batches wait for the last one.
  bool gradients_wait() const {
    return training_.micro_batches() > 1 && !training_.reduces_every_micro_batch();
  }
  /// Returns the bytes of the sums over earlier micro-batches, to which this one adds its
  /// gradients.
  double earlier_sums() const {
    return training_.micro_batches() > 1 && training_.reduces_every_micro_batch()
               ? gradients_.all / shards_
               : 0;
  }

  /// Returns the bytes of gradients while the backward pass runs in block `b`. -1 stands for the
  /// embedding, the number of blocks for the head.
  double gradients(std::int64_t b) const {
    if (!gradients_leave()) return gradients_.all;
    // The backward pass runs from the head to the embedding. Block b holds its own gradient whole,
    // those of the last kFlying blocks are on their way to their owners, and of the rest the rank
    // has its shard.
    const double last =
        spec_.tied_embeddings ? gradients_.embedding : gradients_.head;  // the head writes it
    const std::int64_t blocks = this->blocks();
    const std::int64_t done = blocks - 1 - std::max<std::int64_t>(b, 0);
    if (b == blocks) return gradients_wait() ? gradients_.all : earlier_sums() + last;
    // Whole gradients of earlier micro-batches lie there; in the last one each block is reduced to
    // a shard once it is done.
    if (gradients_wait())
      return gradients_.all - static_cast<double>(done) * gradients_.block * (1 - 1 / shards_);
    const double flying =
        std::min<double>(kFlying, static_cast<double>(b < 0 ? blocks : done)) * gradients_.block;
    const double earlier = earlier_sums();
    // The embedding comes last: the blocks behind it are shards, but for those on their way.
    if (b < 0) {
      return gradients_.all / shards_ + (earlier > 0 ? flying / shards_ : 0) +
             gradients_.embedding + flying;
    }
    const double head = spec_.tied_embeddings ? gradients_.embedding : gradients_.head / shards_;
    // Shards of the earlier sums exist already and are added to: only whole units and the results
    // that have not been added yet come on top.
    if (earlier > 0) {
      return earlier + (spec_.tied_embeddings ? head : 0) + gradients_.block +
             flying * (1 + 1 / shards_);
    }
    return head + gradients_.block + flying +
           static_cast<double>(done) * gradients_.block / shards_;
  }

  /// Returns the bytes of the units gathered around the one that runs, in stage 3 where not all
  /// ranks share one copy. A tied embedding stays for all of a pass, which begins with it and ends
  /// in the head, or the other way round.
  double gathered(double unit, double ahead) const {
    if (training_.zero_stage < 3 || shared_) return 0;
    if (!training_.reshard_after_forward) return weights_.all / readers_;
    return std::min(weights_.all, unit + ahead + (spec_.tied_embeddings ? weights_.embedding : 0)) /
           readers_;
  }
  double gathered_ahead() const { return weights_.block * training_.gather_ahead; }

  // ---- moments ----

  std::int64_t blocks() const { return static_cast<std::int64_t>(moments_.keeps().size()); }
  // Where either of two moments could be the peak the larger one counts: a plan must not promise
  // too little.
  static const MemoryUse& larger(const MemoryUse& a, const MemoryUse& b) {
    return a.all() > b.all() ? a : b;
  }
  /// The worst moment of the head.
  MemoryUse loss() const {
    const double whole = gradients(blocks());
    const double before = gradients_leave() && !gradients_wait() ? earlier_sums() : whole;
    MemoryUse most;
    for (const UnitMoments::Head& head : moments_.head()) {
      // What the blocks keep, the batch, and what the head holds itself.
      MemoryUse use = states(head.gradient ? whole : before);
      use.gathered = gathered(weights_.head, gathered_ahead());
      use.activations =
          (held_.empty() ? 0 : held_.back()) + moments_.head_input() + moments_.data() + head.held;
      use.workspace = head.temporary;
      most = larger(use, most);
    }
    return most;
  }

  /// Returns the moment of the block at which the rank holds most: what the earlier blocks keep,
  /// what this one computes again, and the gradients that flow through it.
  MemoryUse backward() const {
    // Early blocks hold little that is kept and much that is gradient; late ones the other way
    // round. Which is worst depends on the shards, so all are tried.
    MemoryUse most;
    for (std::int64_t b = 0; b < blocks(); ++b) {
      MemoryUse use = states(gradients(b));
      use.gathered = gathered(weights_.block,
                              std::min(gathered_ahead(), static_cast<double>(b) * weights_.block));
      use.activations =
          held_[static_cast<std::size_t>(b)] + moments_.block(b).rebuilt + moments_.data();
      use.workspace = moments_.block_backward(b);
      if (use.all() > most.all()) most = use;
    }
    return most;
  }

  MemoryUse last_gradients() const {
    MemoryUse use = states(gradients(-1));
    use.gathered = gathered(spec_.tied_embeddings ? 0 : weights_.embedding, 0);
    use.workspace = moments_.embedding_backward();
    use.activations = moments_.data();
    return use;
  }

  MemoryUse optimizer() const {
    return states(gradients_leave() ? gradients_.all / shards_ : gradients_.all);
  }

  MemoryUse perceptron_loss() const {
    const double rows = moments_.rows();
    MemoryUse use = states(gradients_.all);
    use.gathered = gathered(weights_.all, 0);
    const double out = kElement * rows * static_cast<double>(spec_.outputs);
    use.activations = (held_.empty() ? 0 : held_.back()) + moments_.data() + out;
    use.workspace =
        2 * out +
        (spec_.widths.empty() ? 0 : kElement * rows * static_cast<double>(spec_.widths.back()));
    return use;
  }

  const ModelSpec& spec_;
  const Training& training_;
  StateBytes bytes_;
  UnitMoments moments_;
  Units weights_;
  Units gradients_;
  double shards_;
  bool shared_;
  double readers_;
  std::vector<double> held_;  ///< bytes kept by the blocks up to this one
};

}  // namespace

model::Keep kept_under(plan::Recompute recompute) {
  if (recompute == Recompute::kFull) return Keep::kInput;
  if (recompute == Recompute::kSelective) return Keep::kProducts;
  return Keep::kEverything;
}

bool predicts_memory(const Training& training) {
  const Degrees& degrees = training.degrees;
  return degrees.cp == 1 && degrees.ep == 1 && (training.states || training.precision == "fp32") &&
         !training.zero_plus_plus && !training.offload_parameters;
}

RankMemory rank_memory(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return StepMemory(spec, training, cluster).run();
}

}  // namespace shoal::forecast
