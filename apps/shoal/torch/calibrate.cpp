#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <barrier>

#include "apps/shoal/cores.h"
#include "apps/shoal/torch/entry.h"
#include "apps/shoal/torch/kernel_times.h"
#include "shoal/comm/world.h"
#include "shoal/ops/matmul.h"

namespace shoal::apps {
namespace {

using Together = std::function<void()>;

/// Products of the shapes that a block has: rows of tokens against a weight, as x W^T.
std::vector<TimedSample> products(at::ScalarType type, double seconds, const Together& together) {
  struct Shape {
    std::int64_t tokens, in, out;
  };
  std::vector<TimedSample> samples;
  for (const Shape& shape :
       {Shape{64, 64, 64}, Shape{128, 128, 384}, Shape{256, 384, 384}, Shape{512, 384, 1536},
        Shape{1024, 768, 768}, Shape{1024, 768, 3072}, Shape{2048, 768, 3072}}) {
    const at::Tensor x = at::ones({shape.tokens, shape.in}, type);
    const at::Tensor w = at::ones({shape.out, shape.in}, type);
    const at::Tensor out = at::empty({shape.tokens, shape.out}, x.options());
    const double time = median_s([&] { ops::matmul(out, x, w.t()); }, seconds, together);
    samples.push_back({2.0 * static_cast<double>(shape.tokens * shape.in * shape.out), time});
  }
  return samples;
}

std::vector<TimedSample> traversals(double seconds, const Together& together) {
  std::vector<TimedSample> samples;
  // The smallest for what an operation costs by itself, the others beyond every cache.
  for (const std::int64_t count : {1 << 10, 1 << 23, 1 << 24, 1 << 25}) {
    const at::Tensor a = at::ones({count});
    const at::Tensor b = at::ones({count});
    at::Tensor out = at::empty({count});
    const double time = median_s([&] { at::add_out(out, a, b); }, seconds, together);
    samples.push_back({12.0 * static_cast<double>(count), time});
  }
  return samples;
}

}  // namespace
}  // namespace shoal::apps

int shoal_calibrate_main(shoal::apps::CalibrateArguments* arguments) {
  using namespace shoal;
  using namespace shoal::apps;
  CalibrateArguments& a = *arguments;
  const double ranks_per_core = a.cores.empty()
                                    ? std::max(1.0, static_cast<double>(a.ranks * a.threads) /
                                                        cores_of_this_process().usable())
                                    : 1;
  // All ranks time the same case at the same time, so that they compete for memory as in training.
  std::barrier meeting(a.ranks);
  const Together together = [&] { meeting.arrive_and_wait(); };
  comm::WorldOptions options;
  options.size = a.ranks;
  // Ranks as threads over the arena: memory lies as it does in training.
  comm::run_on_threads(options, [&](const comm::Group& group) {
    const c10::AutoGradMode no_gradient(false);
    // Each thread is a rank: it keeps to its cores, and so do the threads that LibTorch starts for
    // it.
    if (!a.cores.empty()) keep_to(a.cores[static_cast<std::size_t>(group.rank())]);
    at::set_num_threads(a.threads);
    const KernelRounds rounds{a.seconds, a.rounds, ranks_per_core};
    if (a.drift_only) {
      const auto kernels = drift_kernel_times(group, rounds);
      if (group.rank() == 0) a.kernels = kernels;
      return;
    }
    // Every rank runs every case; of these three the numbers of rank 0 are kept.
    const auto f32 = products(at::kFloat, a.seconds, together);
    const auto bf16 =
        a.bf16 ? products(at::kBFloat16, a.seconds, together) : std::vector<TimedSample>{};
    const auto moved = traversals(a.seconds, together);
    const auto kernels = kernel_times(group, rounds, a.bf16);
    if (group.rank() == 0)
      a.products_f32 = f32, a.products_bf16 = bf16, a.traversals = moved, a.kernels = kernels;
  });
  return 0;
}
