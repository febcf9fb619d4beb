#include "tests/plan/gather_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "shoal/base/svg.h"

namespace shoal::plan {
namespace {

using schedule::ShardStep;

constexpr double kNames = 120;  ///< width of the names of units
constexpr double kUnitOfTime = 36;
constexpr double kBarHeight = 24;
constexpr double kRowHeight = 32;
constexpr double kFirstRow = 84;
constexpr const char* kGatheredBar = "#cfe3f5";
constexpr const char* kForwardBox = "#3b7fc4";
constexpr const char* kBackwardBox = "#e08a3c";

double height_of(int unit) { return kFirstRow + kRowHeight * unit; }

std::string bar(const char* of, double from, double to, int unit, double inset, const char* color) {
  return fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "fill=\"{}\"/>\n",
      of, kNames + kUnitOfTime * from, height_of(unit) + inset, kUnitOfTime * (to - from),
      kBarHeight - 2 * inset, color);
}

/// The bars of a table, the time that it takes, and the most units that are held at a time.
struct Drawn {
  std::string held;
  std::string passes;
  double end = 0;
  std::size_t most = 0;
};

Drawn drawn_table(const schedule::ShardPlan& plan) {
  Drawn all;
  std::vector<double> gathered(plan.reads.size() + 1);
  std::set<int> here;
  for (const schedule::ShardAction& action : schedule::shard_table(plan)) {
    const auto index = static_cast<std::size_t>(action.index);
    if (action.step == ShardStep::kGather) {
      gathered.resize(std::max(gathered.size(), index + 1));
      gathered[index] = all.end;
      here.insert(action.index);
      all.most = std::max(all.most, here.size());
    } else if (action.step == ShardStep::kRelease) {
      all.held += bar("held", gathered[index], all.end, action.index, 0, kGatheredBar);
      here.erase(action.index);
    } else {
      const bool forward = action.step == ShardStep::kForward;
      const double end = all.end + (forward ? 1 : 2);
      all.passes += bar(forward ? "forward" : "backward", all.end, end, plan.reads[index].front(),
                        5, forward ? kForwardBox : kBackwardBox);
      all.end = end;
    }
  }
  return all;
}

}  // namespace

std::string gather_plot(const std::string& title, const schedule::ShardPlan& plan,
                        const std::vector<std::string>& names) {
  const Drawn all = drawn_table(plan);
  const auto units = static_cast<int>(names.size());
  const double bottom = height_of(units);
  std::string text = svg::opening(kNames + kUnitOfTime * all.end + 20, bottom + 78, 20, title);
  text +=
      svg::label(20, 60, fmt::format("a rank holds at most {} of {} units whole", all.most, units));
  for (int unit = 0; unit < units; ++unit)
    text += svg::label(kNames - 10, height_of(unit) + kBarHeight / 2 + 4, names[unit], "end");
  return text + all.held + all.passes +
         svg::legend(kNames, bottom + 22,
                     {{kGatheredBar, "gathered: from its gather to its release"},
                      {kForwardBox, "forward"},
                      {kBackwardBox, "backward"}}) +
         "</svg>\n";
}

}  // namespace shoal::plan
