#include "shoal/parallel/tensor/tensor_parallel.h"

#include <fmt/format.h>

#include "shoal/base/check.h"
#include "shoal/nn/transformer.h"
#include "shoal/parallel/tensor/gathered_norm.h"
#include "shoal/parallel/tensor/row_linear.h"
#include "shoal/parallel/tensor/shared_heads.h"
#include "shoal/parallel/tensor/stream_router.h"
#include "shoal/parallel/tensor/vocabulary.h"

namespace shoal::parallel {
namespace {

using mesh::Axis;
using mesh::Placement;

[[noreturn]] void reject(const std::string& module, std::int64_t tp, const std::string& rule) {
  throw Error(ErrorKind::kConfig, "tensor parallel",
              fmt::format("{}: tp = {} {}", module, tp, rule));
}

void require_divisor(const std::string& module, std::int64_t tp, const char* what,
                     std::int64_t count) {
  if (count % tp == 0) return;
  reject(module, tp,
         fmt::format("must divide {} = {}, as {} does", what, count,
                     plan::nearest_divisors(count, tp)));
}

class Splitter {
 public:
  Splitter(nn::Model& model, const mesh::Mesh& mesh)
      : model_(model),
        spec_(model.spec()),
        mesh_(mesh),
        ranks_(mesh.along(Axis::kTensor)),
        tp_(mesh.extent(Axis::kTensor)) {}

  void run() {
    check();
    if (tp_ > spec_.kv_heads) sharers_ = ranks_.split(ranks_.rank() / sharing(), ranks_.rank());
    replace_embedding();
    for (std::int64_t i = 0; i < spec_.layers; ++i) split_block(i);
    replace_norm("head.norm");
    const auto& output = module<nn::Output>("head.output");
    // A tied weight was cut with the embedding.
    if (!spec_.tied_embeddings) cut(*output.weight(), 0);
    model_.replace_module("head.output", std::make_shared<VocabularyOutput>(output, ranks_));
  }

 private:
  std::int64_t sharing() const { return tp_ / spec_.kv_heads; }

  void check() const {
    if (spec_.family != model::Family::kTransformer)
      reject(spec_.name, tp_, "divides transformers only");
    if (spec_.vocab < tp_) {
      reject("embedding.tokens", tp_,
             fmt::format("must be at most the vocabulary of {}", spec_.vocab));
    }
    if (spec_.layers == 0) return;
    require_divisor("blocks.*.attention", tp_, "heads", spec_.heads);
    // Experts are not cut: each tensor rank routes its own rows of the stream.
    if (spec_.experts == 0 || spec_.dense_layers > 0) {
      require_divisor("blocks.*.mlp", tp_, spec_.experts > 0 ? "dense_ffn" : "ffn",
                      model::dense_width(spec_));
    }
    if (spec_.kv_heads % tp_ == 0) return;
    if (tp_ % spec_.kv_heads != 0) {
      reject("blocks.*.attention", tp_,
             fmt::format("must divide kv_heads = {} or be a multiple of them", spec_.kv_heads));
    }
    const std::int64_t group = (spec_.heads / spec_.kv_heads + 2) * spec_.head_size;
    if (group % sharing() != 0) {
      reject("blocks.*.attention.qkv", tp_,
             fmt::format("lets {} ranks share a key-value head, whose {} rows they do not divide",
                         sharing(), group));
    }
  }

  /// The module at `path` as an M, as Transformer builds it.
  template <class M>
  M& module(const std::string& path) {
    auto* found = dynamic_cast<M*>(model_.find_module(path));
    SHOAL_USER_CHECK(found != nullptr && found->plain(), "tensor parallel",
                     "{} is not what a transformer has there, or has hooks already", path);
    return *found;
  }

  void cut(nn::Parameter& parameter, int dim) {
    mesh::Layout layout = parameter.layout();
    layout.set(Axis::kTensor, Placement::shard(dim));
    const auto boxes =
        mesh::local_boxes(parameter.global_shape(), layout, mesh_.degrees(), mesh_.rank());
    parameter.set_layout(std::move(layout), boxes.at(0));
  }

  void cut_rows(const std::string& path) {
    const auto& linear = module<nn::Linear>(path);
    cut(*linear.weight(), 0);
    if (linear.bias()) cut(*linear.bias(), 0);
  }

  void replace_norm(const std::string& path) {
    model_.replace_module(path, std::make_shared<GatheredNorm>(module<nn::Norm>(path), ranks_));
  }

  void replace_rows(const std::string& path) {
    const auto& linear = module<nn::Linear>(path);
    cut(*linear.weight(), 1);
    model_.replace_module(path, std::make_shared<RowLinear>(linear, ranks_));
  }

  void replace_embedding() {
    const auto& tokens = module<nn::Embedding>("embedding.tokens");
    cut(*tokens.weight(), 0);
    model_.replace_module("embedding.tokens",
                          std::make_shared<VocabularyEmbedding>(tokens, ranks_));
  }

  void split_block(std::int64_t index) {
    const std::string block = fmt::format("blocks.{}", index);
    replace_norm(block + ".norm_1");
    cut_rows(block + ".attention.qkv");
    if (tp_ > spec_.kv_heads) share_heads(block + ".attention");
    replace_rows(block + ".attention.out");
    if (model::has_experts(spec_, index)) {
      // The mixture takes the rows of the stream as they are, and so norm_2 gathers nothing.
      const auto& router = module<nn::Router>(block + ".mlp.router");
      model_.replace_module(block + ".mlp.router", std::make_shared<StreamRouter>(router, ranks_));
      return;
    }
    replace_norm(block + ".norm_2");
    if (spec_.gated) cut_rows(block + ".mlp.gate");
    cut_rows(block + ".mlp.up");
    replace_rows(block + ".mlp.down");
  }

  void share_heads(const std::string& attention) {
    const auto& qkv = module<nn::Linear>(attention + ".qkv");
    model_.replace_module(attention + ".qkv",
                          std::make_shared<SharedHeads>(qkv, sharers_, spec_.heads / spec_.kv_heads,
                                                        spec_.head_size));
    module<nn::Attention>(attention).share_groups(sharing());
  }

  nn::Model& model_;
  const model::ModelSpec spec_;
  const mesh::Mesh& mesh_;
  comm::Group ranks_;
  comm::Group sharers_;  ///< the ranks that share this rank's key-value head
  int tp_;
};

}  // namespace

void split_tensors(nn::Model& model, const mesh::Mesh& mesh) {
  if (mesh.extent(Axis::kTensor) > 1) Splitter(model, mesh).run();
}

}  // namespace shoal::parallel
