#pragma once

#include <string>

#include "shoal/base/error.h"

namespace shoal {

/// An error of the operating system in words: `[operation] what: No space left on device (errno
/// 28)`. Reads errno; call it at once.
Error system_error(ErrorKind kind, const std::string& operation, const std::string& what);

}  // namespace shoal
