#include "shoal/parallel/shard/unit_memory.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"

namespace shoal::parallel {

UnitMemory::UnitMemory(FlatUnit unit, comm::Group group, const at::Tensor& shared, bool resident)
    : unit_(std::move(unit)), group_(std::move(group)), resident_(resident), gathered_(resident) {
  SHOAL_CHECK(resident || !shared.defined(), "{}: shared memory is not released", unit_.name);
  const ScopedCategory category(MemoryCategory::kParameters);
  // Padding is zero, so that no value that nobody wrote is ever sent.
  full_ = shared.defined() ? shared : at::zeros({unit_.size()}, unit_.type);
  for (const FlatUnit::Member& member : unit_.members)
    member.parameter->set_tensor(full_.narrow(0, member.offset, member.count).view(member.parameter->tensor().sizes()));
  if (resident_) {
    own_ = full_.narrow(0, group_.rank() * unit_.shard, unit_.shard);
  } else {
    own_ = at::zeros({unit_.shard}, unit_.type);
    at::native::resize_bytes_cpu(full_.storage().unsafeGetStorageImpl(), 0);
  }
}

void UnitMemory::take() {
  if (gathered_) return;
  const ScopedCategory category(MemoryCategory::kParameters);
  at::native::resize_bytes_cpu(full_.storage().unsafeGetStorageImpl(), static_cast<std::size_t>(unit_.size()) * c10::elementSize(unit_.type));
  gathered_ = true;
}

void UnitMemory::gather() {
  if (gathered_) return;
  take();
  work_ = group_.all_gather(full_, own_, {.async = true});
}

void UnitMemory::wait() {
  work_.order();
  work_ = {};
}

void UnitMemory::release() {
  if (resident_ || !gathered_) return;
  wait();
  at::native::resize_bytes_cpu(full_.storage().unsafeGetStorageImpl(), 0);
  gathered_ = false;
}

void UnitMemory::exchange() { group_.all_gather(full_, own_).order(); }

void UnitMemory::keep_own() {
  if (!resident_) own_.copy_(full_.narrow(0, group_.rank() * unit_.shard, unit_.shard));
}

}  // namespace shoal::parallel
