#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/parallel/data/gradient_reduction.h"

namespace shoal::train {

/// Sets of items by the ranks that hold them (StateItem::holders): those of one stage, and of
/// several (tied weights).
enum ItemHolders { kUntied, kTied, kCounts, kTiedCounts, kScale };
/// Is added to those of one member: the ranks of all members at the same places.
inline constexpr int kAllMembers = 8;

/// Returns the range as a tensor of the checkpoint: whole in the parameter's shape, or flat with
/// its boxes.
checkpoint::StateItem item_of(const std::string& prefix, const parallel::OwnedRange& range,
                              const at::Tensor& values);
/// Returns the boxes of the parameter in which elements [begin, end) of the range lie, in order.
std::vector<mesh::Box> boxes_in(const parallel::OwnedRange& range, std::int64_t begin,
                                std::int64_t end);

/// An array of which a checkpoint has only some values is saved as boxes, each a tensor of its own,
/// whose name says where it begins: "outer.difference.blocks.0.mlp.up.weight@64,0".
struct NamedBox {
  std::string parameter;
  std::vector<std::int64_t> begin;
};
std::string name_of_box(const std::string& prefix, const std::string& parameter,
                        const std::vector<std::int64_t>& begin);
/// Reads such a name, without its prefix. Throws Error(data) that names `path` for another one.
NamedBox parse_named_box(const std::string& name, const std::string& path);
/// Checks that such a box, whose tensor has the shape `shape`, is part of a parameter whose shape
/// is `parameter`. Throws Error(data) that names `path` for another one.
void check_box(const NamedBox& box, const std::vector<std::int64_t>& shape,
               const std::vector<std::int64_t>& parameter, const std::string& path);
/// Returns the items of the values of `range` that begin with number `begin`.
std::vector<checkpoint::StateItem> boxes_to_save(const std::string& prefix,
                                                 const parallel::OwnedRange& range,
                                                 std::int64_t begin, const at::Tensor& values);

}  // namespace shoal::train
