#include "apps/shoal/other_load.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "shoal/base/duration.h"

namespace shoal::apps {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// Processor time of all processes since the machine started, without this one and its children
/// (proc(5), /proc/stat).
double others_s() {
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0;
  double nice = 0;
  double system = 0;
  double idle = 0;
  double waiting = 0;
  double interrupts = 0;
  double soft = 0;
  if (!(file >> word >> user >> nice >> system >> idle >> waiting >> interrupts >> soft)) return 0;
  // /proc/stat counts this process too. Only children that have ended are known: those that still
  // run count as others.
  double own = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    own += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return (user + nice + system + interrupts + soft) / static_cast<double>(::sysconf(_SC_CLK_TCK)) -
         own;
}

}  // namespace

OtherLoad::OtherLoad() : begin_(std::chrono::steady_clock::now()), others_s_(others_s()) {}

double OtherLoad::cores() const {
  const double passed = to_seconds(std::chrono::steady_clock::now() - begin_);
  return passed > 0 ? std::max(0.0, (others_s() - others_s_) / passed) : 0;
}

std::string disturbance(double others_cores) {
  if (others_cores <= kDisturbing) return "";
  return fmt::format(
      "Other processes kept {:.2g} cores busy meanwhile: measure again without them.\n",
      others_cores);
}

}  // namespace shoal::apps
