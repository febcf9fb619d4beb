#include "bench/collective/rails_figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shoal/base/svg.h"

namespace shoal::emulation {
namespace {

constexpr double kWidth = 760, kHeight = 440, kLeft = 84, kRight = 200, kTop = 60, kBottom = 64;
constexpr std::array kColors{"#1f77b4", "#d95f02", "#3a923a", "#7b4fa3"};

std::string curve_of(const RailCurve& curve, const svg::Axis& x, const svg::Axis& y,
                     const char* color) {
  std::string path;
  std::string dots;
  for (const auto& [rails, megabits] : curve.by_rails) {
    const double across = x(rails);
    const double up = y(megabits);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", across, up);
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", across, up,
                        color);
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path,
                     color) +
         dots +
         svg::line(x.from, y(curve.plain), x.to, y(curve.plain),
                   fmt::format("stroke=\"{}\" stroke-dasharray=\"6 4\"", color));
}

}  // namespace

std::string rails_figure(const std::string& title, const std::vector<RailCurve>& curves,
                         double link_megabits, int plain_connections) {
  const auto& longest = curves.front().by_rails;
  const svg::Axis x{static_cast<double>(longest.front().first),
                    static_cast<double>(longest.back().first), kLeft, kWidth - kRight, true};
  const svg::Axis y{0, link_megabits, kHeight - kBottom, kTop};
  std::string out = svg::opening(kWidth, kHeight, kLeft, title);
  out += svg::left_scale(y, x.from, x.to, "Mbit/s of payload in each direction");
  // Connections are whole numbers, so the axis has those that were measured.
  for (const auto& [rails, megabits] : longest) {
    out += svg::line(x(rails), y.to, x(rails), y.from, "stroke=\"#e3e3e3\"");
    out += svg::label(x(rails), y.from + 18, fmt::format("{}", rails), "middle");
  }
  out += svg::label((x.from + x.to) / 2, y.from + 42, "rails", "middle");
  std::vector<std::pair<const char*, std::string>> legend;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const char* const color = kColors[i % kColors.size()];
    out += curve_of(curves[i], x, y, color);
    legend.emplace_back(color, fmt::format("{} ms", curves[i].round_trip_ms));
  }
  const double right = kWidth - kRight + 20;
  out += svg::label(right, kTop + 10, "round trip");
  out += svg::legend(right, kTop + 34, legend);
  const double below = kTop + 54 + 20 * static_cast<double>(curves.size());
  out += svg::line(right, below - 4, right + 26, below - 4,
                   fmt::format("stroke=\"{}\" stroke-dasharray=\"6 4\"", svg::kInk));
  out += svg::label(right + 32, below, fmt::format("{} plain TCP", plain_connections));
  out += svg::label(right + 32, below + 18, "connections");
  return out + "</svg>\n";
}

}  // namespace shoal::emulation
