#pragma once

#include "shoal/base/error.h"
#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Serializes an error, and reads it back. Bytes that are no error become an Error(aborted) that
/// says so.
Bytes encode(const Error& error);
Error decode_error(std::span<const std::byte> bytes);

}  // namespace shoal::wire
