#pragma once

#include <optional>

#include "shoal/mesh/mesh.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/recipe/rule.h"

namespace shoal::parallel {

/// Divides the modules of a transformer along the mesh axis tp as a recipe says: `recipe`, with
/// default_recipe() behind it. The residual stream is always divided, along samples or columns
/// (sequence parallelism). By default (Shoeybi et al., "Megatron-LM", 2019):
///
///   norm, gathered | qkv, gate, up: rows cut | attention on the rank's heads | out, down: columns
///   cut, summed into the stream | embedding and output: vocabulary cut
///
/// In blocks with experts, router and experts stay whole and take the rank's rows of the stream as
/// they are; the mesh axis ep divides them (place_experts). Everything else (norms, biases behind a
/// sum, learned positions) is replicated along tp, and its gradient is a sum over the ranks, as
/// Holders say; so is what a recipe replicates, which each rank applies to its own rows of the
/// stream. Initial weights are those of one rank, bit for bit. Forward passes with gradients need
/// Context::stream (cut_stream).
///
/// If no two ranks share memory, rows travel while products run. `seconds_per_byte` is then how
/// long a byte takes from one rank to another; it is measured unless it is given. It decides which
/// products are cut, and no bit of a result.
///
/// Must be called on the meta device and before anything hangs hooks on modules. Collective along
/// tp. Does nothing with tp = 1. Throws as check_recipe, before it changes anything.
void split_tensors(nn::Model& model, const mesh::Mesh& mesh, const Recipe& recipe = {},
                   std::optional<double> seconds_per_byte = {});

}  // namespace shoal::parallel
