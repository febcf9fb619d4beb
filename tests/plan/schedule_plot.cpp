#include "tests/plan/schedule_plot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "shoal/base/svg.h"
#include "shoal/schedule/timeline.h"

namespace shoal::plan {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::Schedule;
using schedule::Span;
using schedule::Timeline;

constexpr double kTableWidth = 1000;
constexpr double kLeft = 112;
constexpr double kTableTop = 56;
constexpr double kHead = 30;       ///< above the rows of a schedule
constexpr double kRow = 50;        ///< of a rank
constexpr double kBoxes = 20;      ///< part of a row: what the rank computes
constexpr double kHeldMost = 14;   ///< part of a row: the micro-batches that it holds
constexpr double kMessage = 0.05;  ///< time of a message
constexpr double kNumberFrom = 9;  ///< the narrowest box with a number

constexpr const char* kForwardColor = "#7fb2e5";
constexpr const char* kGradientColor = "#f2b880";
constexpr const char* kWeightColor = "#9bcf9b";
constexpr const char* kHeldColor = "#c9b6e0";

/// A simulated schedule, with where it is drawn.
struct Panel {
  const Schedule& schedule;
  Timeline timeline;
  std::vector<double> peaks;  ///< micro-batches, by rank
  double top = 0;

  double row(int rank) const { return top + kHead + kRow * rank; }
};

int chunks_of(const Schedule& schedule) { return schedule.stages() / schedule.ranks(); }

Panel panel_of(const Schedule& schedule) {
  schedule::check(schedule);
  const double part = 1.0 / chunks_of(schedule);
  const schedule::Costs costs{
      {{.forward = part, .input_gradient = part, .weight_gradient = part, .activations = part}},
      kMessage,
      0,
      {},
      {}};
  return {schedule, schedule::simulate(schedule, costs),
          schedule::activation_peak(schedule, costs)};
}

const char* color_of(Kind kind) {
  if (kind == Kind::kForward) return kForwardColor;
  return kind == Kind::kWeightGradient ? kWeightColor : kGradientColor;
}

/// Draws what a rank computes: a path for each color, and the numbers of the micro-batches.
std::string boxes_of(const Panel& panel, int rank, const svg::Axis& x) {
  std::map<std::string, std::string> paths;
  std::string numbers;
  const double y = panel.row(rank);
  for (const Span& span : panel.timeline.ranks[rank]) {
    if (!schedule::is_compute(span.action.kind)) continue;
    const double width = x(span.end) - x(span.begin);
    paths[color_of(span.action.kind)] += fmt::format("M{:.1f} {:.0f}h{:.1f}v{:.0f}h{:.1f}z",
                                                     x(span.begin), y, width, kBoxes, -width);
    if (width >= kNumberFrom) {
      numbers += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n",
                             x((span.begin + span.end) / 2), y + 14, span.action.micro_batch);
    }
  }
  std::string text;
  for (const auto& [color, path] : paths) {
    text += fmt::format("<path d=\"{}\" fill=\"{}\" stroke=\"white\" stroke-width=\"0.8\"/>\n",
                        path, color);
  }
  return text + "<g font-size=\"9\" text-anchor=\"middle\">\n" + numbers + "</g>\n";
}

/// Draws how many micro-batches a rank holds: from their forward pass in a stage until the gradient
/// of that stage's input.
std::string held_by(const Panel& panel, int rank, double most, const svg::Axis& x) {
  const double bottom = panel.row(rank) + kBoxes + 4 + kHeldMost;
  const double part = 1.0 / chunks_of(panel.schedule);
  double held = 0;
  std::string path = fmt::format("M{:.1f} {:.1f}", x(0), bottom);
  for (const Span& span : panel.timeline.ranks[rank]) {
    const Kind kind = span.action.kind;
    const bool takes = kind == Kind::kForward;
    if (!takes && kind != Kind::kBackward && kind != Kind::kInputGradient) continue;
    held += takes ? part : -part;
    path += fmt::format("H{:.1f}V{:.1f}", x(takes ? span.begin : span.end),
                        bottom - kHeldMost * held / most);
  }
  return fmt::format("<path d=\"{}z\" fill=\"{}\"/>\n", path, kHeldColor) +
         fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"9\">holds {:g}</text>\n",
                     kTableWidth - 52, bottom - 3, panel.peaks[rank]);
}

/// Draws the messages: an activation when its stage has computed it, a gradient likewise.
std::string messages_of(const Panel& panel, const svg::Axis& x) {
  std::string activations;
  std::string gradients;
  const Schedule& schedule = panel.schedule;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Span& span : panel.timeline.ranks[rank]) {
      const Action& action = span.action;
      const bool forward = action.kind == Kind::kForward;
      if (!forward && action.kind != Kind::kBackward && action.kind != Kind::kInputGradient)
        continue;
      const int reader = action.stage + (forward ? 1 : -1);
      if (reader < 0 || reader >= schedule.stages()) continue;
      const int to = schedule.rank_of_stage[reader];
      if (to == rank) continue;
      // From the side of the row that faces the reader to that of the reader's row.
      const bool down = to > rank;
      (forward ? activations : gradients) += fmt::format(
          "M{:.1f} {:.0f}L{:.1f} {:.0f}", x(span.end), panel.row(rank) + (down ? kBoxes : 0),
          x(span.end + kMessage), panel.row(to) + (down ? 0 : kBoxes));
    }
  }
  const auto path = [](const std::string& d, const char* color) {
    return fmt::format("<path class=\"messages\" d=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", d,
                       color);
  };
  return path(activations, "#2f6fb0") + path(gradients, "#c7702b");
}

std::string stages_of(const Schedule& schedule, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage)
    if (schedule.rank_of_stage[stage] == rank) stages.push_back(stage);
  return fmt::format("stage{} {}", stages.size() > 1 ? "s" : "", fmt::join(stages, ", "));
}

std::string drawn(const Panel& panel, double most, const svg::Axis& x) {
  const double most_held = *std::max_element(panel.peaks.begin(), panel.peaks.end());
  const Timeline& timeline = panel.timeline;
  // The share is of the time from the begin of the first rank to the end of the last.
  double busy = 0;
  for (const double time : timeline.busy) busy += time;
  const double lost = 1 - busy / (timeline.makespan() * panel.schedule.ranks());
  std::string text = fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\"><tspan font-weight=\"bold\">{}</tspan>: {:.0f} % of the "
      "time "
      "is lost, a rank holds at most {:g} micro-batches</text>\n",
      kLeft, panel.top + 20, svg::escaped(panel.schedule.name), 100 * lost, most_held);
  for (int rank = 0; rank < panel.schedule.ranks(); ++rank) {
    text += svg::label(8, panel.row(rank) + 14, fmt::format("rank {}", rank));
    text += fmt::format("<text x=\"8\" y=\"{:.0f}\" font-size=\"10\">{}</text>\n",
                        panel.row(rank) + 28, stages_of(panel.schedule, rank));
    text += boxes_of(panel, rank, x) + held_by(panel, rank, most, x);
  }
  return text + messages_of(panel, x);
}

}  // namespace

std::string schedule_plot(const std::string& title, const std::vector<Schedule>& schedules) {
  std::vector<Panel> panels;
  double end = kTableTop;
  double longest = 0;
  double most = 0;
  for (const Schedule& schedule : schedules) {
    Panel panel = panel_of(schedule);
    panel.top = end;
    end = panel.row(schedule.ranks());
    longest = std::max(longest, panel.timeline.makespan());
    most = std::max(most, *std::max_element(panel.peaks.begin(), panel.peaks.end()));
    panels.push_back(std::move(panel));
  }
  const svg::Axis x{0, longest, kLeft, kTableWidth - 60};
  std::string text = svg::opening(kTableWidth, end + 108, kLeft, title);
  for (const Panel& panel : panels) text += drawn(panel, most, x);
  text += svg::legend(kLeft, end + 22,
                      {{kForwardColor,
                        "forward pass of the micro-batch with that number, and its "
                        "activation on the way to the next stage"},
                       {kGradientColor,
                        "backward pass, or the gradient of the stage's input alone; "
                        "that gradient on the way to the stage before"},
                       {kWeightColor, "gradient of the stage's weights"},
                       {kHeldColor, "micro-batches whose activations the rank holds"}});
  return text + "</svg>\n";
}

}  // namespace shoal::plan
