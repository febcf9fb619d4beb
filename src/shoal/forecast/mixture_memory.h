#pragma once

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// When a backward pass computes the gradients of weights: with those of inputs, or later, until
/// when it holds the factors of their products.
enum class Weights { kNow, kLater };

/// Returns the bytes that the backward pass of a mixture of experts takes at its worst moment,
/// beside what its block keeps and the gradients of the residual stream. `in_place`: ranks with
/// other experts share memory, and copy rows from where they lie.
double mixture_backward(const ModelSpec& spec, const MicroBatch& batch, Keep keep, Weights weights,
                        bool in_place);

/// Returns the bytes of the factors of its products that only weights want: each product's input
/// and the gradient of its result.
double mixture_factors(const ModelSpec& spec, const MicroBatch& batch);

}  // namespace shoal::forecast
