#include "shoal/parallel/shard/unit_memory.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"

namespace shoal::parallel {

UnitMemory::UnitMemory(FlatUnit unit, comm::Group group, Options options)
    : unit_(std::move(unit)),
      group_(std::move(group)),
      options_(std::move(options)),
      gathered_(options_.resident) {
  SHOAL_CHECK(options_.resident || !options_.shared.defined(), "{}: shared memory is not released",
              unit_.name);
  if (unit_.type != at::kFloat) options_.transfer_type = unit_.type;
  const ScopedCategory category(MemoryCategory::kParameters);
  // Padding is zero, so that no uninitialised value is ever sent.
  full_ = options_.shared.defined() ? options_.shared : at::zeros({unit_.size()}, unit_.options());
  for (const FlatUnit::Member& member : unit_.members) {
    member.parameter->set_tensor(
        full_.narrow(0, member.offset, member.count).view(member.parameter->tensor().sizes()));
  }
  own_ = apart() ? at::zeros({unit_.shard}, unit_.options())
                 : full_.narrow(0, group_.rank() * unit_.shard, unit_.shard);
  // The parameters, and tensors that autograd saves, are views of this storage. They outlast its
  // memory and are valid again once the storage has memory.
  if (!options_.resident) resize(0);
}

/// Runs `body`. Errors that mean that ranks were not at the same unit get the unit's name.
template <class Body>
void UnitMemory::with_unit_name(Body&& body) const {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kTimeout && error.kind() != ErrorKind::kMismatch) throw;
    throw Error(error.kind(), "sharding",
                fmt::format("the parameters of {} were to be gathered, and: {}",
                            unit_.name.empty() ? "the model" : unit_.name, error.message()))
        .at(error.rank(), error.size())
        .from(error.peer())
        .in(error.sequence())
        .awaiting(error.awaited())
        .hint(
            "units are gathered together: a module that runs out of turn on one rank must do so on "
            "all. A unit around such modules "
            "(parallelism.shard_units) is gathered once for them, and with zero_stage = 2 nothing "
            "is");
  }
}

void UnitMemory::resize(std::size_t bytes) {
  c10::StorageImpl* const storage = full_.storage().unsafeGetStorageImpl();
  if (unit_.device.is_cpu()) return at::native::resize_bytes_cpu(storage, bytes);
  // LibTorch has the same for devices in headers that want their toolkit. Contents need not stay.
  storage->set_data_ptr_noswap(bytes > 0 ? c10::GetAllocator(unit_.device.type())->allocate(bytes)
                                         : c10::DataPtr(nullptr, unit_.device));
  storage->set_nbytes(bytes);
}

void UnitMemory::take() {
  if (gathered_) return;
  const ScopedCategory category(MemoryCategory::kParameters);
  c10::StorageImpl* const storage = full_.storage().unsafeGetStorageImpl();
  if (options_.slots) {
    slot_ = options_.slots->take(bytes());
    // The storage owns a reference to the slot: tensors over the unit may outlive this object.
    const auto free_slot = [](void* slot) { delete static_cast<HostSlots::Slot*>(slot); };
    storage->set_data_ptr_noswap(
        c10::DataPtr(slot_->data(), new HostSlots::Slot(slot_), free_slot, c10::Device(c10::kCPU)));
    storage->set_nbytes(bytes());
  } else {
    resize(bytes());
  }
  gathered_ = true;
}

void UnitMemory::gather() {
  if (gathered_) return;
  take();
  fetch();
}

void UnitMemory::fetch() {
  const comm::Options options{
      .async = true, .label = options_.label, .shared_output = options_.slots != nullptr};
  if (!rounds()) {
    with_unit_name([&] { work_ = group_.all_gather(full_, own_, options); });
    return;
  }
  const ScopedCategory category(MemoryCategory::kCommunication);
  if (options_.slots) {
    transfer_slot_ = options_.slots->take(static_cast<std::size_t>(unit_.size()) *
                                          c10::elementSize(options_.transfer_type));
    transfer_ = transfer_slot_->tensor(0, {unit_.size()}, options_.transfer_type);
  } else {
    transfer_ = at::empty({unit_.size()}, unit_.options().dtype(options_.transfer_type));
  }
  // The group keeps the rounded copy of `own_` until every rank has read it.
  with_unit_name(
      [&] { work_ = group_.all_gather(transfer_, own_.to(options_.transfer_type), options); });
}

/// Converts what arrived in the transfer type to the type of `full`. Ranks that share `full`
/// convert a part each.
void UnitMemory::widen() {
  if (!options_.slots) {
    full_.copy_(transfer_);
  } else {
    const std::int64_t ranks = options_.slots->ranks();
    const std::int64_t part = (unit_.size() + ranks - 1) / ranks;
    const std::int64_t begin = options_.slots->rank() * part;
    const std::int64_t size = std::max<std::int64_t>(0, std::min(part, unit_.size() - begin));
    if (size > 0) full_.narrow(0, begin, size).copy_(transfer_.narrow(0, begin, size));
    with_unit_name([&] { options_.slots->node_barrier(); });
  }
  transfer_ = at::Tensor();
  // All ranks of the host have read the slot: the barrier came after their copies.
  if (transfer_slot_) options_.slots->give_back(std::exchange(transfer_slot_, nullptr));
}

void UnitMemory::wait() {
  with_unit_name([&] { work_.order(); });
  work_ = {};
  if (transfer_.defined()) widen();
}

void UnitMemory::release() {
  if (options_.resident || !gathered_) return;
  // Peers write into the memory as long as the gather is in flight.
  wait();
  c10::StorageImpl* const storage = full_.storage().unsafeGetStorageImpl();
  if (slot_) {
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
    storage->set_nbytes(0);
    options_.slots->give_back(std::exchange(slot_, nullptr));
  } else {
    resize(0);
  }
  gathered_ = false;
}

void UnitMemory::keep_own() {
  // Before the first barrier some ranks may still write to `full`. Before the second some may still
  // read it, and the slot may serve the next unit.
  if (options_.slots) options_.slots->node_barrier();
  if (apart()) own_.copy_(full_.narrow(0, group_.rank() * unit_.shard, unit_.shard));
  if (options_.slots) options_.slots->node_barrier();
}

}  // namespace shoal::parallel
