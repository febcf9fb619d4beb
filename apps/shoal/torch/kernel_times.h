#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

/// What Shoal's own operators take in fp32, measured as a training step runs them: weights come from memory, activations from the operator before,
/// blocks from the arena. Works are those of plan::OperationCost, names its kernels: "product", "product.input", "product.weight", "norm",
/// "norm.backward", ... `seconds` a case; `together` is called between cases, so that all ranks measure the same at the same time.
std::map<std::string, std::vector<TimedSample>> kernel_times(double seconds, const std::function<void()>& together);

/// The median time of one call, after three that do not count.
double median_s(const std::function<void()>& call, double seconds, const std::function<void()>& together);

}  // namespace shoal::apps
