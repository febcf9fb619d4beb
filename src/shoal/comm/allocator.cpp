#include "shoal/comm/allocator.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <cstring>
#include <mutex>

#include "shoal/base/check.h"

namespace shoal::comm {
namespace {

class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(wire::Arena& arena) : arena_(arena) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    void* p = bytes == 0 ? nullptr : arena_.allocate(bytes);
    // Data and context are one pointer: raw_allocate insists on it.
    return {p, p, raw_deleter(), c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  wire::Arena& arena_;
};

/// The one process-wide allocator (docs/architecture.md, contracts). Never destroyed: tensors of
/// static lifetime are freed after everything else.
struct Installed {
  std::mutex mutex;
  std::shared_ptr<wire::Arena> arena;
  std::unique_ptr<ArenaAllocator> allocator;
};
Installed& installed() {
  static auto* state = new Installed;
  return *state;
}

// raw_deallocate uses the allocator that is current when memory is freed, so blocks that are older
// than the arena come here too; Arena::free tells them apart.
void free_block(void* p) { installed().arena->free(p); }
void enter_child() { installed().arena->enter_child(); }

c10::DeleterFnPtr ArenaAllocator::raw_deleter() const { return &free_block; }

}  // namespace

void install_arena(const std::shared_ptr<wire::Arena>& arena) {
  Installed& state = installed();
  const std::lock_guard lock(state.mutex);
  if (state.arena == arena) return;
  SHOAL_USER_CHECK(!state.arena, "install_arena", "another arena is LibTorch's allocator already");
  state.arena = arena;
  state.allocator = std::make_unique<ArenaAllocator>(*arena);
  pthread_atfork(nullptr, nullptr, &enter_child);
  constexpr std::uint8_t kPriority = 100;
  c10::SetCPUAllocator(state.allocator.get(), kPriority);
}

std::shared_ptr<wire::Arena> installed_arena() {
  Installed& state = installed();
  const std::lock_guard lock(state.mutex);
  return state.arena;
}

std::shared_ptr<wire::Arena> ensure_arena(std::size_t limit_bytes, int ranks_on_host) {
  if (auto arena = installed_arena()) return arena;
  auto arena = std::make_shared<wire::Arena>(
      wire::Arena::Options{.limit_bytes = limit_bytes, .ranks_on_host = ranks_on_host});
  install_arena(arena);
  return arena;
}

void retag(const at::Tensor& tensor, MemoryCategory from, MemoryCategory to) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  // Its deleter tells a block of the arena from views of other memory, which may lie within a
  // block.
  if (data.get() != nullptr && data.get_deleter() == &free_block)
    installed().arena->retag(data.get(), from, to);
}

}  // namespace shoal::comm
