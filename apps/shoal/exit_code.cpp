#include "apps/shoal/exit_code.h"

#include <new>

#include "shoal/base/error.h"

namespace shoal::apps {

Ending ending_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return {exit_code(known->kind()), known->what()};
  if (dynamic_cast<const std::bad_alloc*>(&error)) return {exit_code(ErrorKind::kResource), "out of memory"};
  // LibTorch appends its stack trace to the text.
  std::string text = error.what();
  for (const char* trace : {"\nException raised from", "\nframe #0"}) text = text.substr(0, text.find(trace));
  // LibTorch's own allocator, where the arena is off.
  if (const auto at = text.find("can't allocate memory"); at != std::string::npos)
    return {exit_code(ErrorKind::kResource), "out of memory: " + text.substr(at, text.find('\n', at) - at)};
  return {1, text};
}

}  // namespace shoal::apps
