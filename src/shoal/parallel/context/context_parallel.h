#pragma once

#include "shoal/mesh/mesh.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace shoal::parallel {

/// Divides the sequences of a transformer along the mesh axis cp: attention, where columns meet, is
/// replaced by RingAttention or HeadExchange, and the routers of a mixture, whose capacity and
/// balance loss are of whole sequences, by ContextRouter; everything else works on the columns at
/// hand. Parameters are replicated along cp, and their gradients are sums over it, as Holders say.
/// Forward passes with gradients need inputs and a context made by cut_sequence with cut_of(way).
///
/// Must be called after split_tensors and before anything hangs hooks on modules. Does nothing with
/// cp = 1. Throws Error(config) for a model that is no transformer, and with kHeads unless tp x cp
/// divides the key-value heads.
void split_sequence(nn::Model& model, const mesh::Mesh& mesh, ContextMethod way);

}  // namespace shoal::parallel
