#include "shoal/base/memory_category.h"

namespace shoal {

const char* name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kTemporary:
      return "temporary";
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kCommunication:
      return "communication";
  }
  return "unknown";
}

MemoryContext& memory_context() {
  thread_local MemoryContext context;
  return context;
}

}  // namespace shoal
