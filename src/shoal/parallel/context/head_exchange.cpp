#include "shoal/parallel/context/head_exchange.h"

#include <ATen/core/Tensor.h>

#include "shoal/base/check.h"
#include "shoal/parallel/redistribute.h"

namespace shoal::parallel {

using mesh::Placement;

at::Tensor HeadExchange::attend(const at::Tensor& x, const nn::Context& context) {
  const std::int64_t group = (shape().heads_per_group + 2) * shape().head_size;
  SHOAL_USER_CHECK(x.dim() == 3 && x.size(2) % (group * ranks().size()) == 0, "context parallel",
                   "{} key-value heads cannot be divided among {} ranks", x.size(2) / group,
                   ranks().size());
  const Placement columns = Placement::shard(1, cut());
  const Placement heads = Placement::shard(2);
  const std::int64_t length = context.sequence.columns;
  const at::Tensor own_heads =
      redistribute(x, ranks(), columns, heads, {x.size(0), length, x.size(2)});
  // Whole sequences in the order of their positions, whatever the cut is.
  nn::Context whole = context;
  whole.positions = at::Tensor();
  whole.documents = context.sequence.documents;
  const at::Tensor out = AttentionCore::forward(own_heads, whole);
  return redistribute(out, ranks(), heads, columns,
                      {x.size(0), length, out.size(2) * ranks().size()});
}

}  // namespace shoal::parallel
