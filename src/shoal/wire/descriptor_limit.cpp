#include "shoal/wire/descriptor_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "shoal/base/system_error.h"

namespace shoal::wire {
namespace {

std::uint64_t limit_now() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<std::uint64_t>::max();
  return limit.rlim_cur;
}

}  // namespace

std::uint64_t allow_descriptors_for(std::uint64_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return limit_now();
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, connections + kOtherDescriptors);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    // If that fails, the old limit holds.
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit_now();
}

bool lacks_descriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Error no_descriptors(const std::string& operation, const std::string& what, int error) {
  if (error == EMFILE) {
    return Error(ErrorKind::kResource, operation,
                 fmt::format("{}: this process has as many open descriptors as it may have, {}",
                             what, limit_now()))
        .hint(
            "raise the limit (ulimit -n), or have fewer connections to each rank "
            "(parallelism.rails, SHOAL_RAILS)");
  }
  errno = error;
  return system_error(ErrorKind::kResource, operation, what)
      .hint(
          "this host has no descriptors or no memory left for sockets: end other programs, or "
          "raise fs.file-max");
}

}  // namespace shoal::wire
