#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/shoal/torch/kernel_timer.h"
#include "shoal/nn/layers.h"

namespace shoal::apps {

/// Returns "_bf16" or nothing: the end of the name of a kernel with weights of this type.
std::string suffix_of(at::ScalarType type);

/// Returns as many tables [vocab, width] as fit, which a loss goes through in turn.
std::vector<std::unique_ptr<nn::Embedding>> loss_tables(WeightPlaces& places, std::int64_t width,
                                                        std::int64_t vocab, at::ScalarType type);

/// Adds what a mixture of experts runs on a rank: routing, and the products of several experts.
void time_mixtures(KernelTimer& timer, WeightPlaces& places,
                   const std::vector<at::ScalarType>& types);

/// Adds the kernels of model parallelism among all ranks of the timer's group, which are at least
/// two: exchanges of the tensor-parallel stream, of rows for experts and of messages, each after a
/// matmul, so that ranks meet as in a step; attention of context-parallel ranks; the loss of a
/// divided vocabulary. Collective.
void time_parallel_kernels(KernelTimer& timer, WeightPlaces& places,
                           const std::vector<at::ScalarType>& types);

}  // namespace shoal::apps
