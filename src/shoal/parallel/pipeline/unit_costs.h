#pragma once

#include <cstdint>
#include <vector>

#include "shoal/model/model_spec.h"

namespace shoal::parallel {

/// Returns the FLOPs of each unit of a model (embedding, blocks, head; of a perceptron its layers)
/// for one sample of `columns` tokens, or one row, forward pass alone: the costs by which
/// balanced_stages divides them. The embedding counts as 2 FLOPs for each number that it looks up.
std::vector<double> unit_costs(const model::ModelSpec& spec, std::int64_t columns);

}  // namespace shoal::parallel
