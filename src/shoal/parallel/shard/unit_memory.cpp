#include "shoal/parallel/shard/unit_memory.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"

namespace shoal::parallel {

UnitMemory::UnitMemory(FlatUnit unit, comm::Group group, Place place)
    : unit_(std::move(unit)),
      group_(std::move(group)),
      place_(std::move(place)),
      gathered_(place_.resident) {
  SHOAL_CHECK(place_.resident || !place_.shared.defined(), "{}: shared memory is not released",
              unit_.name);
  if (unit_.type != at::kFloat) place_.travels = unit_.type;
  const ScopedCategory category(MemoryCategory::kParameters);
  // Padding is zero, so that no value that nobody wrote is ever sent.
  full_ = place_.shared.defined() ? place_.shared : at::zeros({unit_.size()}, unit_.type);
  for (const FlatUnit::Member& member : unit_.members) {
    member.parameter->set_tensor(
        full_.narrow(0, member.offset, member.count).view(member.parameter->tensor().sizes()));
  }
  own_ = apart() ? at::zeros({unit_.shard}, unit_.type)
                 : full_.narrow(0, group_.rank() * unit_.shard, unit_.shard);
  if (!place_.resident) at::native::resize_bytes_cpu(full_.storage().unsafeGetStorageImpl(), 0);
}

/// Runs `body`; what says that ranks were not together gets the unit's name.
template <class Body>
void UnitMemory::named(Body&& body) const {
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

void UnitMemory::take() {
  if (gathered_) return;
  const ScopedCategory category(MemoryCategory::kParameters);
  c10::StorageImpl* const storage = full_.storage().unsafeGetStorageImpl();
  if (place_.slots) {
    slot_ = place_.slots->take(bytes());
    // Tensors over the unit that outlive this keep the slot.
    const auto forget = [](void* slot) { delete static_cast<HostSlots::Slot*>(slot); };
    storage->set_data_ptr_noswap(
        c10::DataPtr(slot_->data(), new HostSlots::Slot(slot_), forget, c10::Device(c10::kCPU)));
    storage->set_nbytes(bytes());
  } else {
    at::native::resize_bytes_cpu(storage, bytes());
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
      .async = true, .label = place_.label, .shared_output = place_.slots != nullptr};
  if (!rounds()) {
    named([&] { work_ = group_.all_gather(full_, own_, options); });
    return;
  }
  const ScopedCategory category(MemoryCategory::kCommunication);
  if (place_.slots) {
    way_slot_ = place_.slots->take(static_cast<std::size_t>(unit_.size()) *
                                   c10::elementSize(place_.travels));
    way_ = way_slot_->tensor(0, {unit_.size()}, place_.travels);
  } else {
    way_ = at::empty({unit_.size()}, place_.travels);
  }
  named([&] { work_ = group_.all_gather(way_, own_.to(place_.travels), options); });
}

/// What has come becomes what is computed with; the ranks of a host share the work where they share
/// the result.
void UnitMemory::widen() {
  if (!place_.slots) {
    full_.copy_(way_);
  } else {
    const std::int64_t ranks = place_.slots->ranks();
    const std::int64_t part = (unit_.size() + ranks - 1) / ranks;
    const std::int64_t begin = place_.slots->rank() * part;
    const std::int64_t size = std::max<std::int64_t>(0, std::min(part, unit_.size() - begin));
    if (size > 0) full_.narrow(0, begin, size).copy_(way_.narrow(0, begin, size));
    named([&] { place_.slots->meet(); });
  }
  way_ = at::Tensor();
  if (way_slot_) place_.slots->give_back(std::exchange(way_slot_, nullptr));
}

void UnitMemory::wait() {
  named([&] { work_.order(); });
  work_ = {};
  if (way_.defined()) widen();
}

void UnitMemory::release() {
  if (place_.resident || !gathered_) return;
  wait();
  c10::StorageImpl* const storage = full_.storage().unsafeGetStorageImpl();
  if (slot_) {
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
    storage->set_nbytes(0);
    place_.slots->give_back(std::exchange(slot_, nullptr));
  } else {
    at::native::resize_bytes_cpu(storage, 0);
  }
  gathered_ = false;
}

void UnitMemory::keep_own() {
  if (place_.slots) place_.slots->meet();
  if (apart()) own_.copy_(full_.narrow(0, group_.rank() * unit_.shard, unit_.shard));
  if (place_.slots) place_.slots->meet();
}

}  // namespace shoal::parallel
