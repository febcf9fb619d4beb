#include "shoal/parallel/context/context_parallel.h"

#include <fmt/format.h>

#include "shoal/nn/transformer.h"
#include "shoal/parallel/context/context_router.h"
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

/// Lets the routers of a mixture count whole sequences for their capacity and balance loss.
void replace_routers(nn::Model& model, const mesh::Mesh& mesh, const comm::Group& ranks,
                     mesh::Placement::Cut cut) {
  const model::ModelSpec& spec = model.spec();
  if (spec.experts == 0 || (spec.balance_loss == 0 && spec.capacity_factor == 0)) return;
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    if (!model::has_experts(spec, i)) continue;
    const std::string path = fmt::format("blocks.{}.mlp.router", i);
    const auto& router = module_at<nn::Router>(model, path, "context parallel");
    model.replace_module(
        path, std::make_shared<ContextRouter>(router, mesh.along(Axis::kTensor), ranks, cut));
  }
}

}  // namespace

void split_sequence(nn::Model& model, const mesh::Mesh& mesh, ContextMethod way) {
  if (mesh.extent(Axis::kContext) == 1) return;
  const model::ModelSpec& spec = model.spec();
  if (spec.family != model::Family::kTransformer) {
    throw Error(ErrorKind::kConfig, "context parallel",
                fmt::format("{}: cp = {} divides sequences, and so transformers only", spec.name,
                            mesh.extent(Axis::kContext)));
  }
  if (way == ContextMethod::kHeads)
    require_rule(spec, mesh, plan::whole_heads_rule(spec, mesh.degrees()));
  // A group of its own: where cp alone divides the job, the reductions of gradients use one of the
  // same ranks in the same backward pass, in an order that follows from what is ready first.
  const comm::Group& along = mesh.along(Axis::kContext);
  const comm::Group ranks = along.split(0, along.rank());
  const mesh::Placement::Cut cut = cut_of(way);
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::string path = fmt::format("blocks.{}.attention.core", i);
    const auto& core = module_at<nn::AttentionCore>(model, path, "context parallel");
    if (way == ContextMethod::kRing) {
      model.replace_module(path, std::make_shared<RingAttention>(core, ranks, cut));
    } else {
      model.replace_module(path, std::make_shared<HeadExchange>(core, ranks, cut));
    }
  }
  replace_routers(model, mesh, ranks, cut);
}

}  // namespace shoal::parallel
