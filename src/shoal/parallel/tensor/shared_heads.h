#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/layers.h"

namespace shoal::parallel {

/// The projection to queries, keys and values where there are more tensor-parallel ranks than
/// key-value heads: the ranks of `sharers` cut the rows of one head's group evenly, gather the
/// result, and each keeps its own query heads with the key and the value. x [B, T, h] to [B, T,
/// (heads_per_group / sharers + 2) * head_size]. The gradient of key and value is summed over the
/// sharers.
class SharedHeads final : public nn::Linear {
 public:
  SharedHeads(const nn::Linear& original, comm::Group sharers, std::int64_t heads_per_group,
              std::int64_t head_size);

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group sharers_;
  std::int64_t heads_per_group_;
  std::int64_t head_size_;
};

}  // namespace shoal::parallel
