#include "shoal/plan/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shoal/base/svg.h"
#include "shoal/base/units.h"

namespace shoal::plan {
namespace {

using svg::bottom_scale;
using svg::label;
using svg::line;

constexpr double kWidth = 960;
constexpr double kTop = 52;
constexpr const char* kBlue = "#3b6fb6";
constexpr const char* kYellow = "#edae49";
constexpr const char* kRed = "#d1495b";
constexpr const char* kGreen = "#66a182";
constexpr const char* kGrey = "#9aa5b1";

std::string box(double x, double y, double width, double height, const char* color) {
  return fmt::format(
      "<rect class=\"value\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
      "fill=\"{}\"/>\n",
      x, y, width, height, color);
}

struct Category {
  const char* name;
  const char* color;
  double MemoryUse::*bytes;
};
/// The categories from the bottom upwards; those that stay longest come first.
constexpr std::array<Category, 8> kCategories{{{"parameters", kBlue, &MemoryUse::parameters},
                                               {"optimizer", "#7a5fa6", &MemoryUse::optimizer},
                                               {"gradients", kRed, &MemoryUse::gradients},
                                               {"activations", kYellow, &MemoryUse::activations},
                                               {"gathered", "#4fa3a5", &MemoryUse::gathered},
                                               {"buffers", kGreen, &MemoryUse::communication},
                                               {"workspace", kGrey, &MemoryUse::workspace},
                                               {"staging", "#b08968", &MemoryUse::staging}}};

std::string stacked(const MemoryUse& use, double left, double width, const svg::Axis& y) {
  std::string text;
  double below = 0;
  for (const Category& category : kCategories) {
    const double bytes = use.*category.bytes / kGiB;
    if (bytes > 0)
      text += box(left, y(below + bytes), width, y(below) - y(below + bytes), category.color);
    below += bytes;
  }
  return text;
}

/// One part of a step.
struct Part {
  const char* name;
  const char* color;
  double seconds;
};

/// Returns the parts in the order in which a rank runs them. Their sum is `time.all()`.
std::vector<Part> parts_of(const StepTime& time) {
  // What is left of the pipeline: busiest and mean rank are mixed here, so it is kept from going
  // below 0.
  const double compute = time.pipeline - time.bubble - time.communication - time.recomputed;
  return {{"computation", kBlue, std::max(0.0, compute)},
          {"recomputation", "#7a5fa6", time.recomputed},
          {"exchange in blocks", kYellow, time.communication},
          {"bubbles", kGrey, time.bubble},
          {"gradients, parameters", kRed, time.data_exposed},
          {"optimizer", kGreen, time.optimizer}};
}

double per_device(const ModelSpec& spec, const Cluster& cluster, const Candidate& candidate) {
  return static_cast<double>(candidate.training.tokens_per_step(spec)) / candidate.time.all() /
         static_cast<double>(cluster.devices());
}

std::string describe(const Training& training) {
  constexpr const char* kRecompute[] = {"", ", recompute part", ", recompute"};
  return fmt::format("{}, ZeRO {}, batch {}{}{}", describe_mesh(training), training.zero_stage,
                     training.micro_batch, kRecompute[static_cast<int>(training.recompute)],
                     training.offload_optimizer ? ", offload" : "");
}

}  // namespace

std::string memory_plot(const Plan& plan) {
  constexpr double kHeight = 520;
  constexpr double kLeft = 64;
  constexpr double kRight = 150;
  constexpr double kBottom = 78;
  double most = plan.capacity_bytes / kGiB;
  for (const RankMemory& rank : plan.memory) most = std::max(most, rank.peak().use.all() / kGiB);
  const svg::Axis y{0, 1.04 * most, kHeight - kBottom, kTop};
  std::string text = svg::opening(
      kWidth, kHeight, 24,
      fmt::format("{}: memory of one device by pipeline rank and moment, GiB", plan.spec.name));
  // A group of bars for each pipeline rank, a bar for each moment of its step.
  text += svg::left_scale(y, kLeft, kWidth - kRight);
  const double group = (kWidth - kRight - kLeft) / static_cast<double>(plan.memory.size());
  for (std::size_t i = 0; i < plan.memory.size(); ++i) {
    const RankMemory& rank = plan.memory[i];
    const double left = kLeft + group * (static_cast<double>(i) + 0.06);
    const double width = 0.88 * group / static_cast<double>(rank.phases.size());
    for (std::size_t phase = 0; phase < rank.phases.size(); ++phase) {
      const double at = left + width * static_cast<double>(phase);
      text += stacked(rank.phases[phase].use, at, 0.92 * width, y);
      if (width > 90) text += label(at + width / 2, y.from + 18, rank.phases[phase].name, "middle");
    }
    // The bar has room for so many numbers.
    const auto every = static_cast<std::size_t>(std::max(1.0, 24 / group));
    if (i % every == 0) {
      text += label(kLeft + group * (static_cast<double>(i) + 0.5), y.from + 36,
                    fmt::format("{}", rank.rank), "middle");
    }
  }
  std::string moments;
  for (const MemoryPhase& phase : plan.memory.front().phases)
    moments += (moments.empty() ? "" : ", ") + phase.name;
  text += label((kLeft + kWidth - kRight) / 2, kHeight - 14,
                fmt::format("pipeline rank; from left to right: {}", moments), "middle");
  const double capacity = y(plan.capacity_bytes / kGiB);
  text +=
      line(kLeft, capacity, kWidth - kRight, capacity, "stroke=\"#333\" stroke-dasharray=\"6 4\"") +
      label(kWidth - kRight + 8, capacity + 4, "device");
  std::vector<std::pair<const char*, std::string>> entries;
  // The legend lists from the top downwards what some bar shows.
  for (auto category = kCategories.rbegin(); category != kCategories.rend(); ++category) {
    for (const RankMemory& rank : plan.memory) {
      if (std::any_of(rank.phases.begin(), rank.phases.end(),
                      [&](const MemoryPhase& phase) { return phase.use.*category->bytes > 0; })) {
        entries.emplace_back(category->color, category->name);
        break;
      }
    }
  }
  return text + svg::legend(kWidth - kRight + 14, std::max(kTop + 14, capacity + 34), entries) +
         "</svg>\n";
}

std::string time_plot(const Plan& plan) {
  constexpr double kLeft = 190;
  constexpr double kRight = 110;
  constexpr double kRow = 34;
  const auto parts = parts_of(plan.time);
  const double rows = static_cast<double>(parts.size()) + 1;
  const double bottom = kTop + 12 + kRow * rows;
  const double all = plan.time.all();
  // Short steps are drawn in milliseconds.
  const double unit = all < 1 ? 1e3 : 1;
  const svg::Axis x{0, std::max(1e-9, unit * all), kLeft, kWidth - kRight};
  std::string text = svg::opening(kWidth, bottom + 56, 24,
                                  fmt::format("{}: where {:.4g} s of a step go ({})",
                                              plan.spec.name, all, describe_mesh(plan.training)));
  text += bottom_scale(x, kTop, bottom, unit > 1 ? "ms" : "seconds");
  double done = 0;
  double row = kTop + 12;
  for (const Part& part : parts) {
    const double begin = unit * done;
    const double end = unit * (done + part.seconds);
    if (part.seconds > 0) text += box(x(begin), row, x(end) - x(begin), kRow - 10, part.color);
    text += label(kLeft - 10, row + 16, part.name, "end") +
            label(x(end) + 6, row + 16, fmt::format("{:.1f} %", 100 * part.seconds / all));
    done += part.seconds;
    row += kRow;
  }
  const double hidden = std::min(plan.time.data_hidden, all);
  if (hidden > 0) text += box(x(0), row, x(unit * hidden) - x(0), kRow - 10, "#e8b4bb");
  text += label(kLeft - 10, row + 16, "hidden exchange", "end") +
          label(x(unit * hidden) + 6, row + 16, fmt::format("{:.1f} %", 100 * hidden / all));
  return text + "</svg>\n";
}

std::string search_plot(const ModelSpec& spec, const Cluster& cluster,
                        const std::vector<Candidate>& found) {
  constexpr double kLeft = 510;
  constexpr double kRight = 70;
  constexpr double kRow = 30;
  const double bottom = kTop + 40 + kRow * static_cast<double>(found.size());
  std::string text = svg::opening(kWidth, bottom + 56, 24,
                                  fmt::format("{} on {} {}: tokens a second and device", spec.name,
                                              cluster.devices(), cluster.device.name));
  if (found.empty()) return text + label(24, kTop + 20, "nothing fits") + "</svg>\n";
  double most = 0;
  for (const Candidate& candidate : found)
    most = std::max(most, per_device(spec, cluster, candidate));
  const svg::Axis x{0, 1.02 * most, kLeft, kWidth - kRight};
  text += bottom_scale(x, kTop + 30, bottom,
                       "tokens a second and device, in shares of the step's time");
  double key = 24;
  for (const Part& part : parts_of(found.front().time)) {
    text += svg::legend(key, kTop + 14, {{part.color, part.name}});
    key += 40 + 7.2 * static_cast<double>(std::string_view(part.name).size());
  }
  double row = kTop + 40;
  for (const Candidate& candidate : found) {
    const double rate = per_device(spec, cluster, candidate);
    double done = 0;
    for (const Part& part : parts_of(candidate.time)) {
      // A bar is as long as the rate, and divided as the step's time is.
      const double share = rate * part.seconds / candidate.time.all();
      if (share > 0) text += box(x(done), row, x(done + share) - x(done), kRow - 8, part.color);
      done += share;
    }
    text += label(kLeft - 10, row + 15, describe(candidate.training), "end") +
            label(x(rate) + 6, row + 15, fmt::format("{:.5g}", rate));
    row += kRow;
  }
  return text + "</svg>\n";
}

}  // namespace shoal::plan
