#include "tests/parallel/context_plot.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/svg.h"
#include "shoal/parallel/context/ring_order.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace shoal::parallel {
namespace {

constexpr double kLeft = 64;
constexpr double kCell = 6;      ///< width of a column of the sequence
constexpr double kStrip = 14;    ///< height of a rank's columns
constexpr double kRow = 44;      ///< height of a rank
constexpr double kBetween = 50;  ///< from a step to the next: what travels
constexpr double kHead = 44;     ///< above the ranks of a pass: its name and the steps
constexpr double kFirstPass = 48;
constexpr double kGradientBelow = 6;  ///< a gradient's line, below that of keys and values

/// By the rank that holds the columns; more ranks than colors begin again.
constexpr std::array<const char*, 8> kColors{"#7fb2e5", "#f2b880", "#9bcf9b", "#c9b6e0",
                                             "#e59a9a", "#b5b5b5", "#8fd3d1", "#d9cf7a"};

const char* color_of(int rank) { return kColors[static_cast<std::size_t>(rank) % kColors.size()]; }

/// The sequence, and which columns of it each rank holds.
struct DrawnRing {
  std::int64_t columns;
  int ranks;
  std::vector<std::vector<std::int64_t>> held;  ///< ascending, by rank

  double width() const { return kCell * static_cast<double>(columns); }
  double x(int step) const { return kLeft + (width() + kBetween) * step; }
  /// The pairs of a query of one rank and a key of another that a causal mask leaves.
  std::int64_t pairs(int queries, int keys) const {
    std::int64_t count = 0;
    for (const std::int64_t query : held[static_cast<std::size_t>(queries)]) {
      for (const std::int64_t key : held[static_cast<std::size_t>(keys)]) count += key <= query;
    }
    return count;
  }
};

DrawnRing ring_of(std::int64_t columns, int ranks) {
  DrawnRing ring{columns, ranks, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor own = columns_of(columns, cut_of(ContextMethod::kRing), ranks, rank);
    const auto* first = own.const_data_ptr<std::int64_t>();
    ring.held.emplace_back(first, first + own.numel());
  }
  return ring;
}

/// The sequence as an outline, and in it the columns of `block`.
std::string strip(const DrawnRing& ring, int block, double x, double y) {
  std::string text;
  for (const std::int64_t column : ring.held[static_cast<std::size_t>(block)]) {
    text += fmt::format(
        "<rect class=\"held\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "fill=\"{}\"/>\n",
        x + kCell * static_cast<double>(column), y, kCell, kStrip, color_of(block));
  }
  return text + fmt::format(
                    "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
                    "fill=\"none\" stroke=\"{}\" stroke-width=\"0.8\"/>\n",
                    x, y, ring.width(), kStrip, svg::kInk);
}

/// A message behind a step: a line with a dot where it arrives, and its words.
struct DrawnMessage {
  const char* what;
  int step;
  int from;
  int to;
  int block;
  double below;  ///< the middle of the strips
  const char* look;
};

std::string drawn_message(const DrawnRing& ring, const DrawnMessage& message, double top) {
  const double middle = top + kHead + kStrip / 2 + message.below;
  const double x = ring.x(message.step) + ring.width() + 2;
  const double end = ring.x(message.step + 1) - 5;
  const double arrival = middle + kRow * message.to;
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.0f}\" y1=\"{:.0f}\" x2=\"{:.0f}\" y2=\"{:.0f}\" stroke=\"{}\" "
      "stroke-width=\"1.5\"{}><title>behind step {}: {} of rank {} from rank {} to rank {}</title>"
      "</line>\n<circle cx=\"{:.0f}\" cy=\"{:.0f}\" r=\"3\" fill=\"{}\"/>\n",
      message.what, x, middle + kRow * message.from, end, arrival, color_of(message.block),
      message.look, message.step, message.what, message.block, message.from, message.to, end,
      arrival, color_of(message.block));
}

/// The messages behind a step. Gradients travel in the backward pass only.
std::string drawn_messages(const DrawnRing& ring, int step, int direction, double top) {
  std::string text;
  for (int rank = 0; rank < ring.ranks; ++rank) {
    const int block = rank_in_ring(rank, direction * step, ring.ranks);
    const int to = rank_in_ring(rank, -direction, ring.ranks);
    if (step + 1 < ring.ranks)
      text += drawn_message(ring, {"keys", step, rank, to, block, 0, ""}, top);
    if (direction == kBackwardVisits && step > 0) {
      text += drawn_message(
          ring, {"gradient", step, rank, to, block, kGradientBelow, " stroke-dasharray=\"4 3\""},
          top);
    }
  }
  return text;
}

/// One pass, from step to step.
std::string drawn_pass(const DrawnRing& ring, const char* name, int direction, double top) {
  std::string text = svg::label(8, top + 14, name);
  for (int step = 0; step < ring.ranks; ++step) {
    text += svg::label(ring.x(step), top + kHead - 8, fmt::format("step {}", step));
    for (int rank = 0; rank < ring.ranks; ++rank) {
      const int block = rank_in_ring(rank, direction * step, ring.ranks);
      const double y = top + kHead + kRow * rank;
      text += strip(ring, block, ring.x(step), y);
      text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"10\">{} pairs</text>\n",
                          ring.x(step), y + kStrip + 12, ring.pairs(rank, block));
    }
    text += drawn_messages(ring, step, direction, top);
  }
  for (int rank = 0; rank < ring.ranks; ++rank)
    text += svg::label(8, top + kHead + kRow * rank + 11, fmt::format("rank {}", rank));
  return text;
}

/// Behind the last step of the backward pass gradients are where their keys are.
std::string homes(const DrawnRing& ring, double top) {
  std::string text = svg::label(ring.x(ring.ranks), top + kHead - 8, "gradients are home");
  for (int rank = 0; rank < ring.ranks; ++rank)
    text += strip(ring, rank, ring.x(ring.ranks), top + kHead + kRow * rank);
  return text;
}

}  // namespace

std::string context_plot(const std::string& title, std::int64_t columns, int ranks) {
  SHOAL_USER_CHECK(ranks > 1, "context plot", "{} ranks: nothing travels", ranks);
  const DrawnRing ring = ring_of(columns, ranks);
  const double height = kHead + kRow * ranks;
  const double backward = kFirstPass + height + 12;
  const double end = backward + height;
  const double right = ring.x(ranks) + std::max(ring.width(), 130.0) + 8;
  return svg::opening(right, end + 66, 8, title) +
         drawn_pass(ring, "forward: queries stay, keys and values travel", kForwardVisits,
                    kFirstPass) +
         drawn_pass(ring, "backward: gradients of keys and values follow", kBackwardVisits,
                    backward) +
         homes(ring, backward) +
         svg::label(
             kLeft, end + 16,
             "filled: the columns of the sequence whose keys and values are here, in the color of "
             "their rank") +
         svg::label(kLeft, end + 34,
                    "pairs: of the rank's queries with these keys, under a causal mask") +
         svg::label(kLeft, end + 52,
                    "solid: keys and values to the next reader; dashed: their gradient, which "
                    "grows on each rank") +
         "</svg>\n";
}

}  // namespace shoal::parallel
