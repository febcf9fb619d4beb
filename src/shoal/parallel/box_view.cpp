#include "shoal/parallel/box_view.h"

#include <cstddef>

namespace shoal::parallel {

std::vector<std::int64_t> shape_of(const mesh::Box& box) {
  std::vector<std::int64_t> shape;
  for (std::size_t d = 0; d < box.begin.size(); ++d) shape.push_back(box.end[d] - box.begin[d]);
  return shape;
}

at::Tensor view_of(const at::Tensor& tensor, const mesh::Box& outer, const mesh::Box& inside) {
  at::Tensor view = tensor;
  for (std::size_t d = 0; d < inside.begin.size(); ++d) {
    view = view.narrow(static_cast<std::int64_t>(d), inside.begin[d] - outer.begin[d],
                       inside.end[d] - inside.begin[d]);
  }
  return view;
}

}  // namespace shoal::parallel
