#include "tests/collective/step_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/svg.h"

namespace shoal::collective {
namespace {

constexpr double kLeft = 64;
constexpr double kTop = 52;
constexpr double kHead = 34;     ///< above the rows of a table
constexpr double kRow = 30;      ///< of a rank
constexpr double kCell = 18;     ///< an element
constexpr double kBetween = 62;  ///< between two states of a rank: messages
constexpr double kTableGap = 20;

/// The ranks whose values each element sums up, as bits.
using Sums = std::vector<std::uint32_t>;

struct DrawnMessage {
  int from;
  int sent;  ///< in which round
  Range range;
  Sums sums;
};

struct Arrow {
  int from;
  int to;
  int sent;
  int arrived;  ///< after which round
  Range range;
  bool added;
};

/// The sends and sums of a table, round by round.
struct Course {
  std::vector<std::vector<Sums>> states;  ///< [rank][round]; round 0 is the beginning
  std::vector<Arrow> arrows;

  int rounds() const { return static_cast<int>(states.front().size()) - 1; }
};

/// Executes a table on sets of ranks.
class Execution {
 public:
  Execution(const StepTable& table, std::size_t count)
      : table_(table), next_(table.size()), round_(table.size()), held_(table.size()) {
    for (std::size_t rank = 0; rank < table.size(); ++rank)
      course_.states.push_back({Sums(count, 1u << rank)});
  }

  Course run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < ranks(); ++rank)
        while (next_[rank] < table_[rank].size() && step(rank)) progress = true;
    }
    int last = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      SHOAL_USER_CHECK(next_[rank] == table_[rank].size(), "step_plot",
                       "rank {} waits for a message that never comes in step {}", rank,
                       next_[rank]);
      last = std::max(last, round_[rank]);
    }
    for (int rank = 0; rank < ranks(); ++rank) state_after(rank, last);
    return std::move(course_);
  }

 private:
  int ranks() const { return static_cast<int>(table_.size()); }

  /// Returns what a rank has after a round; until something arrives that is what it had before.
  Sums& state_after(int rank, int round) {
    auto& states = course_.states[rank];
    while (static_cast<int>(states.size()) <= round) states.push_back(states.back());
    return states[round];
  }

  /// Executes the next step of a rank; false where its message has not been sent yet.
  bool step(int rank) {
    const Step& step = table_[rank][next_[rank]];
    const Range range = step.range;
    if (range.size() > 0 && step.action == Action::kSend) {
      const Sums& state = state_after(rank, round_[rank]);
      between_[{rank, step.peer}].push_back(
          {rank, round_[rank], range,
           Sums(state.begin() + range.begin, state.begin() + range.end)});
    } else if (range.size() > 0 && step.action == Action::kFold) {
      for (const DrawnMessage& message : held_[rank]) add(rank, range, message.sums);
      held_[rank].clear();
    } else if (range.size() > 0) {
      auto& messages = between_[{step.peer, rank}];
      if (messages.empty()) return false;
      const DrawnMessage message = std::move(messages.front());
      messages.pop_front();
      round_[rank] = std::max(round_[rank], message.sent + 1);
      receive(rank, step, message);
    }
    ++next_[rank];
    return true;
  }

  void receive(int rank, const Step& step, const DrawnMessage& message) {
    course_.arrows.push_back({message.from, rank, message.sent, round_[rank], message.range,
                              step.action != Action::kReceiveCopy});
    if (step.action == Action::kHold) {
      held_[rank].push_back(message);
    } else if (step.action == Action::kReceiveReduce) {
      add(rank, step.range, message.sums);
    } else {
      Sums& state = state_after(rank, round_[rank]);
      std::copy(message.sums.begin(), message.sums.end(), state.begin() + step.range.begin);
    }
  }

  void add(int rank, Range range, const Sums& sums) {
    Sums& state = state_after(rank, round_[rank]);
    for (std::size_t i = 0; i < range.size(); ++i) state[range.begin + i] |= sums[i];
  }

  const StepTable& table_;
  std::vector<std::size_t> next_;  ///< step, by rank
  std::vector<int> round_;         ///< by rank
  std::vector<std::vector<DrawnMessage>> held_;
  std::map<std::pair<int, int>, std::deque<DrawnMessage>> between_;  ///< by sender and receiver
  Course course_;
};

/// Places of the drawings of one table.
struct Place {
  double top;
  std::size_t count;

  double state(int round) const { return kLeft + round * (kCell * count + kBetween); }
  double row(int rank) const { return top + kHead + kRow * rank; }
};

/// From white for one rank's value to blue for the sum of all.
std::string shade(int summed, int ranks) {
  const double part = ranks > 1 ? static_cast<double>(summed - 1) / (ranks - 1) : 1;
  return fmt::format("rgb({:.0f},{:.0f},{:.0f})", 255 - 128 * part, 255 - 77 * part,
                     255 - 26 * part);
}

std::string cells(const Course& course, int rank, int round, const Place& place) {
  const Sums& state = course.states[rank][round];
  std::string text;
  for (std::size_t i = 0; i < state.size(); ++i) {
    const int summed = std::popcount(state[i]);
    const double x = place.state(round) + kCell * i;
    text += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"{}\" "
        "stroke=\"#777\"/>\n",
        x, place.row(rank), kCell, kCell, shade(summed, static_cast<int>(course.states.size())));
    text += fmt::format(
        "<text class=\"summed\" x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" "
        "text-anchor=\"middle\">{}</text>\n",
        x + kCell / 2, place.row(rank) + 13, summed);
  }
  return text;
}

std::string arrow(const Arrow& arrow, const Place& place) {
  const double from = place.state(arrow.sent) + kCell * place.count + 3;
  const double to = place.state(arrow.arrived) - 5;
  const bool part = arrow.range.size() < place.count;
  std::string text = fmt::format(
      "<path class=\"message\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\" "
      "stroke-width=\"1.3\" marker-end=\"url(#head)\"/>\n",
      from, place.row(arrow.from) + kCell / 2, to, place.row(arrow.to) + kCell / 2,
      arrow.added ? "#c7702b" : "#3f8f3f");
  if (part) {
    // A line under what of the receiver's elements the message was for.
    text += svg::line(
        place.state(arrow.arrived) + kCell * arrow.range.begin + 1, place.row(arrow.to) + kCell + 3,
        place.state(arrow.arrived) + kCell * arrow.range.end - 1, place.row(arrow.to) + kCell + 3,
        fmt::format("stroke=\"{}\" stroke-width=\"3\"", arrow.added ? "#c7702b" : "#3f8f3f"));
  }
  return text;
}

std::string drawn(const NamedTable& named, const Course& course, const Place& place) {
  std::size_t moved = 0;
  for (const Arrow& arrow : course.arrows) moved += arrow.range.size();
  std::string text = fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.1f}\"><tspan font-weight=\"bold\">{}</tspan>: {} rounds, {} "
      "messages, {} elements sent</text>\n",
      kLeft, place.top + 20, svg::escaped(named.name), course.rounds(), course.arrows.size(),
      moved);
  for (int rank = 0; rank < static_cast<int>(course.states.size()); ++rank) {
    text += svg::label(8, place.row(rank) + 13, fmt::format("rank {}", rank));
    for (int round = 0; round <= course.rounds(); ++round)
      text += cells(course, rank, round, place);
  }
  for (const Arrow& one : course.arrows) text += arrow(one, place);
  return text;
}

}  // namespace

std::string step_plot(const std::string& title, const std::vector<NamedTable>& all_reduces,
                      std::size_t count) {
  std::vector<Course> courses;
  int rounds = 0;
  double height = kTop;
  std::vector<Place> places;
  for (const NamedTable& named : all_reduces) {
    SHOAL_USER_CHECK(!named.table.empty() && named.table.size() <= 16, "step_plot",
                     "1 to 16 ranks can be drawn: ranks={}", named.table.size());
    courses.push_back(Execution(named.table, count).run());
    rounds = std::max(rounds, courses.back().rounds());
    places.push_back({height, count});
    height = places.back().row(static_cast<int>(named.table.size())) + kTableGap;
  }
  const double width = Place{0, count}.state(rounds) + kCell * count + 20;
  std::string text = svg::opening(std::max(width, 560.0), height + 76, kLeft, title);
  text +=
      "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" "
      "markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" "
      "fill=\"#555\"/></marker></defs>\n";
  for (std::size_t i = 0; i < courses.size(); ++i)
    text += drawn(all_reduces[i], courses[i], places[i]);
  text += svg::legend(kLeft, height + 14,
                      {{"#7fb2e5", "an element of a rank, with the number of ranks it sums up"},
                       {"#c7702b", "message that is added to what the receiver has there"},
                       {"#3f8f3f", "message that replaces it: a finished sum"}});
  return text + "</svg>\n";
}

}  // namespace shoal::collective
