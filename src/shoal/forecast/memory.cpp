#include "shoal/forecast/memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "shoal/forecast/rank_states.h"
#include "shoal/forecast/unit_moments.h"
#include "shoal/model/mixture_tensors.h"

namespace shoal::forecast {
namespace {

constexpr double kElement = UnitMoments::kElement;
/// Blocks whose gradients still travel to their owners when the next block begins.
constexpr std::int64_t kFlying = 2;

/// Bytes of each unit: embedding, blocks, head.
struct Units {
  double embedding = 0;
  std::vector<double> blocks;
  double head = 0;
  double all = 0;

  double block(std::int64_t b) const { return blocks[static_cast<std::size_t>(b)]; }
  /// Returns the bytes of the blocks [begin, end).
  double sum(std::int64_t begin, std::int64_t end) const {
    return std::accumulate(blocks.begin() + begin, blocks.begin() + end, 0.0);
  }
};

plan::HeldParameters held_by(const ModelSpec& spec, const Training& training) {
  return plan::held_by_rank(spec, training).front();
}

/// Counts units by `count`, which takes the parameters of one. The few vectors count as the
/// matrices do.
template <class Count>
Units units_by(const ModelSpec& spec, const Training& training, double bytes, const Count& count) {
  if (spec.family == Family::kMlp) return {.all = bytes * count(held_by(spec, training))};
  Units units{.embedding = bytes * count(plan::held_by_embedding(spec, training)),
              .blocks = {},
              .head = bytes * count(plan::held_by_head(spec, training)),
              .all = bytes * count(held_by(spec, training))};
  for (const plan::HeldParameters& block : plan::held_by_blocks(spec, training))
    units.blocks.push_back(bytes * count(block));
  return units;
}

class StepMemory {
 public:
  StepMemory(const ModelSpec& spec, const Training& training, const Cluster& cluster)
      : spec_(spec),
        training_(training),
        states_(training, cluster, held_by(spec, training)),
        moments_(spec, training, cluster) {
    const StateBytes& bytes = states_.bytes();
    const StateShares& shares = states_.shares();
    using Held = plan::HeldParameters;
    weights_ = units_by(spec, training, bytes.parameter,
                        [&](const Held& held) { return shares.read(held); });
    gradients_ =
        units_by(spec, training, bytes.gradient, [](const Held& held) { return held.all(); });
    shards_ = units_by(spec, training, bytes.gradient,
                       [&](const Held& held) { return shares.owned(held); });
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
  // ---- gradients ----

  bool gradients_leave() const { return states_.gradients_leave(); }
  /// Returns true if whole gradients of earlier micro-batches wait for the last one.
  bool gradients_wait() const {
    return training_.micro_batches() > 1 && !training_.reduces_every_micro_batch();
  }
  /// Returns the bytes of the sums over earlier micro-batches, to which this one adds its
  /// gradients.
  double earlier_sums() const {
    return training_.micro_batches() > 1 && training_.reduces_every_micro_batch() ? shards_.all : 0;
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
    const std::int64_t next = std::max<std::int64_t>(b, 0) + 1;  // those from here on are done
    if (b == blocks) return gradients_wait() ? gradients_.all : earlier_sums() + last;
    // Whole gradients of earlier micro-batches lie there; in the last one each block is reduced to
    // a shard once it is done.
    if (gradients_wait())
      return gradients_.all - (gradients_.sum(next, blocks) - shards_.sum(next, blocks));
    const std::int64_t begin = b < 0 ? 0 : next;
    const std::int64_t end = std::min(begin + kFlying, blocks);
    const double flying = gradients_.sum(begin, end);
    const double arriving = earlier_sums() > 0 ? shards_.sum(begin, end) : 0;
    const double earlier = earlier_sums();
    // The embedding comes last: the blocks behind it are shards, but for those on their way.
    if (b < 0) {
      return shards_.all + arriving + gradients_.embedding + flying;
    }
    const double head = spec_.tied_embeddings ? gradients_.embedding : shards_.head;
    // Shards of the earlier sums exist already and are added to: only whole units and the results
    // that have not been added yet come on top.
    if (earlier > 0) {
      return earlier + (spec_.tied_embeddings ? head : 0) + gradients_.block(b) + flying + arriving;
    }
    return head + gradients_.block(b) + flying + shards_.sum(next, blocks);
  }

  /// Returns the bytes of the units gathered around the one that runs, in stage 3 where not all
  /// ranks share one copy. A tied embedding stays for all of a pass, which begins with it and ends
  /// in the head, or the other way round.
  double gathered(double unit, double ahead) const {
    if (training_.zero_stage < 3 || states_.shares().shared()) return 0;
    if (!training_.reshard_after_forward) return weights_.all;
    return std::min(weights_.all, unit + ahead + (spec_.tied_embeddings ? weights_.embedding : 0));
  }
  /// Returns the bytes of the blocks before `b`, in the order of a backward pass, that are gathered
  /// ahead.
  double gathered_ahead(std::int64_t b) const {
    return weights_.sum(std::max<std::int64_t>(b - training_.gather_ahead, 0), b);
  }

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
      // The blocks keep theirs, the batch is there, and the head holds something itself.
      MemoryUse use = states_.with_gradients(head.gradient ? whole : before);
      use.gathered = gathered(weights_.head, gathered_ahead(blocks()));
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
      MemoryUse use = states_.with_gradients(gradients(b));
      use.gathered = gathered(weights_.block(b), gathered_ahead(b));
      use.activations =
          held_[static_cast<std::size_t>(b)] + moments_.block(b).rebuilt + moments_.data();
      use.workspace = moments_.block_backward(b);
      if (use.all() > most.all()) most = use;
    }
    return most;
  }

  MemoryUse last_gradients() const {
    MemoryUse use = states_.with_gradients(gradients(-1));
    use.gathered = gathered(spec_.tied_embeddings ? 0 : weights_.embedding, 0);
    use.workspace = moments_.embedding_backward();
    use.activations = moments_.data();
    return use;
  }

  MemoryUse optimizer() const { return states_.at_update(); }

  MemoryUse perceptron_loss() const {
    const double rows = moments_.rows();
    MemoryUse use = states_.with_gradients(gradients_.all);
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
  RankStates states_;
  UnitMoments moments_;
  Units weights_;             ///< as the ranks of a host read them
  Units gradients_;           ///< whole
  Units shards_;              ///< of gradients, on the rank that owns them
  std::vector<double> held_;  ///< bytes kept by the blocks up to this one
};

}  // namespace

model::Keep kept_under(plan::Recompute recompute) {
  if (recompute == Recompute::kFull) return Keep::kInput;
  if (recompute == Recompute::kSelective) return Keep::kProducts;
  return Keep::kEverything;
}

Training worst_routed(const ModelSpec& spec, const Training& training) {
  Training worst = training;
  worst.expert_imbalance =
      spec.experts > 0 ? model::worst_imbalance(spec, micro_batch(spec, training)) : 1;
  return worst;
}

bool predicts_memory(const Training& training) {
  // Shoal cuts no matrix of an expert along tp.
  return training.expert_tensor == 1 && (training.states || training.precision == "fp32") &&
         !training.zero_plus_plus && !training.offload_parameters;
}

RankMemory rank_memory(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  return StepMemory(spec, training, cluster).run();
}

}  // namespace shoal::forecast
