#pragma once

#include <string>
#include <vector>

namespace shoal::schedule {

enum class ShardStep {
  kGather,    ///< unit: its parameters are fetched; the module that needs them waits for the end of
              ///< it
  kRelease,   ///< unit: its memory is given back
  kForward,   ///< module: its forward pass begins
  kBackward,  ///< module: its backward pass begins
};

/// One line of the table by which sharded parameters come and go.
struct ShardAction {
  ShardStep step = ShardStep::kGather;
  int index = 0;  ///< a unit of kGather and kRelease, a module of kForward and kBackward

  bool operator==(const ShardAction&) const = default;
};

/// Modules in the order in which their forward passes begin, and the units of parameters that each
/// reads. A unit is read by several modules when a weight is tied.
struct ShardPlan {
  std::vector<std::vector<int>> reads;  ///< by module: units
  std::vector<int> parent;              ///< by module: the one it runs inside of, -1: none
  int ahead = 1;  ///< units are gathered while so many modules before theirs still compute
  bool reshard_after_forward = true;  ///< released after forward and gathered again for backward
  int first_trained =
      0;  ///< the first module with something to train: backward enters none that ends before it
};

/// What happens in one micro-batch. Nothing is gathered at its beginning and at its end. A unit
/// stays from its first to its last use in a pass, and through the turn from forward to backward
/// where backward begins with it. Throws Error(usage) for a plan whose lists do not fit together.
std::vector<ShardAction> shard_table(const ShardPlan& plan);

/// The most units that are gathered at once.
int most_gathered(const std::vector<ShardAction>& table);

/// "gather 0, gather 1, forward 0, ...".
std::string to_string(const std::vector<ShardAction>& table);

}  // namespace shoal::schedule
