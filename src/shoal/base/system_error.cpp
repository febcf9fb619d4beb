#include "shoal/base/system_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace shoal {

Error system_error(ErrorKind kind, const std::string& operation, const std::string& what) {
  // Taken first: formatting and allocation below may change errno.
  const int code = errno;
  return Error(kind, operation, fmt::format("{}: {} (errno {})", what, std::strerror(code), code));
}

}  // namespace shoal
