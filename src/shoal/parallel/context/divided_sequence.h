#pragma once

#include <vector>

#include "shoal/comm/group.h"
#include "shoal/mesh/layout.h"
#include "shoal/nn/context.h"
#include "shoal/ops/key_ranges.h"

namespace shoal::parallel {

/// Returns true where the sequence of `context` is divided among context-parallel ranks. On a whole
/// sequence all of them compute the same, which is legal without gradients only: throws
/// Error(usage) where they are recorded.
bool check_divided(const nn::Context& context);

/// Returns the tokens that each rank holds of the sequence of `context`. Throws Error(usage) when
/// the positions of this rank are not its columns of `cut`.
std::vector<ops::TokenPlaces> places_of_ranks(const nn::Context& context, const comm::Group& ranks,
                                              mesh::Placement::Cut cut);

}  // namespace shoal::parallel
