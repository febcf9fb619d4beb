#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/model/model_spec.h"

namespace shoal::parallel {

/// The kinds of modules of a transformer, as far as a recipe must know them.
enum class ModuleKind : std::uint8_t {
  kEmbedding,  ///< tokens to rows of its table
  kPositions,  ///< adds a row a position to the stream
  kNorm,       ///< normalises rows of the stream
  kHeadNorm,   ///< normalises the queries, or the keys, of each head within attention
  kLinear,     ///< x weight^T + bias
  kOutput,     ///< logits, or their loss
};

/// A module that has parameters of its own.
struct LeafModule {
  std::string path;
  ModuleKind kind = ModuleKind::kLinear;
  std::map<std::string, std::vector<std::int64_t>> parameters;  ///< shapes by local name

  /// The last part of the path: "qkv".
  std::string last_name() const;
};

/// Lists them in the order in which they run, a tied output layer at its own place. The names are
/// those of nn::make_model; here no model is built. Routers and experts are left out, as tp does
/// not divide them. Throws Error(config) unless `spec` is a transformer.
std::vector<LeafModule> leaf_modules(const model::ModelSpec& spec);

}  // namespace shoal::parallel
