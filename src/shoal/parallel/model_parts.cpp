#include "shoal/parallel/model_parts.h"

#include <utility>

namespace shoal::parallel {

void cut_parameter(nn::Parameter& parameter, const mesh::Mesh& mesh, mesh::Axis axis,
                   mesh::Placement placement) {
  mesh::Layout layout = parameter.layout();
  layout.set(axis, placement);
  const auto boxes =
      mesh::local_boxes(parameter.global_shape(), layout, mesh.degrees(), mesh.rank());
  parameter.set_layout(std::move(layout), boxes.at(0));
}

}  // namespace shoal::parallel
