#pragma once

#include "shoal/model/kept_activations.h"

namespace shoal::model {

/// Bytes of the tensors that the mixture of experts of one block makes on one rank, as its
/// operators save them (nn/mixture.h). Rows that visit experts are `MicroBatch::expert_imbalance`
/// times those of evenly spread tokens on a rank that holds a part of the experts; a rank with all
/// experts has exactly that many, wherever they go.
struct MixtureTensors {
  MixtureTensors(const ModelSpec& spec, const MicroBatch& batch);

  double input;   ///< the norm's result, as the router takes it
  double copies;  ///< the same, rounded for shared experts with 16-bit weights
  double logits;
  double scores;   ///< with the choices, their gates, and the row of each choice
  double sent;     ///< rows of this rank's tokens, one for each choice
  double arrived;  ///< rows of this rank's experts, as their products take them
  double wide;     ///< results of the experts' first products
  double hidden;   ///< their activation, as the last product takes it
  double results;  ///< the experts' results, on their rank
  double shared_wide;
  double shared_hidden;
  double shared_result;
  bool travels;  ///< rows visit experts of other ranks

  /// Returns the bytes from the norm's result to the layer's that stay until backward.
  double everything() const {
    return input + copies + scores + arrived + wide + hidden + sent + shared_wide + shared_hidden;
  }
  /// Returns the bytes of the results of matmuls.
  double products() const { return logits + wide + results + shared_wide + shared_result; }
  /// Returns what a repeated pass makes where the results of matmuls were kept.
  double rebuilt() const {
    return input + copies + scores + arrived + hidden + shared_hidden + (travels ? sent : 0);
  }
};

/// Returns by how much the rows of a rank's experts may exceed those of evenly spread tokens: where
/// every token visits as many experts of that rank as it can, up to their capacity.
double worst_imbalance(const ModelSpec& spec, const MicroBatch& batch);

}  // namespace shoal::model
