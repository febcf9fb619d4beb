#pragma once

#include <memory>

#include "shoal/mesh/mesh.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/shard/wrapping.h"
#include "shoal/schedule/sharding.h"

namespace shoal::parallel {

/// What a rank holds a shard of, instead of all. Each stage includes those before it (Rajbhandari
/// et al., "ZeRO", SC 2020).
enum class ShardStage {
  kOptimizer = 1,  ///< ZeRO-1: the optimizer's state; gradients are whole until the end of the step
  kGradients =
      2,  ///< ZeRO-2: gradients too: a unit's gradient is given back as soon as it is reduced
  kParameters = 3,  ///< ZeRO-3, FSDP: parameters too: a unit is gathered for its use
};

struct ShardingOptions {
  ShardStage stage = ShardStage::kParameters;
  Wrapping wrapping;
  int ahead = 1;  ///< kParameters, copied: modules that still compute while the units of the next
                  ///< are gathered
  bool reshard_after_forward =
      true;           ///< kParameters, copied: released after forward, gathered again for backward
  int in_flight = 2;  ///< kGradients up, but where units are gathered: gradients on their way to
                      ///< owners when more are begun
  bool reduce_every_micro_batch = false;  ///< kGradients up: whole gradients do not outlive a
                                          ///< micro-batch, for one reduction more each
  /// kShared: one copy of the parameters a host, read in place. kCopied: every rank has its own.
  /// kAuto: shared where the engine can.
  enum class Way { kAuto, kShared, kCopied } way = Way::kAuto;
  /// Float32 parameters that travel between ranks are rounded to it, kFloat or kBFloat16: half the
  /// bytes. Every rank computes with the rounded values and updates those that it owns unrounded.
  /// Where all ranks share one copy nothing travels, and nothing is rounded.
  at::ScalarType travels = at::kFloat;
};

/// Data parallelism whose ranks hold shards along the mesh axis "shard" and copies of them along
/// "replicate" (hybrid sharding, HSDP).
///
/// Parameters lie flat by unit (see flat_unit.h); each rank updates its shard. Shared by all ranks
/// of a shard group: parameters exist once and are read in place in every stage, so nothing is
/// gathered or released. Otherwise stages 1 and 2 gather after the update, stage 3 by the table:
/// where hosts hold equal blocks of several ranks into one copy a host, to which each of its ranks
/// fetches a part of what other hosts own, else (copied) into one a rank. The gradient of a unit is
/// written into one flat buffer and is reduced to its owners during backward as soon as it is
/// complete.
///
/// Gathers are collective. A pass follows the table to its end, so a rank may leave modules out;
/// what runs out of turn on one rank only is an error that names the unit.
class Sharding : public GradientReduction {
 public:
  /// Fills parameters as Module::reset_parameters does, never holding more than a unit unsharded.
  /// Collective.
  virtual void reset_parameters(Key key) = 0;
  /// Parameters whole on every rank until `reshard`, so that a rank may compute without the others
  /// (evaluation, generation). Collective.
  virtual void unshard() = 0;
  virtual void reshard() = 0;
  /// The order of gathers and releases in one micro-batch; empty when there are none. Modules are
  /// those of `wrap`, units as they are in memory.
  virtual const std::vector<schedule::ShardAction>& table() const = 0;
};

/// `model` has no memory yet, and is trained or frozen as it will be. It must outlive the result,
/// which gives it memory; values are undefined until `reset_parameters`, or until `owned` was
/// filled and `end_update` called. Collective. Throws Error(usage) for parameters that have memory,
/// or an axis of the mesh other than these two.
std::unique_ptr<Sharding> sharded_data_parallel(nn::Module& model, const mesh::Mesh& mesh,
                                                const ShardingOptions& options = {});

/// The plain one, which the other is tested against: gradients are all-reduced whole after the last
/// backward pass and cut afterwards; owners send their shards to all after the update; in stage 3
/// what others own is NaN between steps.
std::unique_ptr<Sharding> sharding_by_hand(nn::Module& model, const mesh::Mesh& mesh,
                                           const ShardingOptions& options = {});

}  // namespace shoal::parallel
