#pragma once

#include <vector>

#include "shoal/model/kept_activations.h"
#include "shoal/nn/module.h"

namespace shoal::parallel {

/// Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", 2016):
/// block b of `model` keeps for its backward pass what `ways[b]` says, and computes the rest again
/// there. One entry for each block that can be recomputed (model::block_count); made by
/// model::kept_by_block.
///
/// Gradients are those of the plain model, bit for bit: all random numbers are functions of the
/// context. Pre- and post-forward hooks of a block run again with its second pass, which says so in
/// Context::recomputing. The second pass and its backward pass are one node of the outer graph, so
/// gradients of parameters become ready in the order of the plain model. Applies to passes that
/// record gradients; others run as before.
void checkpoint_activations(nn::Model& model, const std::vector<model::Keep>& ways);

/// `module(x)`, of which `keep` stays until backward: what stands around a block. `module` must
/// outlive the backward pass.
at::Tensor recomputed(nn::Module& module, const at::Tensor& x, const nn::Context& context,
                      model::Keep keep);

}  // namespace shoal::parallel
