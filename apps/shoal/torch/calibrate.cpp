#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>

#include "apps/shoal/torch/entry.h"

namespace shoal::apps {
namespace {

/// The median time of one call while all ranks make it; the ranks start each case together.
double median_s(const std::function<void()>& call, double seconds, std::barrier<>& together) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 3; ++i) call();
  together.arrive_and_wait();
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (times.size() < 5 || Clock::now() < end) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  together.arrive_and_wait();
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// Products of the shapes that a block has: rows of tokens against a weight, as x W^T.
void measure_products(at::ScalarType type, double seconds, std::barrier<>& together, std::vector<TimedSample>& into) {
  struct Shape {
    std::int64_t tokens, in, out;
  };
  for (const Shape& shape : {Shape{64, 64, 64}, Shape{128, 128, 384}, Shape{256, 384, 384}, Shape{512, 384, 1536}, Shape{1024, 768, 768},
                             Shape{1024, 768, 3072}, Shape{2048, 768, 3072}}) {
    const at::Tensor x = at::ones({shape.tokens, shape.in}, type), w = at::ones({shape.out, shape.in}, type);
    at::Tensor out = at::empty({shape.tokens, shape.out}, x.options());
    const double time = median_s([&] { at::mm_out(out, x, w.t()); }, seconds, together);
    into.push_back({2.0 * static_cast<double>(shape.tokens * shape.in * shape.out), time});
  }
}

void measure_traversals(double seconds, std::barrier<>& together, std::vector<TimedSample>& into) {
  // The smallest for what an operation costs by itself, the others beyond every cache.
  for (const std::int64_t count : {1 << 10, 1 << 23, 1 << 24, 1 << 25}) {
    const at::Tensor a = at::ones({count}), b = at::ones({count});
    at::Tensor out = at::empty({count});
    const double time = median_s([&] { at::add_out(out, a, b); }, seconds, together);
    into.push_back({12.0 * static_cast<double>(count), time});
  }
}

}  // namespace
}  // namespace shoal::apps

int shoal_calibrate_main(shoal::apps::CalibrateArguments* arguments) {
  using namespace shoal::apps;
  CalibrateArguments& a = *arguments;
  std::barrier together(a.ranks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < a.ranks; ++rank)
    ranks.emplace_back([&, rank] {
      const c10::AutoGradMode no_gradient(false);
      at::set_num_threads(a.threads);
      std::vector<TimedSample> f32, bf16, traversals;
      measure_products(at::kFloat, a.seconds, together, f32);
      if (a.bf16) measure_products(at::kBFloat16, a.seconds, together, bf16);
      measure_traversals(a.seconds, together, traversals);
      if (rank == 0) a.products_f32 = f32, a.products_bf16 = bf16, a.traversals = traversals;
    });
  for (std::thread& rank : ranks) rank.join();
  return 0;
}
