#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace shoal::nn {

/// Keys and values of the positions that a generation has seen, one pair of tensors [B, heads,
/// positions, head_size] for each attention layer.
///
/// A forward pass with `Context::cache` and `position_begin` = p writes the keys and values of its
/// T columns at p ... p + T - 1, over earlier ones there, and attends to 0 ... p + T - 1. The
/// memory grows by doubling up to `capacity` positions. Not thread-safe.
class KeyValueCache {
 public:
  explicit KeyValueCache(std::int64_t capacity) : capacity_(capacity) {}

  std::int64_t capacity() const { return capacity_; }
  /// Returns the number of positions that every layer has.
  std::int64_t length() const;
  void clear() { layers_.clear(); }

  /// Stores `keys` and `values` [B, heads, T, head_size] of positions from `begin` and returns all
  /// up to the last of them, as views. Throws Error(usage) when they leave a gap or pass the
  /// capacity.
  std::pair<at::Tensor, at::Tensor> extend(const std::string& layer, std::int64_t begin,
                                           const at::Tensor& keys, const at::Tensor& values);

 private:
  struct Layer {
    at::Tensor keys;    // [B, heads, room, head_size]
    at::Tensor values;  // [B, heads, room, head_size]
    std::int64_t length = 0;
  };

  void make_room(Layer& layer, std::int64_t positions, const at::Tensor& like) const;

  std::int64_t capacity_;
  std::map<std::string, Layer> layers_;
};

}  // namespace shoal::nn
