#pragma once

#include <vector>

#include "shoal/model/kept_activations.h"
#include "shoal/nn/module.h"

namespace shoal::parallel {

/// Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", 2016):
/// block b of `model` keeps the activations that `keep[b]` names for its backward pass, and
/// computes the others again there. `keep` has one entry for each block that can be recomputed
/// (model::block_count), and is made by model::kept_by_block.
///
/// Gradients equal those of the plain model bit for bit, because all random numbers are functions
/// of the context. Pre- and post-forward hooks of a block run again in its second pass, where
/// Context::recomputing is true. The second pass and its backward pass are one node of the outer
/// graph, so gradients of parameters become ready in the order of the plain model. Passes that
/// record no gradients run as before.
void checkpoint_activations(nn::Model& model, const std::vector<model::Keep>& keep);

/// Computes `module(x)`, of which only the activations that `keep` names stay until backward.
/// `module` must outlive the backward pass.
at::Tensor recomputed(nn::Module& module, const at::Tensor& x, const nn::Context& context,
                      model::Keep keep);

}  // namespace shoal::parallel
