// The sum of sparse tensors, and allocation of memory that other ranks read in place.
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/CPUAllocator.h>

#include "python/src/backend.h"
#include "shoal/base/check.h"
#include "shoal/comm/allocator.h"

namespace shoal::python {
namespace {

/// Returns {elements, dimensions that are sparse, sizes...} of a sparse tensor.
at::Tensor described(const at::Tensor& sparse) {
  std::vector<int64_t> numbers{sparse._nnz(), sparse.sparse_dim()};
  numbers.insert(numbers.end(), sparse.sizes().begin(), sparse.sizes().end());
  return at::tensor(numbers, at::kLong);
}

}  // namespace

at::Tensor ShoalBackend::allocateTensor(long size, at::TensorOptions options) {
  SHOAL_USER_CHECK(options.device().is_cpu(), "allocate_tensor",
                   "the shoal backend has memory of the CPU, not of {}",
                   c10::str(options.device()));
  return at::empty({size}, options);
}

// The arena lives as long as the process: nobody owns it.
std::shared_ptr<c10::Allocator> ShoalBackend::getMemAllocator() {
  return {std::shared_ptr<void>(), c10::GetAllocator(c10::kCPU)};
}

ShoalBackend::Works ShoalBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& options) {
  constexpr const char* kTitle = "all_reduce of sparse tensors";
  SHOAL_USER_CHECK(tensors.size() == 1 && tensors[0].is_sparse() && tensors[0].is_cpu(), kTitle,
                   "one sparse CPU tensor a rank");
  SHOAL_USER_CHECK(options.reduceOp == c10d::ReduceOp::SUM, kTitle, "sums only");
  SHOAL_USER_CHECK(!coalescing_, kTitle, "not with others in one call");
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensors[0].coalesce();
  c10d::AllgatherOptions blocking;
  blocking.timeout = options.timeout;
  blocking.asyncOp = false;
  // Gathers the tensor `mine` of every rank; `make(r)` allocates the memory for that of rank r.
  const auto gather = [&](const at::Tensor& mine, const std::function<at::Tensor(int)>& make) {
    std::vector<Tensors> of_all(1);
    for (int r = 0; r < size_; ++r) of_all[0].push_back(make(r));
    Tensors input{mine};
    allgather(of_all, input, blocking);
    return of_all[0];
  };
  // First the sizes: the ranks have different numbers of elements, for which memory is taken next.
  const at::Tensor shape = described(own);
  const Tensors shapes = gather(shape, [&](int) { return at::empty_like(shape); });
  for (int r = 0; r < size_; ++r)
    SHOAL_USER_CHECK(
        shapes[r].narrow(0, 1, shape.numel() - 1).equal(shape.narrow(0, 1, shape.numel() - 1)),
        kTitle, "the tensors of ranks {} and {} have different shapes", rank_, r);
  const auto elements = [&](int r) { return shapes[r][0].item<int64_t>(); };
  const at::Tensor values = own.values().contiguous();
  const at::Tensor indices = own.indices().contiguous();
  const Tensors all_indices = gather(indices, [&](int r) {
    return at::empty({indices.size(0), elements(r)}, indices.options());
  });
  const Tensors all_values = gather(values, [&](int r) {
    auto sizes = values.sizes().vec();
    sizes[0] = elements(r);
    return at::empty(sizes, values.options());
  });
  // Coalescing adds up what has the same index, in the order of ranks.
  const at::Tensor sum =
      at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), own.sizes())
          .coalesce();
  tensors[0].copy_(sum);
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(tensors));
  return c10d::Work::create_from_future(future);
}

}  // namespace shoal::python
