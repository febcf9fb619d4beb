#include "shoal/ops/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>

#include <map>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/comm/group.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/narrow_kernels.h"

namespace shoal::ops {
namespace {

// An index outside the table would read foreign memory; the error names the token.
void check_range(const at::Tensor& index, std::int64_t rows) {
  const std::int64_t* values = index.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < index.numel(); ++i) {
    if (values[i] < 0 || values[i] >= rows) {
      throw Error(ErrorKind::kData, "embedding",
                  fmt::format("index {} at element {} lies outside a table of {} rows", values[i],
                              i, rows));
    }
  }
}

/// Adds `rows` to the 16-bit rows of `target` that `flat` names: those of one index are added up in
/// float32 and rounded once.
void add_narrow_rows(const at::Tensor& target, const at::Tensor& flat, const at::Tensor& rows) {
  if (!target.is_cpu()) {
    const at::Tensor sum = target.to(at::kFloat);
    sum.index_add_(0, flat, rows);
    target.copy_(sum);
    return;
  }
  const std::int64_t* index = flat.const_data_ptr<std::int64_t>();
  // A frequent token occurs hundreds of times in a batch. Adding each use in 16 bits would round
  // each time and lose most of them.
  std::map<std::int64_t, std::vector<std::int64_t>> uses;
  for (std::int64_t i = 0; i < flat.numel(); ++i) uses[index[i]].push_back(i);
  const ElementType type = comm::element_type(target.scalar_type());
  const std::int64_t width = target.size(1);
  const at::Tensor values = rows.contiguous();
  std::vector<float> sum(static_cast<std::size_t>(width));
  auto* table = static_cast<std::uint16_t*>(target.mutable_data_ptr());
  for (const auto& [row, places] : uses) {
    // Begins with what earlier uses or micro-batches have left there.
    kernels::widen(type, table + row * width, sum.size(), sum.data());
    for (const std::int64_t place : places) {
      for (std::int64_t j = 0; j < width; ++j)
        sum[j] += values.const_data_ptr<float>()[place * width + j];
    }
    kernels::narrow(type, sum.data(), sum.size(), table + row * width);
  }
}

}  // namespace

at::Tensor embedding(const at::Tensor& index, const Weight& weight) {
  const at::Tensor& table = weight.tensor;
  SHOAL_USER_CHECK(index.scalar_type() == at::kLong && table.dim() == 2, "embedding",
                   "needs int64 indices and a 2-D table");
  return differentiable("embedding", {table}, [&](const Wanted& wanted) {
    // Tokens stay with the host, which checks them and counts labels; a device gets a copy.
    const at::Tensor given = index.contiguous().view({-1});
    if (given.is_cpu()) check_range(given, table.size(0));
    const at::Tensor flat = given.to(table.device());
    auto shape = index.sizes().vec();
    shape.push_back(table.size(1));
    // Rows are looked up in the table's own type; only the rows that are used become fp32.
    const at::Tensor rows = at::index_select(table.detach(), 0, flat);
    Recorded recorded{
        {converted(rows, is_narrow(table.scalar_type()) ? at::kFloat : table.scalar_type())
             .view(shape)},
        {},
        {}};
    if (!wanted.any) return recorded;
    // Only its shape and type are needed in backward; it is memory that exists anyway.
    recorded.saved = {table};
    recorded.backward = [flat, sink = weight.sink](const Tensors& saved, const Tensors& gradients) {
      const at::Tensor rows = gradients[0].reshape({flat.size(0), saved[0].size(1)});
      return Tensors{deliver(sink, saved[0], [&](const at::Tensor& target, bool accumulate) {
        if (!accumulate) target.zero_();
        if (is_narrow(target.scalar_type())) {
          add_narrow_rows(target, flat, rows.to(at::kFloat));
        } else {
          target.index_add_(0, flat, rows.to(target.scalar_type()));
        }
      })};
    };
    return recorded;
  })[0];
}

}  // namespace shoal::ops
