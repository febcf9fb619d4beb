#include "shoal/parallel/expert/expert_parallel.h"

#include <fmt/format.h>

#include "shoal/parallel/expert/dispatch.h"
#include "shoal/parallel/model_parts.h"
#include "shoal/plan/division_rules.h"

namespace shoal::parallel {
namespace {

using mesh::Axis;
using mesh::Placement;

void check_experts(const model::ModelSpec& spec, const mesh::Degrees& degrees) {
  for (const std::string& broken :
       {plan::experts_rule(spec, degrees.ep), plan::expert_copy_rule(degrees)}) {
    if (broken.empty()) continue;
    throw Error(ErrorKind::kConfig, "expert parallel",
                fmt::format("{}: ep = {}: {}", spec.name, degrees.ep, broken));
  }
}

}  // namespace

ExpertParallel::ExpertParallel(const nn::Experts& original, comm::Group ranks)
    : Experts(nn::Replacement(), original), ranks_(std::move(ranks)) {}

at::Tensor ExpertParallel::run(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                               const nn::Context& context) const {
  // Every rank makes every call, also without a row of its own: nothing here depends on counts.
  const auto dispatch = exchange_counts(counts, ranks_);
  const at::Tensor arrived = send_to_experts(rows, dispatch, ranks_);
  return return_from_experts(Experts::run(arrived, dispatch->counts, context), dispatch, ranks_);
}

void place_experts(nn::Model& model, const mesh::Mesh& mesh) {
  if (mesh.extent(Axis::kExpert) == 1) return;
  const model::ModelSpec& spec = model.spec();
  check_experts(spec, mesh.degrees());
  // A group of its own: reductions of gradients may use one of the same ranks in the same backward
  // pass, in an order that follows from what is ready first.
  const comm::Group& along = mesh.along(Axis::kExpert);
  const comm::Group ranks = along.split(0, along.rank());
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    if (!model::has_experts(spec, i)) continue;
    const std::string path = fmt::format("blocks.{}.mlp.experts", i);
    const auto& experts = module_at<nn::Experts>(model, path, "expert parallel");
    for (const auto& [name, parameter] : experts.own_parameters())
      cut_parameter(*parameter, mesh, Axis::kExpert, Placement::shard(0));
    model.replace_module(path, std::make_shared<ExpertParallel>(experts, ranks));
  }
}

}  // namespace shoal::parallel
