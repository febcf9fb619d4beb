#include "apps/shoal/machine/measured_by.h"

#include <fmt/format.h>

#include "apps/shoal/cores.h"
#include "shoal/base/error.h"

namespace shoal::apps {

MeasuringRanks measured_by(int ranks, int threads, double seconds) {
  const Cores cores = cores_of_this_process();
  MeasuringRanks by{.ranks = ranks,
                    .threads = threads_per_rank(cores, ranks, threads),
                    .cores = {},
                    .seconds = seconds};
  // As in a job, nobody is pinned where there are fewer cores than threads.
  if (ranks * by.threads > static_cast<int>(cores.list.size())) return by;
  for (int rank = 0; rank < ranks; ++rank)
    by.cores.push_back(cores_of_rank(cores, rank, ranks, by.threads));
  return by;
}

int ranks_to_measure(const char* bench, const std::string& job, std::int64_t ranks, int asked) {
  if (asked > 0) return asked;
  if (ranks > kMostRanks) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("{} {}: it has {} ranks: say with --nproc how many of them this host "
                            "has",
                            bench, job, ranks));
  }
  return static_cast<int>(ranks);
}

std::string describe(const MeasuringRanks& by) {
  const std::string threads = fmt::format("{} thread{}", by.threads, by.threads == 1 ? "" : "s");
  if (by.ranks == 1) return "1 rank of " + threads;
  return fmt::format("one of {} ranks of {} at work", by.ranks, threads);
}

}  // namespace shoal::apps
