#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/schedule_cache.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

// ---- model states ------------------------------------------------------------------------------

/// Returns the bytes of one parameter's states on one of `ranks` ranks under a ZeRO stage.
/// Rajbhandari et al., "ZeRO", 2020, table 1.
StateBytes state_bytes(const StateBytes& whole, int zero_stage, double ranks);

/// Parameters that one rank holds before ZeRO shards them, by what divides them.
struct HeldParameters {
  double split = 0;  ///< tensor parallelism cuts them (already divided)
  /// Norms, routers, positions, biases of row-parallel layers, and what a recipe replicates: whole
  /// on every tensor rank.
  double replicated = 0;
  double expert = 0;  ///< routed experts (already divided by expert x expert_tensor)

  double dense() const { return split + replicated; }
  double all() const { return split + replicated + expert; }
  HeldParameters& operator+=(const HeldParameters& other);
  HeldParameters operator*(double times) const;
};
/// Returns what a rank holds of one parameter of the model; one of the three is not 0.
HeldParameters held_of(const model::ParameterSpec& parameter, const Training& training);
/// Returns what belongs to every stage of the pipeline, in the order of the data path. With tied
/// embeddings the last stage has a copy of the token table, where another rank has the first one.
std::vector<HeldParameters> held_by_stage(const ModelSpec& spec, const Training& training);
/// Returns what every pipeline rank holds, of all its stages.
std::vector<HeldParameters> held_by_rank(const ModelSpec& spec, const Training& training);
/// Return what a rank holds of one block, of the embedding and of the head: the units that ZeRO-3
/// gathers. Where blocks differ, held_by_block is the mean of them.
HeldParameters held_by_block(const ModelSpec& spec, const Training& training);
/// Returns what a rank holds of every block: by a recipe, they may differ. The dense and the other
/// blocks of a mixture count as their mean.
std::vector<HeldParameters> held_by_blocks(const ModelSpec& spec, const Training& training);
HeldParameters held_by_embedding(const ModelSpec& spec, const Training& training);
HeldParameters held_by_head(const ModelSpec& spec, const Training& training);

// ---- activations -------------------------------------------------------------------------------

/// Says when tensor ranks divide a saved tensor: always, or only where the sequence is cut.
enum class Division { kTensor, kSequence };

/// One tensor that a block saves for its backward pass, for one micro-batch on one context rank,
/// before tensor parallelism divides it. Korthikanti et al., "Reducing activation recomputation in
/// large transformer models", 2022, section 4, as a list.
struct SavedTensor {
  const char* what;
  double bytes;
  Division division = Division::kTensor;
  bool core = false;  ///< selective recomputation drops this part of attention
  bool mask = false;  ///< only the input gradient needs it
};
std::vector<SavedTensor> saved_tensors(const ModelSpec& spec, const Training& training);

/// Returns the bytes that one micro-batch leaves in one block on one rank, under the training's own
/// recomputation or another one.
double block_activation_bytes(const ModelSpec& spec, const Training& training);
double block_activation_bytes(const ModelSpec& spec, const Training& training, Recompute recompute);

/// Returns for every pipeline rank how many micro-batches' worth of its own blocks it holds at its
/// peak. The schedule decides it.
std::vector<double> in_flight_by_rank(const ModelSpec& spec, const Training& training,
                                      ScheduleCache& cache);

// ---- all of it ---------------------------------------------------------------------------------

/// Bytes on one rank, by category.
struct MemoryUse {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;    ///< saved for the backward pass
  double gathered = 0;       ///< ZeRO-3: whole units around the one that runs
  double communication = 0;  ///< buckets and messages
  /// Temporaries of the running operation: a recomputed block, the gradient of the logits.
  double workspace = 0;
  double staging = 0;  ///< copies that a checkpoint in progress has made

  double states() const { return parameters + gradients + optimizer; }
  double all() const {
    return states() + activations + gathered + communication + workspace + staging;
  }
};

/// One moment of a step on one pipeline rank.
struct MemoryPhase {
  /// "steady state": as many micro-batches are in flight as there will be. "backward": one of them
  /// runs back, with what that needs. "optimizer" and "checkpoint" are the other two. Shoal's own
  /// runtime names its moments in forecast/memory.cpp.
  std::string name;
  MemoryUse use;
};

struct RankMemory {
  std::int64_t rank = 0;  ///< pipeline rank
  std::vector<MemoryPhase> phases;

  const MemoryPhase& peak() const;
};

/// Returns the parameters that a rank updates: all that it holds, or with ZeRO its shard of them.
double owned_values(const HeldParameters& held, const Training& training);

/// Returns the memory of one rank of every pipeline stage by the formulas of the literature; the
/// data, tensor and context ranks of a stage are alike. Without a cluster the second set of shards
/// of ZeRO++ is left out, for its size depends on how ranks lie on hosts.
std::vector<RankMemory> published_memory(const ModelSpec& spec, const Training& training,
                                         ScheduleCache& cache);
std::vector<RankMemory> published_memory(const ModelSpec& spec, const Training& training,
                                         const Cluster& cluster, ScheduleCache& cache);
/// Returns the bytes that offloading keeps in the memory of the fullest host, from all its devices;
/// 0 where nothing is offloaded.
double offloaded_bytes(const ModelSpec& spec, const Training& training, const Cluster& cluster);
/// Returns the rank that needs most.
const RankMemory& worst(const std::vector<RankMemory>& ranks);

/// Returns the bytes of a checkpoint: parameters, master copy and moments, once.
double checkpoint_bytes(const ModelSpec& spec, const Training& training);

}  // namespace shoal::plan
