#pragma once

#include "shoal/base/error.h"
#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Serializes an error, and reads it back. Long texts are cut, so that there are at most
/// `most_bytes` in all. Bytes that are no error become an Error(aborted) that says so.
Bytes encode(const Error& error, std::size_t most_bytes = std::size_t{1} << 20);
Error decode_error(std::span<const std::byte> bytes);

}  // namespace shoal::wire
