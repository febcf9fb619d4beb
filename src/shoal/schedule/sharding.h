#pragma once

#include <string>
#include <vector>

namespace shoal::schedule {

enum class ShardStep {
  /// The parameters of a unit are fetched. The module that needs them waits for the end of it.
  kGather,
  kRelease,   ///< the memory of a unit is freed
  kForward,   ///< the forward pass of a module begins
  kBackward,  ///< the backward pass of a module begins
};

/// One line of the table by which sharded parameters are gathered and released.
struct ShardAction {
  ShardStep step = ShardStep::kGather;
  int index = 0;  ///< number of a unit (kGather, kRelease) or of a module (kForward, kBackward)

  bool operator==(const ShardAction&) const = default;
};

/// Modules in the order in which their forward passes begin, and the units of parameters that each
/// reads. A unit is read by several modules when a weight is tied.
struct ShardPlan {
  std::vector<std::vector<int>> reads;  ///< by module: its units
  std::vector<int> parent;              ///< by module: the module around it; -1: none
  int ahead = 1;  ///< a unit is gathered while so many modules before its own still compute
  bool reshard_after_forward = true;  ///< units are released after forward, gathered for backward
  /// The first module with something to train: backward enters none that ends before it.
  int first_trained = 0;
};

/// Returns the actions of one micro-batch. Nothing is gathered at its beginning and at its end. A
/// unit stays from its first to its last use in a pass, and through the turn from forward to
/// backward when backward begins with it. Throws Error(usage) for a plan whose lists do not fit
/// together.
std::vector<ShardAction> shard_table(const ShardPlan& plan);

/// Returns the actions of a forward pass that no backward pass follows: every unit is released
/// behind its last use. Throws as shard_table does.
std::vector<ShardAction> forward_shard_table(const ShardPlan& plan);

/// Returns "gather 0, gather 1, forward 0, ...".
std::string to_string(const std::vector<ShardAction>& table);

}  // namespace shoal::schedule
