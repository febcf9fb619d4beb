#include "shoal/ops/matmul.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

namespace shoal::ops {

void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::Tensor out = c;
    at::mm_out(out, a, b);
  }
}

}  // namespace shoal::ops
