#include "shoal/parallel/tensor/shared_heads.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include "shoal/parallel/redistribute.h"

namespace shoal::parallel {

SharedHeads::SharedHeads(const nn::Linear& original, comm::Group sharers,
                         std::int64_t heads_per_group, std::int64_t head_size)
    : Linear(nn::Replacement(), original),
      sharers_(std::move(sharers)),
      heads_per_group_(heads_per_group),
      head_size_(head_size) {}

at::Tensor SharedHeads::forward(const at::Tensor& x, const nn::Context& context) {
  const at::Tensor part = Linear::forward(x, context);
  std::vector<std::int64_t> whole = part.sizes().vec();
  whole.back() = (heads_per_group_ + 2) * head_size_;
  const at::Tensor group =
      redistribute(part, sharers_, mesh::Placement::shard(-1), mesh::Placement::replicate(), whole);
  const std::int64_t own = heads_per_group_ / sharers_.size() * head_size_;
  // The group's rows: its query heads, its key, its value.
  return at::cat({group.narrow(-1, sharers_.rank() * own, own),
                  group.narrow(-1, heads_per_group_ * head_size_, 2 * head_size_)},
                 -1);
}

}  // namespace shoal::parallel
