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

}  // namespace

std::int64_t Box::count() const {
  std::int64_t product = 1;
  for (std::size_t d = 0; d < begin.size(); ++d) product *= end[d] - begin[d];
  return product;
}

Box intersection(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.end[d] = std::max(both.begin[d], std::min(a.end[d], b.end[d]));
  }
  return both;
}

Layout::Layout(std::initializer_list<std::pair<Axis, Placement>> placements) {
  for (const auto& [axis, placement] : placements) set(axis, placement);
}

Layout& Layout::set(Axis axis, const Placement& placement) {
  placements_[static_cast<std::size_t>(axis)] = placement;
  return *this;
}

Layout& Layout::set_flat(AxisSet axes) {
  flat_ = axes;
  return *this;
}

std::string Layout::text() const {
  std::string joined;
  for (const Axis axis : plan::kAllAxes) {
    if (along(axis).kind == Placement::Kind::kReplicate) continue;
    joined += fmt::format("{}{}: {}", joined.empty() ? "" : ", ", name(axis), along(axis).text());
  }
  if (!flat_.empty())
    joined += fmt::format("{}flat over {}", joined.empty() ? "" : ", ", flat_.text());
  return joined.empty() ? "replicated" : joined;
}

int cut_dim(const Placement& placement, std::size_t dims) {
  const auto all = static_cast<int>(dims);
  const int dim = placement.dim < 0 ? placement.dim + all : placement.dim;
  SHOAL_USER_CHECK(dim >= 0 && dim < all, "layout", "shard({}) of a tensor of {} dimensions",
                   placement.dim, dims);
  return dim;
}

std::pair<std::int64_t, std::int64_t> even_part(std::int64_t size, std::int64_t parts,
                                                std::int64_t index) {
  SHOAL_USER_CHECK(size >= 0 && parts > 0 && index >= 0 && index < parts, "layout",
                   "part {} of {} of {} elements", index, parts, size);
  return even_part_of(size, parts, index);
}

std::vector<Box> local_boxes(const std::vector<std::int64_t>& shape, const Layout& layout,
                             const plan::Degrees& degrees, std::int64_t rank) {
  std::vector<Box> boxes{{Sizes(shape.size(), 0), shape}};
  for (const Axis axis : plan::kAllAxes) {
    const Placement& placement = layout.along(axis);
    if (placement.kind != Placement::Kind::kShard) continue;
    const int dim = cut_dim(placement, shape.size());
    const std::int64_t extent = degrees.extent(axis);
    const std::int64_t coordinate = plan::coordinate(degrees, axis, rank);
    std::vector<Box> parts;
    for (const Box& box : boxes) {
      const auto add = [&](std::int64_t count, std::int64_t index) {
        const auto [begin, end] = even_part(box.end[dim] - box.begin[dim], count, index);
        Box part = box;
        part.begin[dim] = box.begin[dim] + begin;
        part.end[dim] = box.begin[dim] + end;
        parts.push_back(std::move(part));
      };
      if (placement.cut == Placement::Cut::kEven) {
        add(extent, coordinate);
      } else {
        add(2 * extent, coordinate);
        add(2 * extent, 2 * extent - 1 - coordinate);
      }
    }
    boxes = std::move(parts);
  }
  return boxes;
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
