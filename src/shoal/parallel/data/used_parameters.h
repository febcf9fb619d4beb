#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/ownership.h"

namespace shoal::parallel {

/// Returns those of `parameters` that are trained, in their order.
Parameters trained_among(const Parameters& parameters);

/// Returns for each parameter whether any rank of `group` has a gradient for it. If others have one
/// and this rank has none, its gradient becomes zero here. Collective.
std::vector<bool> agree_on_used(const Parameters& parameters, const comm::Group& group);

/// Throws Error(mismatch) naming the first parameter whose values differ between ranks. Collective.
void check_equal_parameters(const Parameters& parameters, const comm::Group& group);

}  // namespace shoal::parallel
