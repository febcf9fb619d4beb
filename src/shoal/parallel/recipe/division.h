#pragma once

#include <cstdint>
#include <memory>

#include "shoal/model/tensor_division.h"
#include "shoal/parallel/recipe/rule.h"

namespace shoal::parallel {

/// Returns how `tp` ranks divide the tensors of a model by a recipe, whose rules stand in front of
/// the default ones: what check_recipe finds, in the form in which memory, traffic and time are
/// planned. Throws as check_recipe.
model::TensorDivision division_of(const Recipe& recipe, const model::ModelSpec& spec,
                                  std::int64_t tp);

/// The same; null where the recipe divides nothing otherwise than the default one. `own_samples`:
/// attention may run on a rank's own samples, which it does not where samples hold several
/// documents that may not see each other.
std::shared_ptr<const model::TensorDivision> unusual_division(const Recipe& recipe,
                                                              const model::ModelSpec& spec,
                                                              std::int64_t tp, bool own_samples);

}  // namespace shoal::parallel
