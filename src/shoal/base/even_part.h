#pragma once

#include <algorithm>
#include <utility>

namespace shoal {

/// The part [begin, end) of `count` elements that belongs to `index` when they are divided into
/// `parts` as evenly as possible: earlier parts are never smaller, and a part may be empty.
template <class Integer>
constexpr std::pair<Integer, Integer> even_part_of(Integer count, Integer parts, Integer index) {
  const Integer size = count / parts;
  const Integer larger = count % parts;
  const Integer begin = index * size + std::min(index, larger);
  return {begin, begin + size + (index < larger ? 1 : 0)};
}

}  // namespace shoal
