#include "apps/shoal/machine/measured_by.h"

#include <fmt/format.h>

#include "apps/shoal/cores.h"

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

std::string describe(const MeasuringRanks& by) {
  const std::string threads = fmt::format("{} thread{}", by.threads, by.threads == 1 ? "" : "s");
  if (by.ranks == 1) return "1 rank of " + threads;
  return fmt::format("one of {} ranks of {} at work", by.ranks, threads);
}

}  // namespace shoal::apps
