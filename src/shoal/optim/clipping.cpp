#include "shoal/optim/clipping.h"

#include <ATen/Parallel.h>

#include "shoal/base/check.h"
#include "shoal/comm/group.h"
#include "shoal/optim/device_update.h"
#include "shoal/optim/stored_update.h"

namespace shoal::optim {
namespace {

constexpr std::int64_t kPiece =
    64 * kSumBlock;  // elements of one task; whole blocks, so that pieces sum as the whole does

double squares_of(const at::Tensor& tensor) {
  const ElementType type = comm::element_type(tensor.scalar_type());
  SHOAL_USER_CHECK(
      tensor.is_contiguous() &&
          (type == ElementType::kF32 || type == ElementType::kBF16 || type == ElementType::kF16),
      "clipping", "gradients must be contiguous tensors of float32, bfloat16 or float16");
  const Stored values{const_cast<void*>(tensor.const_data_ptr()), type};  // NOLINT: only read
  const std::int64_t count = tensor.numel();
  const std::int64_t pieces = (count + kPiece - 1) / kPiece;
  // Threads write one sum a piece, and the sums are added in order below: which thread took which
  // piece cannot change the result.
  std::vector<double> sums(pieces);
  at::parallel_for(0, pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      sums[i] = sum_of_squares(values.from(i * kPiece), std::min(kPiece, count - i * kPiece));
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

double sum_of_squares(at::ArrayRef<at::Tensor> tensors) {
  double total = 0;
  std::vector<at::Tensor> on_device;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.is_cpu()) {
      total += squares_of(tensor);
    } else {
      on_device.push_back(tensor);
    }
  }
  return total + device_sum_of_squares(on_device);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

}  // namespace shoal::optim
