#include "shoal/parallel/ownership.h"

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::parallel {
namespace {

using mesh::Axis;
using mesh::AxisSet;

/// The axes along which every rank holds the same elements, whether or not they are cut flat
/// afterwards.
AxisSet axes_of_copies(const mesh::Layout& layout) {
  // Experts are divided over consecutive ranks, whatever the other axes: the copies of one lie that
  // far apart.
  if (layout.along(Axis::kExpert).kind != mesh::Placement::Kind::kReplicate)
    return AxisSet(Axis::kExpertData);
  AxisSet axes;
  for (const Axis axis : plan::kStageAxes.axes())
    if (layout.along(axis).kind == mesh::Placement::Kind::kReplicate) axes = axes | axis;
  return axes;
}

Holders holders_along(AxisSet axes, const mesh::Mesh& mesh) {
  const AxisSet cut = axes.without(Axis::kReplicate);
  return {.axes = axes,
          .cut = cut,
          .shard = mesh.along(cut),
          .copies = mesh.along(axes & AxisSet(Axis::kReplicate))};
}

}  // namespace

Holders common_holders(const Parameters& parameters, const mesh::Mesh& mesh) {
  if (parameters.empty()) return holders_along(plan::kStageAxes, mesh);
  const AxisSet axes = axes_of_copies(parameters.front()->layout());
  for (const auto& parameter : parameters) {
    SHOAL_USER_CHECK(axes_of_copies(parameter->layout()) == axes, "holders",
                     "{} is replicated along {}, but {} along {}", parameters.front()->name(),
                     axes.text(), parameter->name(), axes_of_copies(parameter->layout()).text());
  }
  return holders_along(axes, mesh);
}

std::vector<HeldParameters> by_holders(const Parameters& parameters, const mesh::Mesh& mesh) {
  std::vector<HeldParameters> sets;
  for (const auto& parameter : parameters) {
    const AxisSet axes = axes_of_copies(parameter->layout());
    const auto known = std::find_if(sets.begin(), sets.end(), [&](const HeldParameters& set) {
      return set.holders.axes == axes;
    });
    HeldParameters& set = known != sets.end()
                              ? *known
                              : sets.emplace_back(HeldParameters{holders_along(axes, mesh), {}});
    set.parameters.push_back(parameter);
  }
  return sets;
}

}  // namespace shoal::parallel
