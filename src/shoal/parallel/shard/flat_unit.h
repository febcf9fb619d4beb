#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/nn/parameter.h"
#include "shoal/parallel/data/gradient_reduction.h"

namespace shoal::parallel {

/// Describes the layout `flat(unit)`: parameters lie one behind the other in one row of elements,
/// and each begins at a multiple of 64 bytes. The row is cut into equal shards, one for each rank
/// of the sharding axis. Padding belongs to no parameter. With more ranks than cache lines the last
/// shards are all padding.
struct FlatUnit {
  struct Member {
    std::shared_ptr<nn::Parameter> parameter;
    std::int64_t offset = 0;  ///< place of its first element in the row
    std::int64_t count = 0;
  };
  std::string name;  ///< path of the module; empty: the model itself
  std::vector<Member> members;
  at::ScalarType type = at::kFloat;
  at::ScalarType gradient_type = at::kFloat;
  at::Device device = at::kCPU;
  bool trained = true;    ///< frozen parameters are in units of their own, which have no gradient
  bool adjusted = false;  ///< a rule changes some of these frozen parameters after each step
  int ranks = 1;
  std::int64_t shard = 0;  ///< elements of a shard

  std::int64_t size() const { return shard * ranks; }
  /// Returns the range [begin, end) of elements of a member, counted from its first, that lie in
  /// the shard of `rank`; begin == end when there are none.
  std::pair<std::int64_t, std::int64_t> range(const Member& member, int rank) const;
  at::TensorOptions options() const { return at::TensorOptions(type).device(device); }
  at::TensorOptions gradient_options() const {
    return at::TensorOptions(gradient_type).device(device);
  }
  /// Returns the offset at which that range begins in the shard.
  std::int64_t place(const Member& member, int rank) const;
};

/// Lays out `parameters`: those that have the same types, and are all trained or all frozen, share
/// a flat unit.
std::vector<FlatUnit> flat_units(const std::string& name,
                                 const std::vector<std::shared_ptr<nn::Parameter>>& parameters,
                                 int ranks);

}  // namespace shoal::parallel
