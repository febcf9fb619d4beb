#pragma once

#include <memory>

#include "shoal/mesh/mesh.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/shard/wrapping.h"
#include "shoal/schedule/sharding.h"

namespace shoal::parallel {

/// Names what a rank holds a shard of, instead of the whole. Each stage includes those before it
/// (Rajbhandari et al., "ZeRO", SC 2020).
enum class ShardStage {
  kOptimizer = 1,  ///< ZeRO-1: the optimizer's state; gradients are whole until the end of the step
  kGradients = 2,  ///< ZeRO-2: gradients too; a unit's gradient is freed when it is reduced
  kParameters = 3,  ///< ZeRO-3, FSDP: parameters too; a unit is gathered for its use
};

struct ShardingOptions {
  ShardStage stage = ShardStage::kParameters;
  Wrapping wrapping;
  /// In kParameters with copied parameters: a unit is gathered this many modules before the module
  /// that reads it.
  int ahead = 1;
  /// In kParameters with copied parameters: units are released after forward and gathered again for
  /// backward.
  bool reshard_after_forward = true;
  /// In kGradients and above, when units are not gathered: after starting a reduction, backward
  /// waits until at most this many are incomplete.
  int in_flight = 2;
  /// In kGradients and above: reduces after every micro-batch, so that no whole gradient outlives a
  /// micro-batch. It costs one reduction per micro-batch.
  bool reduce_every_micro_batch = false;
  /// With kShared there is one copy of the parameters per host, which is read in place. With
  /// kCopied every rank has its own copy. kAuto means kShared if the ranks share memory.
  enum class Copies { kAuto, kShared, kCopied } copies = Copies::kAuto;
  /// In kParameters with copied parameters: who says when units are gathered. The table of
  /// Sharding::table fits passes that come one after the other; a pipeline, which has several under
  /// way, calls Sharding::gather and release itself.
  enum class Gathers { kByTable, kByCaller } gathers = Gathers::kByTable;
  /// Parameters that lie in units of their own: those that another model's sharding cuts too, and
  /// whose shards must be the same there (tied weights of a pipeline).
  Parameters alone;
  /// Float32 parameters are sent in this type, kFloat or kBFloat16 (half the bytes). Every rank
  /// computes with the rounded values, and updates unrounded values of what it owns. When all ranks
  /// share one copy nothing is sent or rounded.
  at::ScalarType transfer_type = at::kFloat;
};

/// Data parallelism whose ranks hold shards of what they all would hold, and copies of the shards
/// along the mesh axis dp_replicate (hybrid sharding, HSDP): see Holders.
///
/// Parameters lie flat by unit (see flat_unit.h); each rank updates its shard. The gradient of a
/// unit is written into one flat buffer and reduced to its owners during backward, as soon as it is
/// complete. There are three arrangements of the parameters: 1. All ranks of a shard group share
/// memory: the parameters exist once and are read in place in every stage, so nothing is gathered
/// or released. 2. Hosts hold equal blocks of several ranks: there is one copy per host, into which
/// each of its ranks fetches a part of what other hosts own. 3. Otherwise (copied): there is one
/// copy per rank. In the last two, stages 1 and 2 gather after the update, stage 3 as `table` says.
///
/// Gathers are collective. Every rank follows the table to its end, so a rank may skip modules.
/// When a module runs out of turn on one rank only, an error names the unit.
class Sharding : public GradientReduction {
 public:
  /// Fills parameters as Module::reset_parameters does, with at most one unit unsharded at a time.
  /// Collective.
  virtual void reset_parameters(Key key) = 0;
  /// Makes the parameters whole on every rank until `reshard`, so that a rank may compute without
  /// the others. Collective.
  virtual void unshard() = 0;
  virtual void reshard() = 0;
  /// Returns true where parameters are gathered for their use: the ranks that hold shards of them
  /// must then run the model equally often.
  virtual bool gathers() const = 0;
  /// Between these two calls forward passes of the model have no backward pass (evaluation,
  /// generation). Each gathers the units one after the other, `ahead` of their modules, and
  /// releases them behind their last use; where nothing is gathered, and with Gathers::kByCaller,
  /// passes run as ever. Collective, as the passes are.
  virtual void begin_inference() = 0;
  virtual void end_inference() = 0;
  /// With Gathers::kByCaller. Starts to gather the units in which `parameters` lie; `wait_for`
  /// returns when they are there, and `release` frees them once it was called as often as `gather`.
  /// Tensors that autograd has saved are valid again after the next gather. Nothing is done for
  /// parameters that are resident. Collective.
  virtual void gather(const Parameters& parameters) = 0;
  virtual void wait_for(const Parameters& parameters) = 0;
  virtual void release(const Parameters& parameters) = 0;
  /// Returns the order of gathers and releases in one micro-batch; empty when there are none.
  /// Modules are numbered in the order in which `wrap` returns them, units in their order in
  /// memory. If holders differ it is the table of the first parameter's.
  virtual const std::vector<schedule::ShardAction>& table() const = 0;
};

/// Gives `model` its memory, sharded over the mesh, each parameter over its own holders. The model
/// has none before, and its parameters are already marked as trained or frozen; it must outlive the
/// result. Values are undefined until `reset_parameters`, or until `owned` is filled and
/// `end_update` called. Collective. Throws Error(usage) for parameters that have memory.
std::unique_ptr<Sharding> sharded_data_parallel(nn::Module& model, const mesh::Mesh& mesh,
                                                const ShardingOptions& options = {});

/// Makes the plain implementation that the other is tested against: gradients are all-reduced whole
/// after the last backward pass and cut afterwards; owners send their shards to all after the
/// update; in stage 3 the shards of others are NaN between steps. Throws Error(usage) for
/// parameters whose holders differ.
std::unique_ptr<Sharding> sharding_by_hand(nn::Module& model, const mesh::Mesh& mesh,
                                           const ShardingOptions& options = {});

}  // namespace shoal::parallel
