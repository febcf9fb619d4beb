#include "shoal/parallel/context/context_parallel.h"

#include <fmt/format.h>

#include "shoal/nn/transformer.h"
#include "shoal/parallel/context/head_exchange.h"
#include "shoal/parallel/context/ring_attention.h"
#include "shoal/parallel/model_parts.h"

namespace shoal::parallel {
namespace {

using mesh::Axis;

void check_heads(const model::ModelSpec& spec, const mesh::Mesh& mesh) {
  const int tp = mesh.extent(Axis::kTensor);
  const int cp = mesh.extent(Axis::kContext);
  if (spec.kv_heads % (tp * cp) == 0) return;
  throw Error(ErrorKind::kConfig, "context parallel",
              fmt::format("tp x cp = {} x {} must divide kv_heads = {}: each rank gets whole "
                          "key-value heads",
                          tp, cp, spec.kv_heads))
      .hint(fmt::format("use the ring, or tp x cp = {}",
                        plan::nearest_divisors(spec.kv_heads, std::int64_t{tp} * cp)));
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
  if (spec.experts > 0 && (spec.capacity_factor > 0 || spec.balance_loss > 0)) {
    throw Error(ErrorKind::kConfig, "context parallel",
                fmt::format("{}: capacity and balance loss count the tokens of whole sequences, of "
                            "which each of {} ranks along cp has a part",
                            spec.name, mesh.extent(Axis::kContext)))
        .hint("capacity_factor = 0 and balance_loss = 0; router_bias_rate balances too");
  }
  if (way == ContextWay::kHeads) check_heads(spec, mesh);
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
