#include "shoal/plan/memory.h"

#include <algorithm>

#include "shoal/plan/topology.h"

namespace shoal::plan {
namespace {

// The default of PyTorch's DistributedDataParallel (bucket_cap_mb); one bucket fills while another
// travels.
constexpr double kBucketBytes = 25.0 * 1024 * 1024;

double tokens_of(const ModelSpec& spec, const Training& training) {
  return static_cast<double>(training.micro_batch) * training.length(spec) / training.degrees.cp;
}

/// Adds the states of one rank: dense parameters are sharded over the data ranks, experts over the
/// data ranks of experts.
void add_states(const HeldParameters& held, const Training& training, MemoryUse& use) {
  const StateBytes whole = precision(training.precision, training.optimizer)->state;
  const double ranks = training.degrees.shard_ranks();
  const StateBytes dense = state_bytes(whole, training.zero_stage, ranks);
  // An expert has fewer data ranks, so its states are cut into fewer shards.
  const StateBytes expert =
      state_bytes(whole, training.zero_stage, std::min<double>(ranks, training.expert_data()));
  use.parameters = training.offload_parameters
                       ? 0
                       : held.dense() * dense.parameter + held.expert * expert.parameter;
  use.gradients = held.dense() * dense.gradient + held.expert * expert.gradient;
  use.optimizer = training.offload_optimizer
                      ? 0
                      : held.dense() * dense.optimizer() + held.expert * expert.optimizer();
  // Anchor, momentum and residuals of members stay in memory.
  if (training.exchange)
    use.optimizer += owned_values(held, training) * training.exchange->state_bytes;
}

/// Returns the bytes of the whole parameters of the largest unit and of those gathered ahead.
double gathered_bytes(const ModelSpec& spec, const Training& training, const HeldParameters& held) {
  if (training.zero_stage < 3 || training.degrees.shard_ranks() == 1) return 0;
  const double bytes = precision(training.precision)->state.parameter;
  if (spec.family == Family::kMlp) return held.all() * bytes;
  const double largest =
      std::max({held_by_block(spec, training).all(), held_by_embedding(spec, training).all(),
                held_by_head(spec, training).all()});
  // The unit that runs, and `gather_ahead` units that may be as large.
  return std::min(held.all(), largest * (1 + training.gather_ahead)) * bytes;
}

/// Adds what the head keeps and works on: the inputs of norm and matmul, fp32 logits, and their
/// gradient.
void add_head(const ModelSpec& spec, const Training& training, MemoryUse& use) {
  const double tokens = tokens_of(spec, training);
  const double t = training.degrees.tp;
  const double e = precision(training.precision)->activation_bytes;
  // Korthikanti et al., 2022, section 4.3: output norm, output layer, fp32 logits.
  use.activations += (2 * e * tokens * spec.hidden + 4 * tokens * spec.vocab) / t;
  // The gradient of the logits in fp32, and as the matmul takes it.
  use.workspace = std::max(use.workspace, (4 + e) * tokens * spec.vocab / t);
}

double communication_bytes(const ModelSpec& spec, const Training& training) {
  double bytes = 0;
  const Degrees reducing = training.reducing();
  if (reducing.dp() * reducing.cp > 1) bytes += 2 * kBucketBytes;
  if (spec.family == Family::kMlp) return bytes;
  const double message =
      precision(training.precision)->activation_bytes * tokens_of(spec, training) * spec.hidden;
  if (training.degrees.tp > 1) bytes += message;  // the gathered input of a matmul
  // sent and received, for activations and for gradients
  if (training.degrees.pp > 1)
    bytes += 4 * message / (training.sequence_parallel ? training.degrees.tp : 1);
  return bytes;
}

MemoryUse forward_and_backward(const ModelSpec& spec, const Training& training, std::int64_t rank,
                               const HeldParameters& held, double flying) {
  MemoryUse use;
  add_states(held, training, use);
  use.gathered = gathered_bytes(spec, training, held);
  use.communication = communication_bytes(spec, training);
  if (spec.family == Family::kMlp) {
    use.activations = block_activation_bytes(spec, training);
    return use;
  }
  const auto blocks = stage_blocks(spec, training);
  double own = 0;
  bool first = false;
  bool last = false;
  // The blocks of all stages that this rank holds; first and last stage also hold embedding and
  // head.
  for (std::int64_t stage = 0; stage < training.stages(); ++stage) {
    if (rank_of_stage(training, stage) != rank) continue;
    own += blocks[stage];
    first |= stage == 0;
    last |= stage == training.stages() - 1;
  }
  // `flying` counts micro-batches' worth of all blocks of this rank.
  use.activations = own * flying * block_activation_bytes(spec, training);
  const double sequence_ranks = training.sequence_parallel ? training.degrees.tp : 1;
  // The mask of the embedding's dropout, one byte an element.
  if (first && spec.dropout > 0)
    use.activations += flying * tokens_of(spec, training) * spec.hidden / sequence_ranks;
  const double block = block_activation_bytes(spec, training, Recompute::kNone);
  // What is recomputed is there once, for the block that runs back.
  if (training.recompute == Recompute::kFull) use.workspace = block;
  if (training.recompute == Recompute::kSelective)
    use.workspace = block - block_activation_bytes(spec, training, Recompute::kSelective);
  if (last) add_head(spec, training, use);
  return use;
}

}  // namespace

double owned_values(const HeldParameters& held, const Training& training) {
  const double ranks = training.zero_stage >= 1 ? training.degrees.shard_ranks() : 1;
  // An expert has fewer data ranks, so its states are cut into fewer shards.
  return held.dense() / ranks + held.expert / std::min<double>(ranks, training.expert_data());
}

const MemoryPhase& RankMemory::peak() const {
  return *std::max_element(phases.begin(), phases.end(),
                           [](const auto& a, const auto& b) { return a.use.all() < b.use.all(); });
}

std::vector<RankMemory> published_memory(const ModelSpec& spec, const Training& training,
                                         ScheduleCache& cache) {
  std::vector<RankMemory> ranks;
  const auto held_by = held_by_rank(spec, training);
  const auto flying = in_flight_by_rank(spec, training, cache);
  for (std::int64_t rank = 0; rank < training.degrees.pp; ++rank) {
    const HeldParameters& held = held_by[rank];
    MemoryUse backward = forward_and_backward(spec, training, rank, held, flying[rank]);
    MemoryUse steady = backward;
    MemoryUse optimizer;
    MemoryUse checkpoint;
    steady.workspace = 0;
    add_states(held, training, optimizer);
    checkpoint = optimizer;
    if (training.exchange) {
      // Members that wait for their exchange do so behind the update.
      const double in_flight = owned_values(held, training) * training.exchange->flight_bytes;
      optimizer.communication = in_flight;
      if (training.exchange->overlapped) {
        for (MemoryUse* use : {&steady, &backward, &checkpoint}) use->communication += in_flight;
      }
    }
    // A checkpoint is written beside training: what the optimizer would overwrite is copied aside,
    // one block of the model at a time.
    const StateBytes whole = precision(training.precision, training.optimizer)->state;
    const HeldParameters unit = spec.family == Family::kMlp ? held : held_by_block(spec, training);
    const double outer = training.exchange ? training.exchange->state_bytes : 0;
    checkpoint.staging = unit.all() * (whole.parameter + whole.optimizer() + outer) /
                         (training.zero_stage >= 1 ? training.degrees.shard_ranks() : 1);
    ranks.push_back({rank,
                     {{"steady state", steady},
                      {"backward", backward},
                      {"optimizer", optimizer},
                      {"checkpoint", checkpoint}}});
  }
  return ranks;
}

std::vector<RankMemory> published_memory(const ModelSpec& spec, const Training& training,
                                         const Cluster& cluster, ScheduleCache& cache) {
  std::vector<RankMemory> ranks = published_memory(spec, training, cache);
  if (training.zero_plus_plus) {
    // Each host holds a second, whole set of shards.
    const auto held = held_by_rank(spec, training);
    const double bytes = precision(training.precision)->state.parameter /
                         static_cast<double>(shard_group(cluster, training.degrees).inside);
    for (RankMemory& rank : ranks) {
      for (MemoryPhase& phase : rank.phases)
        phase.use.parameters += held[static_cast<std::size_t>(rank.rank)].all() * bytes;
    }
  }
  return ranks;
}

// All devices of a host keep their part in its one memory.
double offloaded_bytes(const ModelSpec& spec, const Training& training, const Cluster& cluster) {
  double most = 0;
  for (const HeldParameters& held : held_by_rank(spec, training)) {
    MemoryUse here;
    MemoryUse all;
    Training kept = training;
    // The difference between the same job with and without offloading.
    kept.offload_optimizer = kept.offload_parameters = false;
    add_states(held, training, here);
    add_states(held, kept, all);
    most = std::max(most, all.states() - here.states());
  }
  return most * static_cast<double>(cluster.devices_per_host);
}

const RankMemory& worst(const std::vector<RankMemory>& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return a.peak().use.all() < b.peak().use.all();
  });
}

}  // namespace shoal::plan
