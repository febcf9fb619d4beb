#include "shoal/nn/attention_core.h"

#include <ATen/core/Tensor.h>

#include "shoal/base/check.h"
#include "shoal/nn/key_value_cache.h"

namespace shoal::nn {

void AttentionCore::share_groups(std::int64_t ranks) {
  SHOAL_USER_CHECK(ranks >= 1 && shape_.heads_per_group % ranks == 0, "attention",
                   "{} ranks cannot share the {} query heads of a key-value head", ranks,
                   shape_.heads_per_group);
  shape_.heads_per_group /= ranks;
}

at::Tensor AttentionCore::forward(const at::Tensor& x, const Context& context) {
  if (context.cache == nullptr)
    return ops::attention(x, shape_, context.documents, context.positions,
                          projection_ ? projection_->tensor().scalar_type() : x.scalar_type());
  SHOAL_USER_CHECK(!context.documents.defined() && !context.positions.defined(), "attention",
                   "a key-value cache takes one contiguous document");
  const auto [k, v] = ops::keys_and_values(x, shape_);
  // Keys are cached after their rotation: a position never changes, so they are turned once.
  const auto [keys, values] = context.cache->extend(path(), context.position_begin, k, v);
  return ops::attention_over(x, keys, values, shape_);
}

}  // namespace shoal::nn
