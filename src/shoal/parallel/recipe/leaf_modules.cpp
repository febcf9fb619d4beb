#include "shoal/parallel/recipe/leaf_modules.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/error.h"

namespace shoal::parallel {
namespace {

ModuleKind kind_of(const std::string& path, const std::string& last) {
  if (path == "embedding.tokens") return ModuleKind::kEmbedding;
  if (path == "embedding.positions") return ModuleKind::kPositions;
  if (path == "head.output") return ModuleKind::kOutput;
  if (last == "query_norm" || last == "key_norm") return ModuleKind::kHeadNorm;
  return last == "norm" || last.starts_with("norm_") ? ModuleKind::kNorm : ModuleKind::kLinear;
}

/// Returns true for the router and the experts of a block: the axis ep divides them, and along tp
/// each rank has them for its own rows of the stream.
bool of_mixture(const std::string& name) {
  return name.find(".mlp.router.") != std::string::npos ||
         name.find(".mlp.experts.") != std::string::npos ||
         name.find(".mlp.shared") != std::string::npos;
}

}  // namespace

std::string LeafModule::last_name() const { return path.substr(path.rfind('.') + 1); }

std::vector<LeafModule> leaf_modules(const model::ModelSpec& spec) {
  if (spec.family != model::Family::kTransformer) {
    throw Error(ErrorKind::kConfig, "recipe",
                fmt::format("{}: tp divides transformers only", spec.name));
  }
  std::vector<LeafModule> list;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    if (of_mixture(name)) return;
    const std::size_t dot = name.rfind('.');
    const std::string path = name.substr(0, dot);
    if (list.empty() || list.back().path != path) {
      list.push_back({path, ModuleKind::kLinear, {}});
      list.back().kind = kind_of(path, list.back().last_name());
    }
    list.back().parameters[name.substr(dot + 1)] = shape;
  };
  const auto parameters = model::parameters(spec);
  for (const model::ParameterSpec& parameter : parameters) add(parameter.name, parameter.shape);
  // A tied weight is listed once, under its first name, which is not where the head runs.
  for (const model::ParameterSpec& parameter : parameters)
    for (const std::string& alias : parameter.aliases) add(alias, parameter.shape);
  return list;
}

}  // namespace shoal::parallel
