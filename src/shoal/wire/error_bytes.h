#pragma once

#include "shoal/base/error.h"
#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// An error as bytes, and back. What cannot be read becomes an Error(aborted) that says so.
Bytes encode(const Error& error);
Error decode_error(std::span<const std::byte> bytes);

}  // namespace shoal::wire
