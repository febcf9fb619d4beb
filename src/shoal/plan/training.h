#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/model/kept_activations.h"
#include "shoal/model/model_spec.h"
#include "shoal/plan/cluster.h"
#include "shoal/plan/degrees.h"
#include "shoal/schedule/action.h"

namespace shoal::plan {

// The planner uses these names on every other line.
using model::Activation;
using model::Family;
using model::Keep;
using model::MicroBatch;
using model::ModelSpec;
using model::named_model;
using model::Norm;
using model::Positions;

enum class Recompute { kNone, kSelective, kFull };
enum class Optimizer { kAdam, kMomentum, kSgd };

/// Bytes of the states of one parameter. ZeRO stage 1 shards `master` and `moments`, stage 2 the
/// gradient too, stage 3 the parameter too.
struct StateBytes {
  double parameter = 4;
  double gradient = 4;
  double master = 0;
  double moments = 8;
  /// Copies of the optimizer's state and of the parameters that it updates, for updates that can be
  /// taken back.
  double undo = 0;

  double optimizer() const { return master + moments + undo; }
  double all() const { return parameter + gradient + optimizer(); }
  bool operator==(const StateBytes&) const = default;
};

/// A number format with the states that it keeps. "fp32" keeps 4 + 4 + 8 bytes. "mixed" keeps
/// 16-bit parameters and gradients, fp32 master and moments (the 16 bytes of ZeRO). "bf16" has fp32
/// gradients (the 18 bytes of Megatron). "fp16" has 16-bit gradients and an fp32 copy of them (the
/// 20 bytes of Megatron). "bf16-moments" is "bf16" with 16-bit moments (14 bytes). "fp8" multiplies
/// in 8 bits and keeps the states of "bf16".
struct Precision {
  std::string name = "bf16";
  ElementType compute = ElementType::kBF16;  ///< element type of matmuls
  double activation_bytes = 2;               ///< one element that is saved or sent
  /// One element on its way to its experts: 1 where their matmuls take 8 bits.
  double dispatch_bytes = 2;
  StateBytes state;
};
/// Returns the precision of that name; empty when there is none.
std::optional<Precision> precision(std::string_view name, Optimizer optimizer = Optimizer::kAdam);
std::vector<std::string> precision_names();

/// Members along dp_replicate train by themselves: their gradients stay apart, and parameters are
/// exchanged now and then (local SGD, DiLoCo). Figures are of one parameter.
struct MemberExchange {
  std::int64_t every = 1;   ///< steps between two exchanges
  double sent_bytes = 4;    ///< in one exchange, encoded
  double state_bytes = 8;   ///< beside the optimizer's: anchor, momentum, what rounding took
  double flight_bytes = 4;  ///< in memory while an exchange is under way
  bool overlapped = false;  ///< training goes on meanwhile

  bool operator==(const MemberExchange&) const = default;
};

/// The options of a training run. Members that a job file has too carry the names of its keys.
struct Training {
  Degrees degrees;
  std::int64_t virtual_stages = 1;  ///< stages a rank, for the interleaved schedule
  /// Ranks that cut each expert's matrices, folded into the ranks of a stage beside `degrees.ep`.
  std::int64_t expert_tensor = 1;
  /// ZeRO: 0 replicates everything, 1 shards optimizer states, 2 gradients too, 3 parameters too.
  int zero_stage = 0;
  std::int64_t micro_batch = 1;   ///< samples
  std::int64_t global_batch = 1;  ///< samples of one optimizer step
  std::int64_t sequence = 0;      ///< tokens of a sample; 0: the model's longest
  Recompute recompute = Recompute::kNone;
  std::string schedule = "1f1b";
  std::string precision = "mixed";
  Optimizer optimizer = Optimizer::kAdam;
  /// Activations between tensor-parallel matmuls are cut along the sequence.
  bool sequence_parallel = true;
  /// Attention never stores the score matrix, and skips its causal half.
  bool flash_attention = true;
  /// Gradients and parameters are exchanged beside the backward and the forward pass.
  bool overlap_data = true;
  /// Every micro-batch reduces its gradients; otherwise each rank sums those of its micro-batches
  /// and reduces once. Empty: ZeRO-2 and 3 do, so that no whole gradient outlives its micro-batch.
  std::optional<bool> reduce_every_micro_batch;
  bool overlap_tensor = false;
  bool overlap_pipeline = false;
  /// ZeRO-3: parameters are released after the forward pass and gathered again for the backward
  /// pass.
  bool reshard_after_forward = true;
  int gather_ahead = 1;            ///< ZeRO-3: units gathered ahead of the one that runs
  bool offload_optimizer = false;  ///< optimizer states live in host memory
  /// ZeRO-3: the shards of the parameters live in host memory too.
  bool offload_parameters = false;
  /// ZeRO-3 with fewer bytes between hosts. The forward pass gathers parameters in 8 bits, the
  /// backward pass gathers them within a host, from a second set of shards, and gradients travel in
  /// 4 bits. Wang et al., "ZeRO++", 2023.
  bool zero_plus_plus = false;
  /// Context ranks exchange positions for heads around attention. Otherwise they gather keys and
  /// values. Jacobs et al., "DeepSpeed Ulysses", 2023.
  bool ulysses = false;
  /// Data ranks of several hosts exchange gradients and shards around one ring of all devices,
  /// whose links between hosts carry every byte. Otherwise the devices of a host share that
  /// traffic. Narayanan et al., SC 2021, table 2, measured DeepSpeed's ZeRO-3 with flat rings.
  bool flat_rings = false;
  double expert_imbalance = 1;  ///< tokens of the busiest expert rank over the mean
  /// Shoal only: how the ranks along tp divide each block; null: as the default recipe says. It is
  /// of the model and the degree that it was made for.
  std::shared_ptr<const model::TensorDivision> division;
  /// Shoal only: what each block keeps for its backward pass; empty: as `recompute` says.
  std::vector<Keep> kept;
  /// Shoal only: the states of the job; empty: those of `precision`.
  std::optional<StateBytes> states;
  /// Shoal only: bytes that a checkpoint written behind training may copy aside on each rank.
  double staging_bytes = 0;
  /// Shoal only: stages of a rank that ZeRO-3 holds gathered at once; 0: all of them.
  std::int64_t gathered_stages = 0;
  /// Shoal only: how members exchange parameters; empty: all ranks sum gradients in every step.
  std::optional<MemberExchange> exchange;
  /// Shoal only: threads that compute on a rank, each with scores of attention of its own.
  std::int64_t threads = 1;
  /// Shoal only: the head of a pipeline computes its logits twice; empty: as
  /// plan::recomputes_logits finds for the schedule.
  std::optional<bool> recompute_logits;
  /// Blocks of each stage, in order of stages; empty: as even as possible.
  std::vector<std::int64_t> stage_layers;
  /// The table of a schedule that has no name, from a file; it takes the place of `schedule` and
  /// `virtual_stages`. Null: there is none. Copies share it.
  std::shared_ptr<const schedule::Schedule> table;

  std::int64_t micro_batches() const { return global_batch / (degrees.dp() * micro_batch); }
  std::int64_t tokens_per_step(const ModelSpec& spec) const { return global_batch * length(spec); }
  std::int64_t length(const ModelSpec& spec) const {
    return sequence > 0 ? sequence : spec.sequence;
  }
  /// Return true where tensor-parallel ranks cut the token table, and the output layer.
  bool tokens_cut() const { return !division || division->tokens_cut; }
  bool output_cut() const { return !division || division->output_cut; }
  /// Returns how the ranks along tp divide a block for the samples of a micro-batch.
  model::BlockDivision division_of(std::int64_t block) const;
  /// Returns true where ranks of a pipeline update before they know the norm of the whole gradient,
  /// and begin the next step without each other.
  bool post_validates() const { return states && states->undo > 0; }
  bool reduces_every_micro_batch() const {
    return reduce_every_micro_batch.value_or(zero_stage >= 2);
  }
  /// The degrees of the ranks that sum gradients together: those of one member where there are
  /// several.
  Degrees reducing() const {
    Degrees own = degrees;
    if (exchange) own.dp_replicate = 1;
    return own;
  }
  /// The ranks that hold the same part of an expert, and sum its gradient.
  std::int64_t expert_data() const {
    return reducing().stage_ranks() / (degrees.ep * expert_tensor);
  }
  std::int64_t stages() const { return table ? table->stages() : degrees.pp * chunks(); }
  /// Names the schedule: that of a file by its file.
  const std::string& schedule_name() const { return table ? table->name : schedule; }
  /// Returns the stages that each rank has in `schedule`: virtual_stages, or the 2 of a V-shaped
  /// one.
  std::int64_t chunks() const;
  bool operator==(const Training&) const = default;
};

/// Throws Error(config) that names the degree, its value and the rule, with the nearest that would
/// do, when a model cannot be divided so. `by_recipe`: parallel::check_recipe has the rules of tp.
void validate_degrees(const ModelSpec& spec, const Degrees& degrees,
                      std::int64_t virtual_stages = 1, std::int64_t expert_tensor = 1,
                      bool by_recipe = false);

/// Throws Error(config) that names the option, its value and the rule when the mesh does not divide
/// the model, the batch does not divide, or the schedule needs other counts.
void validate(const ModelSpec& spec, const Training& training);

/// The same with the rules of whose software runs: in Shoal all experts of a copy of the sharded
/// states lie on its ranks, and Shoal alone divides by recipes.
void validate(const ModelSpec& spec, const Training& training, Runtime runtime);

/// Returns the blocks of every stage (pipeline x chunks of them, in the order of the data path):
/// `stage_layers`, or shares as even as possible. The first and the last stage, which also hold
/// embedding and head, take the smaller shares.
std::vector<std::int64_t> stage_blocks(const ModelSpec& spec, const Training& training);

/// Returns the number of ranks to which a tensor rank sends each row for an expert: all tensor
/// ranks of an expert multiply the same rows, each by a slice of the expert's width. Without
/// sequence parallelism the tensor ranks hold the same rows already.
double expert_copies(const Training& training);

/// Returns the rank of the pipeline that holds a stage.
std::int64_t rank_of_stage(const Training& training, std::int64_t stage);

}  // namespace shoal::plan
