#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <utility>
#include <vector>

#include "apps/shoal/torch/entry.h"
#include "apps/shoal/torch/measuring_ranks.h"
#include "shoal/base/duration.h"
#include "shoal/ops/matmul.h"
#include "shoal/train/machine_peak.h"

namespace shoal::apps {
namespace {

using forecast::ProductPass;
using forecast::ProductShape;

at::ScalarType scalar_of(ElementType type) {
  return type == ElementType::kBF16 ? at::kBFloat16 : at::kFloat;
}

/// Returns the time of one pass, as a linear layer runs it: factors of `type`, a result in float32.
double pass_s(const ProductShape& shape, ProductPass pass, at::ScalarType type, double seconds,
              const comm::Group& group) {
  const auto factor = [&](std::int64_t rows, std::int64_t columns) {
    return at::full({rows, columns}, 0.01, type);
  };
  const auto time = [&](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor result = at::empty({a.size(0), b.size(1)}, at::kFloat);
    return median_s(group, seconds, [&] { ops::matmul(result, a, b); });
  };
  switch (pass) {
    case ProductPass::kForward:
      return time(factor(shape.rows, shape.in), factor(shape.out, shape.in).t());
    case ProductPass::kInputGradient:
      return time(factor(shape.rows, shape.out), factor(shape.out, shape.in));
    case ProductPass::kWeightGradient:
      return time(factor(shape.rows, shape.out).t(), factor(shape.rows, shape.in));
  }
  return 0;
}

/// Rank 0 keeps its times.
void measure(ProductArguments& a, const comm::Group& group) {
  const bool keep = group.rank() == 0;
  for (const ElementType type : a.types) {
    for (const ProductShape& shape : a.shapes) {
      std::vector<double> times;
      for (const ProductPass pass : a.passes)
        times.push_back(pass_s(shape, pass, scalar_of(type), a.by.seconds, group));
      if (keep) a.seconds[type].push_back(std::move(times));
    }
    if (!a.peaks) continue;
    group.barrier();
    const double peak = train::measure_plain_flops(from_seconds(a.by.seconds), type);
    group.barrier();
    if (keep) a.peak_flops[type] = peak;
  }
}

}  // namespace
}  // namespace shoal::apps

int shoal_products_main(shoal::apps::ProductArguments* arguments) {
  using namespace shoal;
  using namespace shoal::apps;
  on_measuring_ranks(arguments->by, [&](const comm::Group& group) { measure(*arguments, group); });
  return 0;
}
