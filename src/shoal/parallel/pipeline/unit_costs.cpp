#include "shoal/parallel/pipeline/unit_costs.h"

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
  const auto h = static_cast<double>(spec.hidden);
  const auto width = static_cast<double>(spec.heads * spec.head_size);
  const auto keys = static_cast<double>(spec.kv_heads * spec.head_size);
  const double products =
      2 * h * (2 * width + 2 * keys + static_cast<double>(spec.ffn) * (spec.gated ? 3 : 2));
  // Two products of which the causal half is computed.
  const double attention = 2 * static_cast<double>(columns) * width;
  costs.push_back(2 * h);
  costs.insert(costs.end(), static_cast<std::size_t>(spec.layers), products + attention);
  costs.push_back(2 * h * static_cast<double>(spec.vocab));
  return costs;
}

}  // namespace shoal::parallel
