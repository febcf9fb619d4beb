#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shoal::checkpoint::format {

using Shape = std::vector<std::int64_t>;

/// A box of a tensor: `[begin, end)` in every dimension. A scalar has no dimensions and one
/// element.
struct Box {
  Shape begin, end;

  std::int64_t count() const;
  Shape shape() const;
  bool operator==(const Box&) const = default;
};

Box whole(const Shape& shape);
std::int64_t count_of(const Shape& shape);
std::string text(const Shape& shape);  ///< "[2, 3]"
std::string text(const Box& box);      ///< "[0:2, 3:4]"

/// Returns the elements that two boxes share; its count is zero when there are none.
Box intersect(const Box& a, const Box& b);
/// Returns true when the box lies in `[0, shape)` and no end comes before its begin.
bool fits(const Box& box, const Shape& shape);

/// A stretch of elements that lie next to each other both in the whole tensor and in a box stored
/// row-major.
struct Run {
  std::int64_t local = 0;   ///< first element, counted in the box
  std::int64_t global = 0;  ///< first element, counted in the tensor
  std::int64_t count = 0;
};

/// Calls `visit` with the fewest runs that make up elements `[begin, end)` of `box` in a tensor of
/// `shape`, in order.
void for_each_run(const Box& box, const Shape& shape, std::int64_t begin, std::int64_t end,
                  const std::function<void(const Run&)>& visit);

}  // namespace shoal::checkpoint::format
