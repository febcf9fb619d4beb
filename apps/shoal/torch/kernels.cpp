#include <algorithm>

#include "apps/shoal/cores.h"
#include "apps/shoal/torch/entry.h"
#include "apps/shoal/torch/kernel_times.h"
#include "apps/shoal/torch/measuring_ranks.h"

int shoal_kernels_main(shoal::apps::KernelArguments* arguments) {
  using namespace shoal;
  using namespace shoal::apps;
  KernelArguments& a = *arguments;
  const double ranks_per_core = a.by.cores.empty()
                                    ? std::max(1.0, static_cast<double>(a.by.ranks * a.by.threads) /
                                                        cores_of_this_process().usable())
                                    : 1;
  on_measuring_ranks(a.by, [&](const comm::Group& group) {
    const KernelRounds rounds{a.by.seconds, a.rounds, ranks_per_core};
    const TimedKernels kernels =
        a.drift_only ? drift_kernel_times(group, rounds) : kernel_times(group, rounds, a.bf16);
    if (group.rank() == 0) a.kernels = kernels;
  });
  return 0;
}
