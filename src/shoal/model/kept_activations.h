#pragma once

#include <cstdint>
#include <vector>

#include "shoal/model/model_spec.h"

namespace shoal::model {

// What Shoal's own blocks keep from forward to backward, tensor by tensor as the operators save it.
// `memory` (memory.h) describes systems in general.

/// How much of a block stays for its backward pass; what does not is computed again there (Chen et
/// al., "Training deep nets with sublinear memory cost", 2016; Korthikanti et al., 2022).
/// kProducts: results of matrix products stay; norms, activations, dropout and attention run twice.
enum class Keep { kEverything, kProducts, kInput };

/// What a rank runs at once.
struct MicroBatch {
  std::int64_t samples = 1;
  std::int64_t columns = 1;  ///< tokens of a sample; 1 for rows of a table
  double element_bytes = 4;  ///< of an activation
  double product_bytes = 4;  ///< of an activation that was multiplied by a weight: 2 where weights
                             ///< have 16 bits, which it was rounded to

  double rows() const { return static_cast<double>(samples) * static_cast<double>(columns); }
};

/// One block under one way, for one micro-batch.
struct BlockCost {
  double kept = 0;     ///< bytes from forward to backward
  double rebuilt = 0;  ///< bytes more while its backward pass runs
  double flops = 0;    ///< computed a second time
};

/// The blocks of a model that can be recomputed: a transformer's, an MLP's layers but the last.
std::int64_t block_count(const ModelSpec& spec);
BlockCost block_cost(const ModelSpec& spec, const MicroBatch& batch, std::int64_t block, Keep keep);

/// Which blocks are recomputed.
struct RecomputePolicy {
  enum class Mode { kNone, kFull, kEveryK, kSelective, kBudget } mode = Mode::kNone;
  std::int64_t every = 2;   ///< kEveryK: blocks k, 2k, 3k ... keep their input alone
  double budget_bytes = 0;  ///< kBudget: for blocks_bytes
};

/// The way of each block. kBudget: the ways that compute least twice among those that fit. Throws
/// Error(config) when none does, naming the least.
std::vector<Keep> kept_by_block(const ModelSpec& spec, const MicroBatch& batch,
                                const RecomputePolicy& policy);

/// Bytes of all blocks together at the worst moment of a backward pass, which gives back what a
/// block keeps when it is through with it: what a block and those before it keep, and what it
/// rebuilds.
double blocks_bytes(const ModelSpec& spec, const MicroBatch& batch, const std::vector<Keep>& ways);

}  // namespace shoal::model
