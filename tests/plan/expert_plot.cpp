#include "tests/plan/expert_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/error.h"
#include "shoal/base/svg.h"

namespace shoal::plan {
namespace {

constexpr double kFirst = 92;       ///< top of the first rank
constexpr double kRankHeight = 30;  ///< of a rank
constexpr double kCellLeft = 150;
constexpr double kCell = 34;     ///< width of an expert
constexpr double kGroup = 26;    ///< width of a group's line
constexpr double kAxisGap = 36;  ///< before the lines of an axis
constexpr double kTitle = 110;   ///< width of their title

constexpr const char* kHolds = "#7fb2e5";
constexpr const char* kExchange = "#2f6fb0";
constexpr const char* kSum = "#c7702b";

double row_of(std::int64_t rank) { return kFirst + kRankHeight * static_cast<double>(rank); }

/// A line for each group along `axis`, with a dot at each of its ranks; moves `x` behind them.
std::string groups_along(const Degrees& degrees, Axis axis, const char* title, const char* color,
                         double& x) {
  std::string text = svg::label(x - 6, kFirst - 34, title);
  const double end = x + kTitle;
  std::set<std::vector<std::int64_t>> drawn;
  for (std::int64_t rank = 0; rank < degrees.stage_ranks(); ++rank) {
    const auto group = members(degrees, axis, rank);
    if (!drawn.insert(group).second) continue;
    const double half = kRankHeight / 2 - 4;
    text += svg::line(x, row_of(group.front()) + half, x, row_of(group.back()) + half,
                      fmt::format("class=\"group\" stroke=\"{}\" stroke-width=\"2\"", color));
    for (const std::int64_t one : group) {
      text += fmt::format("<circle cx=\"{:.0f}\" cy=\"{:.0f}\" r=\"5\" fill=\"{}\"/>\n", x,
                          row_of(one) + half, color);
    }
    x += kGroup;
  }
  x = std::max(x, end);
  return text;
}

/// "dp_shard 1, tp 0": where a rank lies on the axes that experts are folded into.
std::string place_of(const Degrees& degrees, std::int64_t rank) {
  std::string text;
  for (const Axis axis : kStageAxes.axes()) {
    if (degrees.extent(axis) == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name(axis),
                        coordinate(degrees, axis, rank));
  }
  return text;
}

}  // namespace

std::string expert_plot(const std::string& title, const Degrees& degrees, std::int64_t experts) {
  if (degrees.ep < 1 || experts % degrees.ep != 0 || degrees.stage_ranks() % degrees.ep != 0) {
    throw Error(ErrorKind::kConfig, "expert plot",
                fmt::format("ep = {} must divide {} experts and {} ranks", degrees.ep, experts,
                            degrees.stage_ranks()));
  }
  const std::int64_t ranks = degrees.stage_ranks();
  const std::int64_t held = experts / degrees.ep;
  const double cells_end = kCellLeft + kCell * static_cast<double>(experts);
  std::string text;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    text += svg::label(kCellLeft + kCell * (static_cast<double>(expert) + 0.5), kFirst - 14,
                       std::to_string(expert), "middle");
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    text += svg::label(8, row_of(rank) + 10, fmt::format("rank {}", rank));
    text += fmt::format("<text x=\"8\" y=\"{:.0f}\" font-size=\"10\">{}</text>\n",
                        row_of(rank) + 22, place_of(degrees, rank));
    const std::int64_t own = coordinate(degrees, Axis::kExpert, rank);
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      text += fmt::format(
          "<rect {}x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"{}\" "
          "stroke=\"#bbb\" stroke-width=\"0.8\"/>\n",
          expert / held == own ? "class=\"held\" " : "",
          kCellLeft + kCell * static_cast<double>(expert), row_of(rank), kCell, kRankHeight - 8,
          expert / held == own ? kHolds : "none");
    }
  }
  double x = cells_end + kAxisGap;
  text += groups_along(degrees, Axis::kExpert, "exchange rows", kExchange, x);
  text += groups_along(degrees, Axis::kExpertData, "sum gradients", kSum, x);
  text += svg::label(kCellLeft, kFirst - 34, "experts");
  const double end = row_of(ranks);
  text += svg::legend(
      kCellLeft, end + 16,
      {{kHolds, "experts whose weights, gradients and optimizer state the rank holds"},
       {kExchange,
        "along ep: each token's row to its expert, the result back, forward and backward"},
       {kSum, "along ep_data: gradients of the experts that these ranks hold alike"}});
  return svg::opening(std::max(x, kCellLeft + 560), end + 76, 8, title) + text + "</svg>\n";
}

}  // namespace shoal::plan
