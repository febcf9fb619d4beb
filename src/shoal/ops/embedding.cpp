#include "shoal/ops/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"

namespace shoal::ops {
namespace {

void check_range(const at::Tensor& index, std::int64_t rows) {
  const std::int64_t* values = index.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < index.numel(); ++i) {
    if (values[i] < 0 || values[i] >= rows)
      throw Error(ErrorKind::kData, "embedding", fmt::format("index {} at element {} lies outside a table of {} rows", values[i], i, rows));
  }
}

}  // namespace

at::Tensor embedding(const at::Tensor& index, const Weight& weight) {
  const at::Tensor& table = weight.tensor;
  SHOAL_USER_CHECK(index.scalar_type() == at::kLong && table.dim() == 2, "embedding", "needs int64 indices and a 2-D table");
  return differentiable("embedding", {table}, [&](const Wanted& wanted) {
    const at::Tensor flat = index.contiguous().view({-1});
    if (flat.device().is_cpu()) check_range(flat, table.size(0));
    auto shape = index.sizes().vec();
    shape.push_back(table.size(1));
    const at::Tensor out = at::empty(shape, table.options());
    at::Tensor rows = out.view({-1, table.size(1)});
    at::index_select_out(rows, table, 0, flat);
    Recorded recorded{{out}, {}, {}};
    if (!wanted.any) return recorded;
    recorded.saved = {table};
    recorded.backward = [flat, sink = weight.sink](const Tensors& saved, const Tensors& gradients) {
      const at::Tensor rows = gradients[0].reshape({flat.size(0), -1});
      return Tensors{deliver(sink, saved[0], [&](const at::Tensor& target, bool accumulate) {
        if (!accumulate) target.zero_();
        target.index_add_(0, flat, rows);
      })};
    };
    return recorded;
  })[0];
}

}  // namespace shoal::ops
