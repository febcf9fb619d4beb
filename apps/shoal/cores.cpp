#include "apps/shoal/cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/control_groups.h"
#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

std::vector<int> mask_of(pid_t process) {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(process, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

int Cores::usable() const {
  int count = std::max<int>(1, list.size());
  // Rounded up: a quota of 1.5 cores keeps two threads busy three quarters of the time.
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return count;
}

Cores cores_of_this_process() { return {mask_of(0), processor_quota(control_groups("cpu"))}; }

Cores cores_of_parent_process() { return {mask_of(::getppid())}; }

BoundCores bound_cores(const Cores& mine, const Cores& launcher, int local_world) {
  BoundCores bound{mine, local_world};
  // The launcher has bound this rank to a part of its own cores. How many ranks share the part
  // follows from its size, if parts are equal.
  if (mine.list.size() < launcher.list.size()) {
    bound.sharers =
        std::clamp(static_cast<int>(std::lround(static_cast<double>(local_world) *
                                                mine.list.size() / launcher.list.size())),
                   1, local_world);
  }
  // The quota is that of the control group, of all ranks of this host.
  bound.cores.quota = mine.quota * bound.sharers / local_world;
  return bound;
}

std::vector<std::int64_t> doublings(std::int64_t most) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

int threads_per_rank(const Cores& cores, int local_world, int asked) {
  return asked > 0 ? asked : std::max(1, cores.usable() / local_world);
}

std::vector<int> cores_of_rank(const Cores& cores, int local_rank, int local_world, int threads) {
  // Pinning two ranks to one core would be worse than no pinning.
  if (static_cast<std::size_t>(threads) * local_world > cores.list.size()) {
    throw Error(
        ErrorKind::kConfig, "job",
        fmt::format(
            "parallelism.pin_cores: {} ranks of {} threads need {} cores, and this process has {}",
            local_world, threads, threads * local_world, cores.list.size()))
        .hint("fewer ranks or threads, or pin_cores = false");
  }
  const auto first = cores.list.begin() + static_cast<std::ptrdiff_t>(local_rank) * threads;
  return {first, first + threads};
}

std::string crowding(const Cores& cores, std::int64_t ranks, std::int64_t threads_of_rank) {
  const std::int64_t threads = ranks * threads_of_rank;
  if (threads <= cores.usable()) return "";
  return fmt::format("With {} rank{} {} threads share {} core{}.\n", ranks, ranks == 1 ? "" : "s",
                     threads, cores.usable(), cores.usable() == 1 ? "" : "s");
}

void keep_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw system_error(ErrorKind::kConfig, "job",
                       "parallelism.pin_cores: cannot keep to its cores");
  }
}

}  // namespace shoal::apps
