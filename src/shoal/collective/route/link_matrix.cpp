#include "shoal/collective/route/link_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shoal/base/check.h"

namespace shoal::collective {

LinkMatrix::LinkMatrix(int ranks, LinkSpeed all) : ranks_(ranks) {
  SHOAL_USER_CHECK(ranks >= 1, "link matrix", "{} ranks", ranks);
  SHOAL_USER_CHECK(all.kbit_s >= kLeastKbit, "link matrix", "links of {} kbit/s", all.kbit_s);
  const auto size = static_cast<std::size_t>(ranks);
  links_.assign(size * size, all);
  // No rank sends to itself: the diagonal is the same in every matrix.
  for (std::size_t r = 0; r < size; ++r) links_[r * size + r] = {};
}

std::size_t LinkMatrix::index(int from, int to) const {
  SHOAL_USER_CHECK(from >= 0 && from < ranks_ && to >= 0 && to < ranks_ && from != to,
                   "link matrix", "the link from rank {} to rank {} of {}", from, to, ranks_);
  return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
         static_cast<std::size_t>(to);
}

const LinkSpeed& LinkMatrix::at(int from, int to) const { return links_[index(from, to)]; }

void LinkMatrix::set(int from, int to, LinkSpeed speed) {
  SHOAL_USER_CHECK(speed.kbit_s >= kLeastKbit, "link matrix", "a link of {} kbit/s from {} to {}",
                   speed.kbit_s, from, to);
  links_[index(from, to)] = speed;
}

std::int64_t LinkMatrix::message_ns(int from, int to, std::uint64_t bytes) const {
  const LinkSpeed& link = at(from, to);
  // Bits / (kbit/s) are milliseconds. 2^40 bytes still fit.
  const std::uint64_t ns = (bytes * 8'000'000 + link.kbit_s - 1) / link.kbit_s;
  return static_cast<std::int64_t>(ns) + std::int64_t{1000} * link.us;
}

LinkMatrix LinkMatrix::of(std::span<const int> members) const {
  LinkMatrix result(static_cast<int>(members.size()), {.kbit_s = kLeastKbit});
  for (int from = 0; from < result.ranks_; ++from) {
    for (int to = 0; to < result.ranks_; ++to) {
      if (from == to) continue;
      result.set(
          from, to,
          at(members[static_cast<std::size_t>(from)], members[static_cast<std::size_t>(to)]));
    }
  }
  return result;
}

std::uint32_t LinkMatrix::slowest_kbit() const {
  std::uint32_t slowest = std::numeric_limits<std::uint32_t>::max();
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to)
      if (from != to) slowest = std::min(slowest, at(from, to).kbit_s);
  }
  return slowest;
}

std::string LinkMatrix::text() const {
  std::string text;
  for (int from = 0; from < ranks_; ++from) {
    text += fmt::format("{:>4}:", from);
    for (int to = 0; to < ranks_; ++to) {
      text += from == to ? fmt::format(" {:>8}", "-")
                         : fmt::format(" {:>8.1f}", 1e-3 * at(from, to).kbit_s);
    }
    text += '\n';
  }
  return text;
}

}  // namespace shoal::collective
