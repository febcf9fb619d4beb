#pragma once

#include <string>

#include "shoal/base/error.h"

namespace shoal {

/// Describes an error of the operating system: `[operation] what: No space left on device (errno
/// 28)`. Reads errno, so it must be called at once.
Error system_error(ErrorKind kind, const std::string& operation, const std::string& what);

}  // namespace shoal
