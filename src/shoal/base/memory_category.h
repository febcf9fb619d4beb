#pragma once

#include <cstdint>

namespace shoal {

/// What a block of memory is for; the ledger that explains an out-of-memory error is kept by it.
enum class MemoryCategory : std::uint8_t {
  kTemporary,
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kCommunication
};
inline constexpr int kMemoryCategories = 6;

const char* name(MemoryCategory category);

/// On whose behalf this thread allocates. The one thread-local of Shoal; only allocators read it.
struct MemoryContext {
  int rank = 0;
  MemoryCategory category = MemoryCategory::kTemporary;
};
MemoryContext& memory_context();

/// Tags every allocation of this thread until it goes out of scope.
class ScopedCategory {
 public:
  explicit ScopedCategory(MemoryCategory category) : before_(memory_context().category) {
    memory_context().category = category;
  }
  ~ScopedCategory() { memory_context().category = before_; }
  ScopedCategory(const ScopedCategory&) = delete;
  ScopedCategory& operator=(const ScopedCategory&) = delete;

 private:
  MemoryCategory before_;
};

}  // namespace shoal
