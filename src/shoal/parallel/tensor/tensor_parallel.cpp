#include "shoal/parallel/tensor/tensor_parallel.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>

#include "shoal/base/check.h"
#include "shoal/nn/transformer.h"
#include "shoal/parallel/model_parts.h"
#include "shoal/parallel/recipe/check.h"
#include "shoal/parallel/tensor/column_linear.h"
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
  Splitter(nn::Model& model, const mesh::Mesh& mesh, std::optional<double> seconds_per_byte)
      : model_(model),
        spec_(model.spec()),
        mesh_(mesh),
        ranks_(mesh.along(Axis::kTensor)),
        tp_(mesh.extent(Axis::kTensor)),
        seconds_per_byte_(seconds_per_byte) {}

  void run(const Recipe& recipe) {
    const std::vector<PlacedModule> modules = check_recipe(recipe, spec_, tp_);
    // Every rank takes part, whether a recipe lets ranks share heads or not.
    if (tp_ > spec_.kv_heads && tp_ % spec_.kv_heads == 0)
      sharers_ = ranks_.split(ranks_.rank() / sharing(), ranks_.rank());
    if (no_two_share_memory()) {
      links_ = seconds_per_byte_ ? RowLinks{ranks_, *seconds_per_byte_} : measured_links(ranks_);
      find_own_gathers(modules);
    }
    for (const PlacedModule& one : modules) {
      cut_parameters(one);
      replace(one);
    }
    for (std::int64_t block = 0; block < spec_.layers; ++block) {
      if (model::has_experts(spec_, block))
        route_stream(fmt::format("blocks.{}.mlp.router", block));
    }
  }

 private:
  std::int64_t sharing() const { return tp_ / spec_.kv_heads; }

  /// Collective, with one answer for all ranks.
  bool no_two_share_memory() const { return ranks_.sum(ranks_.on_host().size() - 1) == 0; }

  /// True for a column-parallel layer as it is in the default recipe, but for shared heads.
  bool multiplies_all_rows(const PlacedModule& one) const {
    const bool shares = one.module.last_name() == "qkv" && tp_ > spec_.kv_heads;
    return one.weight() == plan::Placement::shard(0) && one.input == one.needs &&
           one.needs == Boundary::kReplicate && one.computes == one.output && !shares;
  }

  /// Finds the norms whose readers all gather by themselves, so that the rows of others arrive
  /// while they multiply, and these readers.
  void find_own_gathers(const std::vector<PlacedModule>& modules) {
    for (const PlacedModule& norm : modules) {
      const std::string& path = norm.module.path;
      const bool first = path.ends_with(".norm_1");
      if (!first && !path.ends_with(".norm_2")) continue;
      const std::string block = path.substr(0, path.rfind('.'));
      std::vector<std::string> readers;
      bool all = norm.output == Boundary::kReplicate;
      for (const PlacedModule& one : modules) {
        const std::string& reader = one.module.path;
        const bool reads = first ? reader == block + ".attention.qkv"
                                 : reader == block + ".mlp.gate" || reader == block + ".mlp.up";
        if (!reads) continue;
        all = all && multiplies_all_rows(one);
        readers.push_back(reader);
      }
      if (!all || readers.empty()) continue;
      own_gathers_.insert(path);
      own_gathers_.insert(readers.begin(), readers.end());
    }
  }

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
        if (one.output == Boundary::kReplicate && !own_gathers_.contains(path))
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
      return put(path, std::make_shared<RowLinear>(linear, ranks_, links_));
    if (own_gathers_.contains(path))
      return put(path, std::make_shared<ColumnLinear>(linear, *links_));
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
  comm::Group sharers_;                ///< the ranks that share this rank's key-value head
  std::optional<RowLinks> links_;      ///< where no two of `ranks_` share memory
  std::set<std::string> own_gathers_;  ///< paths: see find_own_gathers
  int tp_;
  std::optional<double> seconds_per_byte_;
};

}  // namespace

void split_tensors(nn::Model& model, const mesh::Mesh& mesh, const Recipe& recipe,
                   std::optional<double> seconds_per_byte) {
  if (mesh.extent(Axis::kTensor) > 1) {
    Splitter(model, mesh, seconds_per_byte).run(recipe);
    return;
  }
  SHOAL_USER_CHECK(recipe.empty(), "recipe",
                   "{}: divides along tp, and the mesh has one rank along it", recipe[0].module);
}

}  // namespace shoal::parallel
