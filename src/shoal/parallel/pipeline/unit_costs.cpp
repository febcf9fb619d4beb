#include "shoal/parallel/pipeline/unit_costs.h"

#include "shoal/plan/flops.h"

namespace shoal::parallel {

std::vector<double> unit_costs(const model::ModelSpec& spec, std::int64_t columns) {
  std::vector<double> costs;
  if (spec.family == model::Family::kMlp) {
    std::int64_t in = spec.inputs;
    std::vector<std::int64_t> widths = spec.widths;
    widths.push_back(spec.outputs);
    for (const std::int64_t out : widths) {
      costs.push_back(2 * static_cast<double>(in) * static_cast<double>(out));
      in = out;
    }
    return costs;
  }
  const plan::BlockFlops block = plan::block_forward_flops(spec, 1, static_cast<double>(columns));
  const double rows = static_cast<double>(columns) * static_cast<double>(spec.hidden);
  costs.push_back(2 * rows);
  // The causal half of attention's products.
  costs.insert(costs.end(), static_cast<std::size_t>(spec.layers), block.products + block.core / 2);
  costs.push_back(2 * rows * static_cast<double>(spec.vocab));
  return costs;
}

}  // namespace shoal::parallel
