#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"

namespace shoal::collective {

inline int value(int rank, std::size_t i) {
  return (rank + 1) * 3 + static_cast<int>(i % 11);
}  // small: sums are exact in every type used

/// One operation on `T`; returns what is wrong, or nothing.
template <class T>
std::string check(Communicator& c, Kind kind, ElementType type, std::size_t count, int root) {
  const int n = c.size();
  const int me = c.rank();
  const bool packed =
      kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter;
  const bool wide = kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kAllToAll;
  std::vector<T> in(count * (packed ? n : 1));
  std::vector<T> out(count * (wide ? n : 1), T(99));
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = T(value(me, i));
  c.run({.kind = kind, .type = type, .buffer = {in.data(), out.data(), count}, .peer = root},
        Deadline::in(std::chrono::seconds(60)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t from = i / count;
    const std::size_t at = i % count;
    int want = 99;
    int sum = 0;
    const std::size_t mine = static_cast<std::size_t>(me) * count + at;
    for (int r = 0; r < n; ++r) sum += value(r, kind == Kind::kReduceScatter ? mine : i);
    if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter ||
        (kind == Kind::kReduce && me == root))
      want = sum;
    if (kind == Kind::kBroadcast) want = value(root, i);
    if (kind == Kind::kScatter) want = value(root, mine);
    if (kind == Kind::kAllGather || (kind == Kind::kGather && me == root))
      want = value(static_cast<int>(from), at);
    if (kind == Kind::kAllToAll) want = value(static_cast<int>(from), mine);
    if (out[i] != T(want) && !(kind == Kind::kReduce && me != root)) {
      return fmt::format("{} of {}: rank {} of {}, element {} of {}", name(kind), name(type), me, n,
                         i, out.size());
    }
  }
  return {};
}

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast,
                           Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                           Kind::kGather,    Kind::kScatter};

}  // namespace shoal::collective
