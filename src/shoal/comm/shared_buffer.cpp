#include "shoal/comm/shared_buffer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "shoal/base/check.h"

namespace shoal::comm {
namespace {

std::shared_ptr<std::byte> private_memory(std::size_t bytes) {
  const auto tensor =
      std::make_shared<at::Tensor>(at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte));
  return {tensor, static_cast<std::byte*>(tensor->data_ptr())};
}

}  // namespace

SharedBuffer::SharedBuffer(std::size_t bytes)
    : SharedBuffer(nullptr, private_memory(bytes), bytes) {}

at::Tensor SharedBuffer::tensor(std::size_t offset_bytes, at::IntArrayRef shape,
                                at::ScalarType type) const {
  std::size_t need = c10::elementSize(type);
  for (const std::int64_t d : shape) need *= static_cast<std::size_t>(d);
  SHOAL_USER_CHECK(
      offset_bytes % 64 == 0 && offset_bytes <= bytes_ && need <= bytes_ - offset_bytes,
      "shared_buffer", "{} bytes at offset {} of a buffer of {}", need, offset_bytes, bytes_);
  // The deleter holds the memory: tensors may outlive the buffer.
  return at::from_blob(
      memory_.get() + offset_bytes, shape, [memory = memory_](void*) {},
      at::TensorOptions().dtype(type));
}

void SharedBuffer::publish() {
  // One barrier is all that either side needs: what a rank has written before it is visible to
  // every rank after it, and what a rank has read before it was read before anybody writes.
  end_reading();
  ++epoch_;
}

void SharedBuffer::end_reading() {
  if (engine_) engine_->barrier();
}

}  // namespace shoal::comm
