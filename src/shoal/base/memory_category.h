#pragma once

#include <cstdint>

namespace shoal {

/// The purpose of a block of memory. The ledger that explains an out-of-memory error counts by it.
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

/// Says for which rank and purpose this thread allocates. Only allocators read it.
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
