#include "shoal/optim/undo_log.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

#include "shoal/base/memory_category.h"

namespace shoal::optim {
namespace {

constexpr std::int64_t kBlockBytes = 1 << 20;  ///< copied by one thread at a time

/// Copies the bytes of a contiguous tensor to another one of the same size. LibTorch's copy_ would
/// count as a change of the parameter, which autograd refuses while a graph holds it.
void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  const auto bytes = static_cast<std::int64_t>(from.nbytes());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.data_ptr());
  const std::int64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kBlockBytes;
    std::memcpy(target + first, source + first, std::min(end * kBlockBytes, bytes) - first);
  });
}

}  // namespace

UndoLog::UndoLog(Optimizer& optimizer) : optimizer_(optimizer) {
  for (std::size_t i = 0; i < optimizer.slices().size(); ++i) {
    const at::Tensor& parameter = optimizer.slices()[i].parameter;
    add(parameter);
    // A parameter in float32 is its own master.
    const at::Tensor& master = optimizer.master(i);
    if (master.defined() && master.const_data_ptr() != parameter.const_data_ptr()) add(master);
  }
  for (const State& state : optimizer.states()) add(state.tensor);
}

void UndoLog::add(const at::Tensor& original) {
  if (original.numel() == 0) return;
  const ScopedCategory category(MemoryCategory::kOptimizer);
  copies_.push_back({original, at::empty_like(original.detach())});
}

void UndoLog::record() {
  for (const Copy& copy : copies_) copy_bytes(copy.original, copy.kept);
  updates_ = optimizer_.updates();
}

void UndoLog::restore() {
  for (const Copy& copy : copies_) copy_bytes(copy.kept, copy.original);
  optimizer_.set_updates(updates_);
}

}  // namespace shoal::optim
