#include "shoal/plan/degrees.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shoal/base/check.h"
#include "shoal/base/error.h"

namespace shoal::plan {
namespace {

/// How far apart neighbours along an axis are in the numbering of ranks.
std::int64_t stride(const Degrees& d, Axis axis) {
  switch (axis) {
    case Axis::kTensor:
    case Axis::kExpert:
      return 1;
    case Axis::kContext:
      return d.tp;
    case Axis::kShard:
      return d.cp * d.tp;
    case Axis::kReplicate:
      return d.dp_shard * d.cp * d.tp;
    case Axis::kExpertData:
      return d.ep;
    case Axis::kPipeline:
      return d.stage_ranks();
  }
  return 1;
}

constexpr AxisSet kExpertAxes{Axis::kExpert, Axis::kExpertData};

}  // namespace

const char* name(Axis axis) {
  static constexpr std::array<const char*, kAxes> kNames{"pp", "dp_replicate", "dp_shard", "cp",
                                                         "tp", "ep",           "ep_data"};
  return kNames[static_cast<std::size_t>(axis)];
}

std::vector<Axis> AxisSet::axes() const {
  std::vector<Axis> list;
  for (const Axis axis : kAllAxes)
    if (contains(axis)) list.push_back(axis);
  return list;
}

std::string AxisSet::text() const {
  std::string joined;
  for (const Axis axis : axes()) joined += (joined.empty() ? "" : " x ") + std::string(name(axis));
  return joined.empty() ? "no axis" : joined;
}

void Degrees::shard_over(std::int64_t ranks, std::int64_t dp) {
  if (ranks < 1 || ranks % cp != 0 || dp * cp % ranks != 0) {
    throw Error(ErrorKind::kConfig, "plan",
                fmt::format("shard = {}: must divide dp x cp = {} and be a multiple of cp = {}",
                            ranks, dp * cp, cp))
        .hint(fmt::format("use {}", nearest_divisors(dp, ranks / cp)) +
              (cp > 1 ? fmt::format(" times {}", cp) : ""));
  }
  dp_shard = ranks / cp;
  dp_replicate = dp / dp_shard;
}

std::int64_t Degrees::extent(Axis axis) const {
  switch (axis) {
    case Axis::kPipeline:
      return pp;
    case Axis::kReplicate:
      return dp_replicate;
    case Axis::kShard:
      return dp_shard;
    case Axis::kContext:
      return cp;
    case Axis::kTensor:
      return tp;
    case Axis::kExpert:
      return ep;
    case Axis::kExpertData:
      return stage_ranks() / ep;
  }
  return 1;
}

std::int64_t Degrees::extent(AxisSet axes) const {
  std::int64_t product = 1;
  for (const Axis axis : axes.axes()) product *= extent(axis);
  return product;
}

std::int64_t coordinate(const Degrees& degrees, Axis axis, std::int64_t rank) {
  return rank / stride(degrees, axis) % degrees.extent(axis);
}

std::vector<std::int64_t> members(const Degrees& degrees, AxisSet axes, std::int64_t rank) {
  SHOAL_CHECK((axes & kExpertAxes).empty() || (axes & kStageAxes).empty(),
              "{}: experts are folded into the other axes", axes.text());
  // From the rank whose coordinates along `axes` are all 0.
  std::int64_t first = rank;
  for (const Axis axis : axes.axes())
    first -= coordinate(degrees, axis, rank) * stride(degrees, axis);
  std::vector<std::int64_t> list{first};
  for (const Axis axis : axes.axes()) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t one : list) {
      for (std::int64_t c = 0; c < degrees.extent(axis); ++c)
        longer.push_back(one + c * stride(degrees, axis));
    }
    list = std::move(longer);
  }
  std::sort(list.begin(), list.end());
  return list;
}

std::string rank_table(const Degrees& degrees, std::int64_t ranks_per_host) {
  std::vector<Axis> shown;
  for (const Axis axis : kAllAxes) {
    // Experts' data ranks are of interest only where experts are divided.
    const bool wanted = axis != Axis::kExpertData || degrees.ep > 1;
    if (wanted && degrees.extent(axis) > 1) shown.push_back(axis);
  }
  std::string text = fmt::format("{:>6}  {:>6}", "rank", "host");
  for (const Axis axis : shown) text += fmt::format("  {:>12}", name(axis));
  text += "\n";
  for (std::int64_t rank = 0; rank < degrees.ranks(); ++rank) {
    text += fmt::format("{:>6}  {:>6}", rank, rank / ranks_per_host);
    for (const Axis axis : shown) text += fmt::format("  {:>12}", coordinate(degrees, axis, rank));
    text += "\n";
  }
  return text;
}

std::string nearest_divisors(std::int64_t count, std::int64_t value) {
  std::int64_t below = 0;
  std::int64_t above = 0;
  for (std::int64_t d = 1; d <= count && above == 0; ++d) {
    if (count % d != 0) continue;
    if (d < value) below = d;
    if (d > value) above = d;
  }
  if (below == 0 && above == 0) return fmt::format("{}", count);
  if (below == 0 || above == 0) return fmt::format("{}", below + above);
  return fmt::format("{} or {}", below, above);
}

}  // namespace shoal::plan
