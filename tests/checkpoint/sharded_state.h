#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <string>
#include <vector>

#include "shoal/checkpoint/checkpoint.h"

namespace shoal::checkpoint::testing {

/// How a test lays a state over its ranks.
enum class Sharding { kReplicated, kRows, kColumns, kFlat };

inline const char* name(Sharding sharding) {
  constexpr const char* kNames[] = {"replicated", "rows", "columns", "flat"};
  return kNames[static_cast<int>(sharding)];
}

/// A made-up training state whose every element says where it belongs.
struct GlobalState {
  std::vector<std::pair<std::string, at::Tensor>> tensors;

  explicit GlobalState(int seed = 0) {
    const auto add = [&](const std::string& name, at::IntArrayRef shape, at::ScalarType type) {
      std::int64_t count = 1;
      for (const auto size : shape) count *= size;
      tensors.emplace_back(name, at::arange(count, at::kDouble)
                                     .add(1000 * static_cast<int>(tensors.size()) + seed)
                                     .to(type)
                                     .reshape(shape));
    };
    add("model.embedding.weight", {13, 8}, at::kFloat);
    add("model.norm.weight", {8}, at::kFloat);
    add("optimizer.exp_avg.embedding.weight", {13, 8}, at::kBFloat16);
    add("optimizer.step", {}, at::kLong);
    add("model.experts", {3, 5, 4}, at::kHalf);
    add("model.mask", {6}, at::kBool);
  }
};

/// Element range `[begin, end)` of the flattened tensor as boxes, one element at a time: the
/// plainest that is right.
inline std::vector<mesh::Box> one_element_boxes(at::IntArrayRef shape, std::int64_t begin,
                                                std::int64_t end) {
  std::vector<mesh::Box> boxes;
  for (std::int64_t i = begin; i < end; ++i) {
    mesh::Box box{std::vector<std::int64_t>(shape.size()), std::vector<std::int64_t>(shape.size())};
    std::int64_t rest = i;
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0; rest /= shape[d], --d)
      box.end[d] = (box.begin[d] = rest % shape[d]) + 1;
    boxes.push_back(box);
  }
  return boxes;
}

/// What rank `rank` of `ranks` holds of `tensor`. Scalars are replicated whatever the sharding.
inline StateItem item_of(const std::string& name, const at::Tensor& tensor, Sharding sharding,
                         int rank, int ranks) {
  StateItem item{.name = name, .global_shape = tensor.sizes().vec()};
  if (sharding == Sharding::kReplicated || tensor.dim() == 0) {
    item.local = tensor.clone(), item.replica = rank, item.replicas = ranks;
    return item;
  }
  const auto part = [&](std::int64_t size, int index) { return size * index / ranks; };
  if (sharding == Sharding::kFlat) {
    const std::int64_t begin = part(tensor.numel(), rank);
    const std::int64_t end = part(tensor.numel(), rank + 1);
    item.local = tensor.flatten().slice(0, begin, end).clone();
    item.boxes = one_element_boxes(tensor.sizes(), begin, end);
    return item;
  }
  const std::int64_t dim = sharding == Sharding::kRows ? 0 : tensor.dim() - 1;
  const std::int64_t begin = part(tensor.size(dim), rank);
  const std::int64_t end = part(tensor.size(dim), rank + 1);
  item.local = tensor.slice(dim, begin, end).contiguous().clone();
  item.boxes = {{std::vector<std::int64_t>(tensor.dim(), 0), tensor.sizes().vec()}};
  item.boxes[0].begin[dim] = begin, item.boxes[0].end[dim] = end;
  return item;
}

inline std::vector<StateItem> items_of(const GlobalState& state, Sharding sharding, int rank,
                                       int ranks) {
  std::vector<StateItem> items;
  for (const auto& [name, tensor] : state.tensors)
    items.push_back(item_of(name, tensor, sharding, rank, ranks));
  return items;
}

/// Overwrites what the items hold, so that nothing but loading can bring it back.
inline void wipe(const std::vector<StateItem>& items) {
  for (const StateItem& item : items) item.local.fill_(77);
}

inline bool same(const std::vector<StateItem>& a, const std::vector<StateItem>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].name != b[i].name || !a[i].local.equal(b[i].local)) return false;
  return a.size() == b.size();
}

}  // namespace shoal::checkpoint::testing
