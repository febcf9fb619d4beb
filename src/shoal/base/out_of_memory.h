#pragma once

#include <exception>
#include <optional>
#include <string>

namespace shoal {

/// What an exception says of memory that ran out where no arena counts: the words of LibTorch's own
/// allocator, without what stands around them; nothing of std::bad_alloc. Empty: it is about
/// something else.
std::optional<std::string> out_of_memory(const std::exception& error);

}  // namespace shoal
