#include "shoal/base/host_name.h"

#include <unistd.h>

namespace shoal {

std::string host_name() {
  char name[256] = {};
  // The last byte stays 0: a name that is too long is cut without one.
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace shoal
