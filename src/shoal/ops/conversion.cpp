#include "shoal/ops/conversion.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "shoal/comm/group.h"
#include "shoal/ops/narrow_kernels.h"

namespace shoal::ops {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements a thread takes at least

char* at_element(void* data, std::int64_t element, ElementType type) {
  return static_cast<char*>(data) + element * static_cast<std::int64_t>(size_of(type));
}

}  // namespace

bool is_narrow(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

at::Tensor converted(const at::Tensor& x, at::ScalarType type) {
  if (!x.defined() || x.scalar_type() == type) return x;
  const bool narrows = x.scalar_type() == at::kFloat && is_narrow(type);
  const bool widens = is_narrow(x.scalar_type()) && type == at::kFloat;
  // Only float and 16 bits have kernels here; they round to nearest even, and a NaN stays one.
  if (!x.device().is_cpu() || !(narrows || widens)) return x.detach().to(type);
  const at::Tensor from = x.detach().contiguous();
  const at::Tensor to = at::empty(x.sizes(), x.options().dtype(type).requires_grad(false));
  const ElementType before = comm::element_type(x.scalar_type());
  const ElementType after = comm::element_type(type);
  void* source = const_cast<void*>(from.const_data_ptr());
  void* out = to.mutable_data_ptr();  // NOLINT: only read
  // Element by element: how threads share the work changes no bit.
  at::parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    const void* part = at_element(source, begin, before);
    void* place = at_element(out, begin, after);
    narrows ? kernels::narrow(after, static_cast<const float*>(part), count, place)
            : kernels::widen(before, part, count, static_cast<float*>(place));
  });
  return to;
}

at::Tensor factor(const at::Tensor& x, at::ScalarType type) {
  // Sums stay fp32 whatever the type of the factors; only the factors are rounded.
  return x.scalar_type() == at::kFloat && is_narrow(type) ? converted(x, type) : x;
}

at::Tensor summand(const at::Tensor& parameter, const at::Tensor& x) {
  if (!parameter.defined() || !is_narrow(parameter.scalar_type()) || x.scalar_type() != at::kFloat)
    return parameter;
  return converted(parameter, at::kFloat);
}

}  // namespace shoal::ops
