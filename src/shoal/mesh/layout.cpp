#include "shoal/mesh/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"

namespace shoal::mesh {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Elements of one step in `dim` of a box, row-major.
std::int64_t stride_of(const Sizes& extent, std::size_t dim) {
  std::int64_t stride = 1;
  for (std::size_t d = dim + 1; d < extent.size(); ++d) stride *= extent[d];
  return stride;
}

/// Appends the boxes of the element range [begin, end) of the sub-box in which dimensions below
/// `dim` are fixed to one index each: `first`.
void cut(const Box& box, const Sizes& extent, std::size_t dim, Sizes first, std::int64_t begin,
         std::int64_t end, std::vector<Box>& boxes) {
  if (begin >= end) return;
  const auto emit = [&](std::int64_t from, std::int64_t to) {  // whole slices [from, to) of `dim`
    if (from >= to) return;
    Box piece = box;
    for (std::size_t d = 0; d < dim; ++d) {
      piece.begin[d] = first[d];
      piece.end[d] = first[d] + 1;
    }
    piece.begin[dim] = box.begin[dim] + from;
    piece.end[dim] = box.begin[dim] + to;
    boxes.push_back(std::move(piece));
  };
  const auto inside = [&](std::int64_t slice, std::int64_t from, std::int64_t to) {
    first[dim] = box.begin[dim] + slice;
    cut(box, extent, dim + 1, first, from, to, boxes);
  };
  const std::int64_t stride = stride_of(extent, dim);
  // A range is at most a cut slice at its head, whole slices, and a cut slice at its tail. Each cut
  // slice is divided in the next dimension, where the rest of the head reaches the slice's end and
  // the tail begins at its start: two more boxes a dimension, so at most 2 dimensions - 1 in all.
  const std::int64_t head = begin / stride;
  const std::int64_t tail = end / stride;
  if (head == tail) return inside(head, begin % stride, end % stride);
  const bool whole_head = begin % stride == 0;
  if (!whole_head) inside(head, begin % stride, stride);
  emit(whole_head ? head : head + 1, tail);
  if (end % stride != 0) inside(tail, 0, end % stride);
}

std::string text_of(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      return "replicate";
    case Placement::Kind::kShard:
      return fmt::format("shard({})", placement.dim);
    case Placement::Kind::kPartial:
      return fmt::format("partial({})", name(placement.reduction));
    case Placement::Kind::kFlat:
      return fmt::format("flat({}, {})", placement.begin, placement.end);
  }
  return "unknown";
}

}  // namespace

std::int64_t Box::count() const {
  std::int64_t product = 1;
  for (std::size_t d = 0; d < begin.size(); ++d) product *= end[d] - begin[d];
  return product;
}

bool Layout::replicated() const {
  return std::all_of(axes.begin(), axes.end(), [](const Placement& placement) {
    return placement.kind == Placement::Kind::kReplicate;
  });
}

std::string Layout::text() const {
  std::string joined;
  for (const Placement& placement : axes)
    joined += (joined.empty() ? "" : ", ") + text_of(placement);
  return "(" + joined + ")";
}

std::pair<std::int64_t, std::int64_t> even_part(std::int64_t size, std::int64_t parts,
                                                std::int64_t index) {
  SHOAL_USER_CHECK(size >= 0 && parts > 0 && index >= 0 && index < parts, "layout",
                   "part {} of {} of {} elements", index, parts, size);
  return even_part_of(size, parts, index);
}

Box local_box(const std::vector<std::int64_t>& shape, const Layout& layout,
              const std::vector<int>& extent, const std::vector<int>& coordinate) {
  SHOAL_USER_CHECK(extent.size() == coordinate.size() && layout.axes.size() <= extent.size(),
                   "layout", "{} placements, {} axes, {} coordinates", layout.axes.size(),
                   extent.size(), coordinate.size());
  // Axes cut in the order of the mesh: a dimension that two axes cut is divided by the first, and
  // each part by the second.
  Box box{Sizes(shape.size(), 0), shape};
  for (std::size_t axis = 0; axis < layout.axes.size(); ++axis) {
    const Placement& placement = layout.axes[axis];
    if (placement.kind != Placement::Kind::kShard) continue;
    const int dim =
        placement.dim < 0 ? placement.dim + static_cast<int>(shape.size()) : placement.dim;
    SHOAL_USER_CHECK(dim >= 0 && dim < static_cast<int>(shape.size()), "layout",
                     "shard({}) of a tensor of {} dimensions", placement.dim, shape.size());
    const auto [begin, end] =
        even_part(box.end[dim] - box.begin[dim], extent[axis], coordinate[axis]);
    box.end[dim] = box.begin[dim] + end;
    box.begin[dim] += begin;
  }
  return box;
}

std::vector<Box> boxes_of(const Box& box, std::int64_t begin, std::int64_t end) {
  SHOAL_USER_CHECK(begin >= 0 && begin <= end && end <= box.count(), "layout",
                   "elements [{}, {}) of a box of {}", begin, end, box.count());
  if (begin == end) return {};
  if (box.begin.empty()) return {box};
  Sizes extent(box.begin.size());
  for (std::size_t d = 0; d < extent.size(); ++d) extent[d] = box.end[d] - box.begin[d];
  std::vector<Box> boxes;
  cut(box, extent, 0, Sizes(extent.size(), 0), begin, end, boxes);
  return boxes;
}

}  // namespace shoal::mesh
