#include "shoal/parallel/recipe/division.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "shoal/parallel/recipe/check.h"

namespace shoal::parallel {
namespace {

/// Returns the number of the block that a module is in; -1 outside blocks.
std::int64_t block_number(const std::string& path) {
  constexpr std::string_view kBlocks = "blocks.";
  return path.starts_with(kBlocks) ? std::stoll(path.substr(kBlocks.size())) : -1;
}

void place(const PlacedModule& one, model::BlockDivision& block) {
  const model::DividedLinear layer{one.input, one.needs, one.computes, one.output};
  const std::string last = one.module.last_name();
  if (last == "qkv") {
    block.qkv = layer;
    block.own_samples = one.own_samples;
  }
  if (last == "out") block.out = layer;
  if (last == "gate") block.gate = layer;
  if (last == "up") block.up = layer;
  if (last == "down") block.down = layer;
}

}  // namespace

model::TensorDivision division_of(const Recipe& recipe, const model::ModelSpec& spec,
                                  std::int64_t tp) {
  model::TensorDivision division;
  division.blocks.resize(static_cast<std::size_t>(spec.layers));
  for (const PlacedModule& one : check_recipe(recipe, spec, tp)) {
    const bool cut = one.weight().kind == Placement::Kind::kShard;
    if (one.module.kind == ModuleKind::kEmbedding) division.tokens_cut = cut;
    if (one.module.kind == ModuleKind::kOutput) division.output_cut = cut;
    const std::int64_t block = block_number(one.module.path);
    if (one.module.kind == ModuleKind::kLinear && block >= 0)
      place(one, division.blocks[static_cast<std::size_t>(block)]);
  }
  return division;
}

std::shared_ptr<const model::TensorDivision> unusual_division(const Recipe& recipe,
                                                              const model::ModelSpec& spec,
                                                              std::int64_t tp, bool own_samples) {
  if (recipe.empty() || tp == 1) return nullptr;
  model::TensorDivision division = division_of(recipe, spec, tp);
  const bool ends = division.tokens_cut && division.output_cut;
  if (ends && std::all_of(division.blocks.begin(), division.blocks.end(),
                          [](const auto& block) { return block == model::BlockDivision(); }))
    return nullptr;
  for (model::BlockDivision& block : division.blocks) block.own_samples &= own_samples;
  return std::make_shared<const model::TensorDivision>(std::move(division));
}

}  // namespace shoal::parallel
