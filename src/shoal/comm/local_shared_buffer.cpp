#include "shoal/comm/local_shared_buffer.h"

#include <ATen/ops/zeros.h>

#include "shoal/base/check.h"

namespace shoal::comm {
namespace {

class LocalSharedBuffer final : public SharedBuffer {
 public:
  explicit LocalSharedBuffer(std::size_t bytes)
      : memory_(at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte)) {}

  std::size_t bytes() const override { return static_cast<std::size_t>(memory_.numel()); }
  void* data() const override { return memory_.data_ptr(); }
  at::Tensor tensor(std::size_t offset_bytes, at::IntArrayRef shape,
                    at::ScalarType type) const override {
    std::size_t need = c10::elementSize(type);
    for (const std::int64_t d : shape) need *= static_cast<std::size_t>(d);
    SHOAL_USER_CHECK(
        offset_bytes % 64 == 0 && offset_bytes <= bytes() && need <= bytes() - offset_bytes,
        "shared_buffer", "{} bytes at offset {} of a buffer of {}", need, offset_bytes, bytes());
    const auto begin = static_cast<std::int64_t>(offset_bytes);
    return memory_.slice(0, begin, begin + static_cast<std::int64_t>(need)).view(type).view(shape);
  }
  void publish() override { ++epoch_; }
  void end_reading() override {}
  std::uint64_t epoch() const override { return epoch_; }

 private:
  at::Tensor memory_;
  std::uint64_t epoch_ = 0;
};

}  // namespace

std::shared_ptr<SharedBuffer> make_local_shared_buffer(std::size_t bytes) {
  return std::make_shared<LocalSharedBuffer>(bytes);
}

}  // namespace shoal::comm
