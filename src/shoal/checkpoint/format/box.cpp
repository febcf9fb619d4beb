#include "shoal/checkpoint/format/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shoal::checkpoint::format {

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  return count;
}

Shape Box::shape() const {
  Shape sizes(begin.size());
  for (std::size_t d = 0; d < begin.size(); ++d) sizes[d] = end[d] - begin[d];
  return sizes;
}

std::int64_t Box::count() const { return count_of(shape()); }

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

std::string text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string text(const Box& box) {
  std::string ranges;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    ranges += fmt::format("{}{}:{}", d ? ", " : "", box.begin[d], box.end[d]);
  return "[" + ranges + "]";
}

Box intersect(const Box& a, const Box& b) {
  Box shared = a;
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    shared.begin[d] = std::max(a.begin[d], b.begin[d]);
    shared.end[d] = std::max(shared.begin[d], std::min(a.end[d], b.end[d]));
  }
  return shared;
}

bool fits(const Box& box, const Shape& shape) {
  if (box.begin.size() != shape.size() || box.end.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (box.begin[d] < 0 || box.end[d] < box.begin[d] || shape[d] < box.end[d]) return false;
  return true;
}

void for_each_run(const Box& box, const Shape& shape, std::int64_t begin, std::int64_t end,
                  const std::function<void(const Run&)>& visit) {
  // Trailing dimensions that the box spans whole, and the one before them, lie next to each other
  // in both.
  const int dims = static_cast<int>(shape.size());
  int outer = dims;
  std::int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= box.end[outer] - box.begin[outer];
    if (box.end[outer] - box.begin[outer] != shape[outer]) break;
  }
  Shape stride(dims, 1);
  for (int d = dims - 2; d >= 0; --d) stride[d] = stride[d + 1] * shape[d + 1];
  while (begin < end) {
    const std::int64_t within = begin % run;
    const std::int64_t count = std::min(run - within, end - begin);
    // `begin` lies in run number `rest`. The run's place comes from the dimensions outside it, the
    // innermost of which counts fastest.
    std::int64_t rest = begin / run;
    std::int64_t global = within;
    for (int d = dims - 1; d >= outer; --d) global += box.begin[d] * stride[d];
    for (int d = outer - 1; d >= 0; --d) {
      const std::int64_t size = box.end[d] - box.begin[d];
      global += (box.begin[d] + rest % size) * stride[d];
      rest /= size;
    }
    visit({begin, global, count});
    begin += count;
  }
}

}  // namespace shoal::checkpoint::format
