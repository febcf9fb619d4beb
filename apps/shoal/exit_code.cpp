#include "apps/shoal/exit_code.h"

#include "shoal/base/error.h"
#include "shoal/base/out_of_memory.h"

namespace shoal::apps {

Ending ending_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error))
    return {exit_code(known->kind()), known->what()};
  // Memory that ran out where no arena counts has the code of the arena's own error.
  if (const auto message = out_of_memory(error)) {
    return {exit_code(ErrorKind::kResource),
            "out of memory" + (message->empty() ? "" : ": " + *message)};
  }
  // LibTorch appends its stack trace to the text.
  std::string text = error.what();
  for (const char* trace : {"\nException raised from", "\nframe #0"})
    text = text.substr(0, text.find(trace));
  return {1, text};
}

}  // namespace shoal::apps
