#include "apps/shoal/scaling/scaling_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "shoal/base/svg.h"

namespace shoal::apps {
namespace {

/// A part of what is lost is named from this part of the step on.
constexpr double kWorthAName = 0.02;
constexpr double kWidth = 640, kHeight = 420, kLeft = 84, kRight = 24, kTop = 52, kBottom = 58;

struct Part {
  double seconds;
  const char* name;
  const char* why;
};

std::array<Part, 4> parts_of(const LostTime& lost) {
  return {{{lost.communication, "communication", "communication, and waiting for other ranks"},
           {lost.data, "data", "waiting for data"},
           {lost.update, "the update", "the update, of which a rank makes more than its part"},
           {lost.computing, "computing",
            "computing: ranks share memory and caches, and each has fewer rows to compute on"}}};
}

double ideal_s(const ScalingPoint& first, const ScalingPoint& point) {
  return first.step_s * static_cast<double>(first.ranks) / static_cast<double>(point.ranks);
}

std::string what_is_lost(const ScalingCurve& curve) {
  const ScalingPoint& first = curve.points.front();
  const ScalingPoint& last = curve.points.back();
  if (&first == &last) return "";
  std::string text = fmt::format(
      "With {} ranks a step takes {:.1f} ms, and {:.1f} if they only divided what {} {}. Between "
      "them lie\n",
      last.ranks, 1e3 * last.step_s, 1e3 * ideal_s(first, last), first.ranks,
      first.ranks == 1 ? "does" : "do");
  for (const Part& part : parts_of(lost_time(first, last)))
    text += fmt::format("  {:>8.1f} ms  {}\n", 1e3 * part.seconds, part.why);
  return text + fmt::format("Bound by: {}\n", bound(first, last));
}

}  // namespace

LostTime lost_time(const ScalingPoint& first, const ScalingPoint& point) {
  const double divided = static_cast<double>(first.ranks) / static_cast<double>(point.ranks);
  LostTime lost;
  lost.communication = point.comm_exposed_s - divided * first.comm_exposed_s;
  lost.data = point.data_wait_s - divided * first.data_wait_s;
  if (point.planned && first.planned)
    lost.update = point.planned->optimizer - divided * first.planned->optimizer;
  lost.computing =
      point.step_s - ideal_s(first, point) - lost.communication - lost.data - lost.update;
  return lost;
}

std::string bound(const ScalingPoint& first, const ScalingPoint& point) {
  const auto parts = parts_of(lost_time(first, point));
  const auto largest = std::max_element(
      parts.begin(), parts.end(),
      [](const Part& one, const Part& other) { return one.seconds < other.seconds; });
  return largest->seconds < kWorthAName * point.step_s ? "nothing" : largest->name;
}

std::string scaling_text(const ScalingCurve& curve) {
  std::string text =
      fmt::format("{}\n  {:>5} {:>12} {:>12} {:>7} {:>9} {:>13} {:>8}\n", curve.title, "ranks",
                  "a step, ms", curve.unit + "/s", "times", "of ideal", "planned, ms", "error");
  const ScalingPoint& first = curve.points.front();
  for (const ScalingPoint& point : curve.points) {
    const double times = first.step_s / point.step_s;
    text += fmt::format("  {:>5} {:>12.1f} {:>12.4g} {:>7.2f} {:>7.0f} %", point.ranks,
                        1e3 * point.step_s, curve.work / point.step_s, times,
                        100 * ideal_s(first, point) / point.step_s);
    if (point.planned) {
      const double planned = point.planned->all();
      text +=
          fmt::format(" {:>13.1f} {:>+6.1f} %", 1e3 * planned, 100 * (planned / point.step_s - 1));
    }
    text += "\n";
  }
  return text + what_is_lost(curve);
}

std::string scaling_json(const ScalingCurve& curve) {
  const ScalingPoint& first = curve.points.front();
  auto points = nlohmann::ordered_json::array();
  for (const ScalingPoint& point : curve.points) {
    nlohmann::ordered_json json{{"ranks", point.ranks},
                                {"measured_step_s", point.step_s},
                                {"data_wait_s", point.data_wait_s},
                                {"comm_exposed_s", point.comm_exposed_s}};
    if (point.planned) json["planned_step_s"] = point.planned->all();
    const LostTime lost = lost_time(first, point);
    json["lost_s"] = {{"communication", lost.communication},
                      {"data", lost.data},
                      {"update", lost.update},
                      {"computing", lost.computing}};
    json["bound_by"] = bound(first, point);
    points.push_back(std::move(json));
  }
  return nlohmann::ordered_json{{"title", curve.title},
                                {"unit", curve.unit},
                                {"of_a_step", curve.work},
                                {"points", std::move(points)}}
             .dump() +
         "\n";
}

std::string scaling_plot(const ScalingCurve& curve) {
  constexpr const char* kMeasured = "#0072b2";
  constexpr const char* kPlanned = "#d55e00";
  constexpr const char* kIdeal = "#999";
  const ScalingPoint& first = curve.points.front();
  const auto rate = [&](double seconds) { return curve.work / seconds; };
  double most = 0;
  for (const ScalingPoint& point : curve.points) {
    for (const double seconds :
         {ideal_s(first, point), point.step_s, point.planned ? point.planned->all() : point.step_s})
      most = std::max(most, rate(seconds));
  }
  const svg::Axis x{0, static_cast<double>(curve.points.back().ranks), kLeft, kWidth - kRight};
  const svg::Axis y{0, 1.05 * most, kHeight - kBottom, kTop};
  std::string out = svg::opening(kWidth, kHeight, kLeft, curve.title);
  out += svg::left_scale(y, x.from, x.to, curve.unit + " a second");
  // Ranks are whole numbers, so the axis has those that were measured.
  for (const ScalingPoint& point : curve.points) {
    const double at = x(static_cast<double>(point.ranks));
    out += svg::line(at, y.to, at, y.from, "stroke=\"#e2e2e2\"");
    out += svg::label(at, y.from + 18, fmt::format("{}", point.ranks), "middle");
  }
  out += svg::label((x.from + x.to) / 2, y.from + 40, "ranks", "middle");
  out += svg::line(x(static_cast<double>(first.ranks)), y(rate(first.step_s)), x(x.high),
                   y(rate(ideal_s(first, curve.points.back()))),
                   fmt::format("stroke=\"{}\" stroke-dasharray=\"5 4\"", kIdeal));
  const auto draw = [&](const char* color, const auto& seconds_of) {
    std::string path;
    std::string dots;
    for (const ScalingPoint& point : curve.points) {
      const std::optional<double> seconds = seconds_of(point);
      if (!seconds) continue;
      const double right = x(static_cast<double>(point.ranks));
      const double down = y(rate(*seconds));
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", right, down);
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", right,
                          down, color);
    }
    out +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n{}",
                    path, color, dots);
  };
  std::vector<std::pair<const char*, std::string>> legend{{kMeasured, "measured"}};
  if (first.planned) {
    draw(kPlanned, [](const ScalingPoint& point) {
      return point.planned ? std::optional(point.planned->all()) : std::nullopt;
    });
    legend.emplace_back(kPlanned, "planned");
  }
  draw(kMeasured, [](const ScalingPoint& point) { return std::optional(point.step_s); });
  legend.emplace_back(kIdeal, "in proportion");
  out += svg::legend(kLeft + 16, kTop + 14, legend);
  if (curve.points.size() > 1) {
    out += svg::label(x.to, y.from - 10,
                      fmt::format("bound by: {}", bound(first, curve.points.back())), "end");
  }
  return out + "</svg>\n";
}

}  // namespace shoal::apps
