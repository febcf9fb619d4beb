#include "tests/parallel_recipe/recipe_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/base/svg.h"
#include "shoal/parallel/recipe/print.h"

namespace shoal::parallel {
namespace {

constexpr double kPlotLeft = 64;
constexpr double kColumn = 104;    ///< of a module, with the move behind it
constexpr double kWeight = 52;     ///< side of a weight
constexpr double kVector = 10;     ///< width of one that is no matrix
constexpr double kRankRow = 76;    ///< height of a rank
constexpr double kFirstRow = 84;   ///< top of the first
constexpr double kMoveWidth = 18;  ///< of what travels

constexpr const char* kHeldPart = "#7fb2e5";
constexpr const char* kGatherColor = "#9bcf9b";
constexpr const char* kScatterColor = "#f2b880";
constexpr const char* kOtherMove = "#c9b6e0";

bool is_drawn(const PlacedModule& one) {
  const std::string& path = one.module.path;
  if (path.starts_with("blocks.") && !path.starts_with("blocks.0.")) return false;
  return one.module.kind != ModuleKind::kPositions && one.module.kind != ModuleKind::kHeadNorm;
}

bool is_matrix(const PlacedModule& one) { return one.module.parameters.at("weight").size() > 1; }

/// "blocks.0.mlp.up" as "mlp.up".
std::string short_name(const std::string& path) {
  return path.starts_with("blocks.0.") ? path.substr(9) : path;
}

/// The weight as an outline, and in it the part of the rank.
std::string weight_of(const PlacedModule& one, int rank, int tp, double x, double y) {
  const double whole = is_matrix(one) ? kWeight : kVector;
  double from_x = x;
  double from_y = y;
  double width = whole;
  double height = kWeight;
  const Placement placement = one.weight();
  if (placement == Placement::shard(0)) {
    height /= tp;
    from_y += rank * height;
  } else if (placement == Placement::shard(1)) {
    width /= tp;
    from_x += rank * width;
  }
  return fmt::format(
      "<rect class=\"held\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "fill=\"{}\"/>\n"
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"none\" "
      "stroke=\"{}\" stroke-width=\"0.8\"/>\n",
      from_x, from_y, width, height, kHeldPart, x, y, whole, kWeight, svg::kInk);
}

const char* color_of(const std::string& move) {
  if (move == "all-gather") return kGatherColor;
  return move == "reduce-scatter" ? kScatterColor : kOtherMove;
}

/// The transfer at `x`, through all rows: a bar with its name; without one, a line a rank.
std::string move_at(const std::string& move, double x, int tp) {
  const double middle = x + kMoveWidth / 2;
  if (move.empty()) {
    std::string lines;
    for (int rank = 0; rank < tp; ++rank) {
      const double y = kFirstRow + kRankRow * rank + kWeight / 2;
      lines += svg::line(x, y, x + kMoveWidth, y, fmt::format("stroke=\"{}\"", svg::kInk));
    }
    return lines;
  }
  const double height = kRankRow * (tp - 1) + kWeight;
  return fmt::format(
      "<rect class=\"move\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\" "
      "fill=\"{}\"/>\n"
      "<text transform=\"translate({:.1f},{:.1f}) rotate(-90)\" font-size=\"11\" "
      "text-anchor=\"middle\">{}</text>\n",
      x, kFirstRow, kMoveWidth, height, color_of(move), middle + 4, kFirstRow + height / 2,
      svg::escaped(move));
}

/// The move between a module and the next; behind the last one, that of the loss.
std::string move_between(const PlacedModule& one, const PlacedModule* next) {
  if (next == nullptr) return one.needs == Boundary::kReplicate ? "2 numbers a row" : "";
  const std::string out = movement(one.computes, one.output);
  return out.empty() ? movement(next->input, next->needs) : out;
}

}  // namespace

std::string recipe_plot(const std::string& title, const std::vector<PlacedModule>& modules,
                        int tp) {
  std::vector<const PlacedModule*> drawn;
  for (const PlacedModule& one : modules)
    if (is_drawn(one)) drawn.push_back(&one);
  SHOAL_USER_CHECK(!drawn.empty() && tp > 0, "recipe plot",
                   "{} modules on {} ranks: nothing to draw", modules.size(), tp);
  const double end = kFirstRow + kRankRow * tp;
  const double width = kPlotLeft + kColumn * static_cast<double>(drawn.size()) + 8;
  std::string text = svg::opening(width, end + 96, 8, title);
  for (int rank = 0; rank < tp; ++rank) {
    const double y = kFirstRow + kRankRow * rank + kWeight / 2 + 4;
    text += svg::label(8, y, fmt::format("rank {}", rank));
  }
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const PlacedModule& one = *drawn[i];
    const double left = kPlotLeft + kColumn * static_cast<double>(i);
    const double x = left + (is_matrix(one) ? 0 : (kWeight - kVector) / 2);
    text += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.0f}\" font-size=\"11\" text-anchor=\"middle\">{}</text>\n",
        left + kWeight / 2, kFirstRow - 12, svg::escaped(short_name(one.module.path)));
    for (int rank = 0; rank < tp; ++rank)
      text += weight_of(one, rank, tp, x, kFirstRow + kRankRow * rank);
    const PlacedModule* next = i + 1 < drawn.size() ? drawn[i + 1] : nullptr;
    text +=
        move_at(move_between(one, next), left + kWeight + (kColumn - kWeight - kMoveWidth) / 2, tp);
  }
  text += svg::legend(
      kPlotLeft, end + 18,
      {{kHeldPart, "the part of the weight that the rank holds: rows, columns, or all"},
       {kGatherColor,
        "all-gather: every rank gets all rows of the stream; backward, reduce-scatter"},
       {kScatterColor, "reduce-scatter: sums into the rank's own rows; backward, all-gather"},
       {kOtherMove, "other moves among the ranks"}});
  return text + "</svg>\n";
}

}  // namespace shoal::parallel
