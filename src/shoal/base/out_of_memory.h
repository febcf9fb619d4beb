#pragma once

#include <exception>
#include <optional>
#include <string>

namespace shoal {

/// Recognises exceptions about memory that ran out where no arena counts. Returns the message of
/// LibTorch's own allocator without its stack trace, an empty text for std::bad_alloc, and nothing
/// for an exception about something else.
std::optional<std::string> out_of_memory(const std::exception& error);

}  // namespace shoal
