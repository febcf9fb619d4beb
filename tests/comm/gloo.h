#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::comm {

/// PyTorch's Gloo on loopback, as rank `rank` of `size` that share `store`.
c10::intrusive_ptr<c10d::Backend> gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size);

/// Runs `body` on `ranks` threads, each with a group over Gloo whose calls have `timeout`. Rethrows
/// what the first of them threw.
void run_over_gloo(int ranks, Duration timeout, const std::function<void(const Group&)>& body);

}  // namespace shoal::comm
