#include "tests/plan/zero_plot.h"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/svg.h"
#include "shoal/plan/memory.h"

namespace shoal::plan {
namespace {

constexpr double kMargin = 20;
constexpr double kTop = 84;
constexpr double kColumnHeight = 240;  ///< of a column: all states of the parameters
constexpr double kColumn = 40;
constexpr double kColumnGap = 6;  ///< between the columns of a stage
constexpr double kStageGap = 46;  ///< between stages

constexpr int kStages = 4;
constexpr std::array<const char*, kStages> kCuts = {
    "nothing is cut", "optimizer state is cut", "gradients are cut too", "parameters are cut too"};

struct Part {
  const char* color;
  const char* name;
  double whole;  ///< bytes a parameter
  double held;   ///< of them on one rank
};

std::array<Part, 3> parts_of(const StateBytes& whole, const StateBytes& held) {
  return {{{"#7fb2e5", "parameters", whole.parameter, held.parameter},
           {"#f2b880", "gradients", whole.gradient, held.gradient},
           {"#9bcf9b", "optimizer state", whole.optimizer(), held.optimizer()}}};
}

/// Draws what one rank holds: each part whole, or the shard of this rank at its place.
std::string column(const std::array<Part, 3>& parts, double bytes, int rank, double x) {
  std::string text;
  double top = kTop;
  for (const Part& part : parts) {
    const double height = kColumnHeight * part.whole / bytes;
    const double held = kColumnHeight * part.held / bytes;
    // A shard lies behind those of the ranks before it; a whole part begins at the top.
    const double from = part.held < part.whole ? top + rank * held : top;
    text += fmt::format(
        "<rect class=\"held\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\" "
        "fill=\"{}\"/>\n",
        x, from, kColumn, held, part.color);
    text += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\" fill=\"none\" "
        "stroke=\"#999\"/>\n",
        x, top, kColumn, height);
    top += height;
  }
  return text + fmt::format(
                    "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" "
                    "text-anchor=\"middle\">rank {}</text>\n",
                    x + kColumn / 2, kTop + kColumnHeight + 16, rank);
}

}  // namespace

std::string zero_plot(const std::string& title, const StateBytes& whole, int ranks) {
  SHOAL_USER_CHECK(ranks >= 2 && ranks <= 16, "zero_plot", "2 to 16 ranks can be drawn: ranks={}",
                   ranks);
  const double bytes = whole.all();
  const double stage_width = ranks * (kColumn + kColumnGap) + kStageGap;
  std::string text =
      svg::opening(kMargin + kStages * stage_width, kTop + kColumnHeight + 118, kMargin, title);
  for (int stage = 0; stage < kStages; ++stage) {
    const std::array<Part, 3> parts = parts_of(whole, state_bytes(whole, stage, ranks));
    const double left = kMargin + stage * stage_width;
    double held = 0;
    for (const Part& part : parts) held += part.held;
    text += fmt::format("<text x=\"{:.1f}\" y=\"58\" font-weight=\"bold\">ZeRO-{}</text>\n", left,
                        stage);
    text += svg::label(left, 76, kCuts[stage]);
    for (int rank = 0; rank < ranks; ++rank)
      text += column(parts, bytes, rank, left + rank * (kColumn + kColumnGap));
    text += svg::label(left, kTop + kColumnHeight + 38,
                       fmt::format("each rank: {:.3g} bytes a parameter", held));
  }
  const std::array<Part, 3> parts = parts_of(whole, whole);
  std::vector<std::pair<const char*, std::string>> entries;
  for (const Part& part : parts)
    entries.emplace_back(part.color, fmt::format("{}: {:g} bytes", part.name, part.whole));
  text += svg::legend(kMargin, kTop + kColumnHeight + 60, entries);
  return text + "</svg>\n";
}

}  // namespace shoal::plan
