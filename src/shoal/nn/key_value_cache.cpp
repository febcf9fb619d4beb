#include "shoal/nn/key_value_cache.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::nn {

std::int64_t KeyValueCache::length() const {
  // A pass that failed midway may have extended only the first layers: what all have is what
  // counts.
  std::int64_t least = layers_.empty() ? 0 : capacity_;
  for (const auto& [name, layer] : layers_) least = std::min(least, layer.length);
  return least;
}

void KeyValueCache::make_room(Layer& layer, std::int64_t positions, const at::Tensor& like) const {
  const std::int64_t room = layer.keys.defined() ? layer.keys.size(2) : 0;
  if (positions <= room) return;
  // Doubling: n positions that come one by one are copied O(n) times in all, not O(n^2).
  const std::int64_t wanted =
      std::min(capacity_, std::max({positions, 2 * room, std::int64_t{64}}));
  for (at::Tensor* tensor : {&layer.keys, &layer.values}) {
    const at::Tensor larger = at::empty({like.size(0), like.size(1), wanted, like.size(3)},
                                        like.options().requires_grad(false));
    if (layer.length > 0)
      larger.narrow(2, 0, layer.length).copy_(tensor->narrow(2, 0, layer.length));
    *tensor = larger;
  }
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::extend(const std::string& name, std::int64_t begin,
                                                        const at::Tensor& keys,
                                                        const at::Tensor& values) {
  Layer& layer = layers_[name];
  const std::int64_t count = keys.size(2);
  const std::int64_t end = begin + count;
  // A gap would leave positions whose keys are undefined and attended to all the same.
  SHOAL_USER_CHECK(begin <= layer.length, "key_value_cache", "{}: positions from {} after only {}",
                   name, begin, layer.length);
  SHOAL_USER_CHECK(end <= capacity_, "key_value_cache",
                   "{}: position {} is beyond the capacity of {}", name, end - 1, capacity_);
  SHOAL_USER_CHECK(!layer.keys.defined() || layer.keys.size(0) == keys.size(0), "key_value_cache",
                   "{}: {} sequences, {} before", name, keys.size(0), layer.keys.size(0));
  make_room(layer, end, keys);
  layer.keys.narrow(2, begin, count).copy_(keys);
  layer.values.narrow(2, begin, count).copy_(values);
  // May go back: a pass from an earlier position forgets what came after it.
  layer.length = end;
  return {layer.keys.narrow(2, 0, end), layer.values.narrow(2, 0, end)};
}

}  // namespace shoal::nn
