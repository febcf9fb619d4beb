#pragma once

#include <cstdint>
#include <vector>

#include "shoal/model/model_spec.h"

namespace shoal::parallel {

/// Returns the FLOPs of each unit of a model (embedding, blocks, head; of a perceptron its layers)
/// for one token or row in samples of `columns`, forward pass alone: the costs by which
/// balanced_stages divides them. A product counts 2 FLOPs a weight; lookups and norms count as
/// their weights.
std::vector<double> unit_costs(const model::ModelSpec& spec, std::int64_t columns);

}  // namespace shoal::parallel
