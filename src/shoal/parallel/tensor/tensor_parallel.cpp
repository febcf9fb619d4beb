#include "shoal/parallel/tensor/tensor_parallel.h"

#include <fmt/format.h>

#include "shoal/base/check.h"
#include "shoal/nn/transformer.h"
#include "shoal/parallel/model_parts.h"
#include "shoal/parallel/recipe/check.h"
#include "shoal/parallel/tensor/gathered_norm.h"
#include "shoal/parallel/tensor/moved_linear.h"
#include "shoal/parallel/tensor/own_rows.h"
#include "shoal/parallel/tensor/row_linear.h"
#include "shoal/parallel/tensor/shared_heads.h"
#include "shoal/parallel/tensor/stream_router.h"
#include "shoal/parallel/tensor/vocabulary.h"

namespace shoal::parallel {
namespace {

using mesh::Axis;

class Splitter {
 public:
  Splitter(nn::Model& model, const mesh::Mesh& mesh)
      : model_(model),
        spec_(model.spec()),
        mesh_(mesh),
        ranks_(mesh.along(Axis::kTensor)),
        tp_(mesh.extent(Axis::kTensor)) {}

  void run(const Recipe& recipe) {
    const std::vector<PlacedModule> modules = check_recipe(recipe, spec_, tp_);
    // Every rank takes part, whether a recipe lets ranks share heads or not.
    if (tp_ > spec_.kv_heads && tp_ % spec_.kv_heads == 0)
      sharers_ = ranks_.split(ranks_.rank() / sharing(), ranks_.rank());
    for (const PlacedModule& one : modules) {
      cut_parameters(one);
      replace(one);
    }
    for (std::int64_t block = 0; block < spec_.layers; ++block)
      if (model::has_experts(spec_, block))
        route_stream(fmt::format("blocks.{}.mlp.router", block));
  }

 private:
  std::int64_t sharing() const { return tp_ / spec_.kv_heads; }

  template <class M>
  M& module(const std::string& path) const {
    return module_at<M>(model_, path, "tensor parallel");
  }

  void cut_parameters(const PlacedModule& one) {
    for (const auto& [name, placement] : one.parameters) {
      const auto parameter = model_.find_parameter(one.module.path + "." + name);
      SHOAL_USER_CHECK(parameter != nullptr, "tensor parallel", "the model has no {}.{}",
                       one.module.path, name);
      // A tied weight was cut with the embedding.
      if (parameter->layout().along(Axis::kTensor) == placement) continue;
      cut_parameter(*parameter, mesh_, Axis::kTensor, placement);
    }
  }

  /// Puts a module in the place of one that must meet other ranks, or leave rows to them.
  void replace(const PlacedModule& one) {
    const std::string& path = one.module.path;
    const bool cut = one.weight().kind == plan::Placement::Kind::kShard;
    switch (one.module.kind) {
      case ModuleKind::kEmbedding:
        return put(path, embedding(module<nn::Embedding>(path), cut));
      case ModuleKind::kOutput:
        return put(path, output(module<nn::Output>(path), cut));
      case ModuleKind::kNorm:
        if (one.output == Boundary::kReplicate)
          put(path, std::make_shared<GatheredNorm>(module<nn::Norm>(path), ranks_));
        return;
      case ModuleKind::kLinear:
        return replace_linear(one);
      case ModuleKind::kHeadNorm:
      case ModuleKind::kPositions:
        return;
    }
  }

  std::shared_ptr<nn::Module> embedding(const nn::Embedding& original, bool cut) const {
    if (cut) return std::make_shared<VocabularyEmbedding>(original, ranks_);
    return std::make_shared<OwnRowsEmbedding>(original);
  }

  std::shared_ptr<nn::Module> output(const nn::Output& original, bool cut) const {
    if (cut) return std::make_shared<VocabularyOutput>(original, ranks_);
    return std::make_shared<OwnRowsOutput>(original, ranks_);
  }

  void replace_linear(const PlacedModule& one) {
    const std::string& path = one.module.path;
    const auto& linear = module<nn::Linear>(path);
    const bool cut_rows = one.weight() == plan::Placement::shard(0);
    if (one.module.last_name() == "qkv" && cut_rows && tp_ > spec_.kv_heads) {
      const std::int64_t per_group = spec_.heads / spec_.kv_heads;
      put(path, std::make_shared<SharedHeads>(linear, sharers_, per_group, spec_.head_size));
      // The attention around it: "blocks.0.attention.qkv" without its end.
      return module<nn::Attention>(path.substr(0, path.rfind('.'))).share_groups(sharing());
    }
    const bool summed = one.computes == Boundary::kPartial && one.output == Boundary::kStream;
    if (summed && one.input == one.needs)
      return put(path, std::make_shared<RowLinear>(linear, ranks_));
    // Nothing moves: the layer as it is, with what is left of its weight.
    if (one.input == one.needs && one.computes == one.output) return;
    put(path, std::make_shared<MovedLinear>(linear, ranks_, one));
  }

  /// A mixture takes the rows of the stream as they are.
  void route_stream(const std::string& path) {
    put(path, std::make_shared<StreamRouter>(module<nn::Router>(path), ranks_));
  }

  void put(const std::string& path, std::shared_ptr<nn::Module> replacement) {
    model_.replace_module(path, std::move(replacement));
  }

  nn::Model& model_;
  const model::ModelSpec spec_;
  const mesh::Mesh& mesh_;
  comm::Group ranks_;
  comm::Group sharers_;  ///< the ranks that share this rank's key-value head
  int tp_;
};

}  // namespace

void split_tensors(nn::Model& model, const mesh::Mesh& mesh, const Recipe& recipe) {
  if (mesh.extent(Axis::kTensor) > 1) {
    Splitter(model, mesh).run(recipe);
    return;
  }
  SHOAL_USER_CHECK(recipe.empty(), "recipe",
                   "{}: divides along tp, and the mesh has one rank along it", recipe[0].module);
}

}  // namespace shoal::parallel
