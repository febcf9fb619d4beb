#include "shoal/base/running_kernel.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>

namespace shoal {

std::string running_kernel() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  return boot;
}

std::uint64_t namespace_of_this_process(const char* kind) {
  struct stat status {};
  return stat(fmt::format("/proc/self/ns/{}", kind).c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace shoal
