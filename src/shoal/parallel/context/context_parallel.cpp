#include "shoal/parallel/context/context_parallel.h"

#include <fmt/format.h>

#include "shoal/nn/transformer.h"
#include "shoal/parallel/context/head_exchange.h"
#include "shoal/parallel/context/ring_attention.h"
#include "shoal/parallel/model_parts.h"
#include "shoal/plan/division_rules.h"

namespace shoal::parallel {
namespace {

using mesh::Axis;

void require_rule(const model::ModelSpec& spec, const mesh::Mesh& mesh, const std::string& broken) {
  if (broken.empty()) return;
  throw Error(ErrorKind::kConfig, "context parallel",
              fmt::format("{}: cp = {}: {}", spec.name, mesh.extent(Axis::kContext), broken));
}

}  // namespace

void split_sequence(nn::Model& model, const mesh::Mesh& mesh, ContextWay way) {
  if (mesh.extent(Axis::kContext) == 1) return;
  const model::ModelSpec& spec = model.spec();
  if (spec.family != model::Family::kTransformer) {
    throw Error(ErrorKind::kConfig, "context parallel",
                fmt::format("{}: cp = {} divides sequences, and so transformers only", spec.name,
                            mesh.extent(Axis::kContext)));
  }
  require_rule(spec, mesh, plan::whole_sequences_rule(spec, mesh.extent(Axis::kContext)));
  if (way == ContextWay::kHeads)
    require_rule(spec, mesh, plan::whole_heads_rule(spec, mesh.degrees()));
  const comm::Group& ranks = mesh.along(Axis::kContext);
  const mesh::Placement::Cut cut = cut_of(way);
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::string path = fmt::format("blocks.{}.attention.core", i);
    const auto& core = module_at<nn::AttentionCore>(model, path, "context parallel");
    if (way == ContextWay::kRing) {
      model.replace_module(path, std::make_shared<RingAttention>(core, ranks, cut));
    } else {
      model.replace_module(path, std::make_shared<HeadExchange>(core, ranks, cut));
    }
  }
}

}  // namespace shoal::parallel
