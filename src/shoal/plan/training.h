#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/model/kept_activations.h"
#include "shoal/model/model_spec.h"

namespace shoal::plan {

// The planner names these on every other line.
using model::Activation;
using model::Family;
using model::Keep;
using model::MicroBatch;
using model::ModelSpec;
using model::named_model;
using model::Norm;
using model::Positions;

/// How devices are arranged. Ranks are numbered tensor first, then context, data, pipeline.
/// Dense parts fill tensor x context x data x pipeline; experts fill expert_tensor x expert x (what
/// is left) x pipeline: they are folded into the same devices and are no further factor.
struct Mesh {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t virtual_stages = 1;  ///< stages a rank, for the interleaved schedule
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
  std::int64_t shard = 0;  ///< ranks over which ZeRO shards; 0: all data x context ranks. Fewer:
                           ///< hybrid (HSDP), replicated over the rest

  std::int64_t devices() const { return data * tensor * pipeline * context; }
  std::int64_t shard_ranks() const { return shard > 0 ? shard : data * context; }
  std::int64_t expert_data() const { return data * tensor * context / (expert * expert_tensor); }
  bool operator==(const Mesh&) const = default;
};

enum class Recompute { kNone, kSelective, kFull };
enum class Optimizer { kAdam, kMomentum, kSgd };

/// What is kept per parameter, in bytes. The ZeRO stages shard `master` + `moments` (1), the
/// gradient too (2), and the parameter too (3).
struct StateBytes {
  double parameter = 4;
  double gradient = 4;
  double master = 0;
  double moments = 8;

  double optimizer() const { return master + moments; }
  double all() const { return parameter + gradient + optimizer(); }
  bool operator==(const StateBytes&) const = default;
};

/// "fp32": 4 + 4 + 8. "mixed": 16-bit parameters and gradients, fp32 master and moments (ZeRO's 16
/// bytes). "bf16": the same with fp32 gradients (Megatron's 18). "fp16": 16-bit gradients and an
/// fp32 copy of them (Megatron's 20). "bf16-moments": "bf16" with 16-bit moments (14). An fp8
/// product keeps the state of "bf16": "fp8".
struct Precision {
  std::string name = "bf16";
  ElementType compute = ElementType::kBF16;  ///< of matrix products
  double activation_bytes = 2;               ///< of one saved element, and of one that is sent
  double dispatch_bytes = 2;  ///< of one element on its way to its experts, whose products take 8
                              ///< bits where `compute` does
  StateBytes state;
};
std::optional<Precision> precision(std::string_view name, Optimizer optimizer = Optimizer::kAdam);
std::vector<std::string> precision_names();

/// How a model is trained.
struct Training {
  Mesh mesh;
  /// ZeRO: 0 replicates everything, 1 shards optimizer states, 2 gradients too, 3 parameters too.
  int zero_stage = 0;
  std::int64_t micro_batch = 1;   ///< samples
  std::int64_t global_batch = 1;  ///< samples of one optimizer step
  std::int64_t sequence = 0;      ///< tokens of a sample; 0: the model's longest
  Recompute recompute = Recompute::kNone;
  std::string schedule = "1f1b";
  std::string precision = "mixed";
  Optimizer optimizer = Optimizer::kAdam;
  bool sequence_parallel =
      true;  ///< between tensor-parallel products, activations are cut along the sequence
  bool flash_attention =
      true;  ///< the score matrix is never stored, and its causal half is skipped
  bool overlap_data =
      true;  ///< gradient and parameter exchange run beside the backward and forward pass
  bool sync_every_micro_batch =
      false;  ///< stages 0 and 1: gradients are reduced in every micro-batch, where else they are
              ///< summed on their rank first
  bool overlap_tensor = false;
  bool overlap_pipeline = false;
  bool reshard_after_forward =
      true;                         ///< ZeRO-3: parameters are gathered again for the backward pass
  int gather_ahead = 1;             ///< ZeRO-3: units gathered ahead of the one that runs
  bool offload_optimizer = false;   ///< optimizer states live in host memory
  bool offload_parameters = false;  ///< ZeRO-3: the ranks' shards of the parameters too
  /// ZeRO-3 with fewer bytes between hosts: parameters are gathered in 8 bits for the forward pass
  /// and within a host, from a second set of shards, for the backward pass; gradients travel in 4
  /// bits. Wang et al., "ZeRO++", 2023.
  bool zero_plus_plus = false;
  /// Context ranks exchange positions for heads around attention, where else they gather keys and
  /// values. Jacobs et al., "DeepSpeed Ulysses", 2023.
  bool ulysses = false;
  /// Data ranks of several hosts exchange gradients and shards around one ring of all devices,
  /// whose links between hosts carry every byte, where else each host's devices share them:
  /// DeepSpeed's ZeRO-3 as Narayanan et al. measured it, SC 2021, table 2.
  bool flat_rings = false;
  double expert_imbalance = 1;  ///< tokens of the busiest expert rank over the mean
  bool reduce_every_micro_batch =
      true;                          ///< ZeRO-2 and 3: whole gradients do not outlive a micro-batch
  std::vector<Keep> kept;            ///< Shoal: what each block keeps; empty: as `recompute` says
  std::optional<StateBytes> states;  ///< Shoal: the job's own; empty: those of `precision`
  double staging_bytes =
      0;  ///< Shoal: what a checkpoint written behind training may copy aside on each rank
  std::vector<std::int64_t>
      stage_layers;  ///< blocks of each stage, in order of stages; empty: as even as possible

  std::int64_t micro_batches() const { return global_batch / (mesh.data * micro_batch); }
  std::int64_t tokens_per_step(const ModelSpec& spec) const { return global_batch * length(spec); }
  std::int64_t length(const ModelSpec& spec) const {
    return sequence > 0 ? sequence : spec.sequence;
  }
  std::int64_t stages() const { return mesh.pipeline * chunks(); }
  std::int64_t chunks() const;  ///< stages a rank: virtual_stages, or the 2 of a V-shaped schedule
  bool operator==(const Training&) const = default;
};

/// Throws Error(config) that names the option, its value and the rule: a mesh that does not fill
/// the devices or does not divide the model, a batch that does not divide, a schedule that needs
/// other counts.
void validate(const ModelSpec& spec, const Training& training);

/// Blocks of every stage (pipeline x chunks of them, in the order of the data path):
/// `stage_layers`, or as even as possible, the first and the last stage, which also hold embedding
/// and head, taking the smaller shares.
std::vector<std::int64_t> stage_blocks(const ModelSpec& spec, const Training& training);

/// Ranks on which each row that a tensor rank sends to an expert arrives: an expert's tensor ranks
/// multiply the same rows by a slice of its width each. Without sequence parallelism tensor ranks
/// hold the same rows already.
double expert_copies(const Training& training);

/// The rank of the pipeline that holds a stage.
std::int64_t rank_of_stage(const Training& training, std::int64_t stage);

}  // namespace shoal::plan
