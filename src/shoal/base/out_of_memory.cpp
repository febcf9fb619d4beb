#include "shoal/base/out_of_memory.h"

#include <new>

namespace shoal {

std::optional<std::string> out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "";
  // c10::Error is no bad_alloc, and this room cannot include it: LibTorch's allocators are known by
  // their text.
  const std::string text = error.what();
  auto at = text.find("can't allocate memory");
  if (at == std::string::npos) at = text.find("CUDA out of memory");
  if (at == std::string::npos) return std::nullopt;
  return text.substr(at, text.find('\n', at) - at);
}

}  // namespace shoal
