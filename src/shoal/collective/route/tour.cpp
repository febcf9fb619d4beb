#include "shoal/collective/route/tour.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
/// The local search ends after so many edges were looked at, a second of work at most. A count and
/// no clock: all ranks stop at the same place.
constexpr std::int64_t kMostLooks = 200'000'000;

std::vector<int> natural(int places) {
  std::vector<int> order(static_cast<std::size_t>(places));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Finds the best tour of few places. A set of places is a mask without place 0, from which every
/// tour begins.
class BestTour {
 public:
  explicit BestTour(const EdgeCosts& costs)
      : costs_(costs), others_(costs.places() - 1), sets_(std::size_t{1} << others_) {}

  std::vector<int> find() {
    std::vector<std::int64_t> steps;
    for (int from = 0; from <= others_; ++from) {
      for (int to = 0; to <= others_; ++to)
        if (from != to) steps.push_back(costs_.at(from, to));
    }
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    // The least threshold below which there is a tour at all.
    const auto least =
        std::partition_point(steps.begin(), steps.end(), [&](auto most) { return !exists(most); });
    return of_least_sum(*least);
  }

 private:
  static std::size_t bit(int place) { return std::size_t{1} << (place - 1); }

  /// Tells whether a tour has no edge above `most`. `ends[set]`: the places at which a way from 0
  /// through all of the set can end.
  bool exists(std::int64_t most) const {
    std::vector<std::size_t> ends(sets_, 0);
    std::vector<std::size_t> next(static_cast<std::size_t>(others_) + 1, 0);
    for (int from = 0; from <= others_; ++from) {
      for (int to = 1; to <= others_; ++to) {
        if (from != to && costs_.at(from, to) <= most)
          next[static_cast<std::size_t>(from)] |= bit(to);
      }
    }
    for (int place = 1; place <= others_; ++place)
      if ((next[0] & bit(place)) != 0) ends[bit(place)] = bit(place);
    for (std::size_t set = 1; set < sets_; ++set) {
      for (int end = 1; end <= others_; ++end) {
        if ((ends[set] & bit(end)) == 0) continue;
        std::size_t reached = next[static_cast<std::size_t>(end)] & ~set;
        for (; reached != 0; reached &= reached - 1) {
          const std::size_t one = reached & -reached;
          ends[set | one] |= one;
        }
      }
    }
    for (int end = 1; end <= others_; ++end)
      if ((ends[sets_ - 1] & bit(end)) != 0 && costs_.at(end, 0) <= most) return true;
    return false;
  }

  std::int64_t& rest(std::size_t set, int end) {
    return rest_[set * (static_cast<std::size_t>(others_) + 1) + static_cast<std::size_t>(end)];
  }

  /// Returns the cost of going on to `place`, visit the rest and come back to 0.
  std::int64_t with(std::size_t set, int end, int place, std::int64_t most) {
    const std::int64_t step = costs_.at(end, place);
    const std::int64_t after = rest(set | bit(place), place);
    return step > most || after == kNever ? kNever : step + after;
  }

  /// Fills `rest(set, end)`, the least cost of a way from `end` through all places that are not in
  /// `set` to 0, from full sets to small ones; then goes forward, each time to the lowest place
  /// from which that cost is met.
  std::vector<int> of_least_sum(std::int64_t most) {
    rest_.assign(sets_ * (static_cast<std::size_t>(others_) + 1), kNever);
    for (int end = 1; end <= others_; ++end)
      if (costs_.at(end, 0) <= most) rest(sets_ - 1, end) = costs_.at(end, 0);
    for (std::size_t set = sets_ - 1; set-- > 0;) {
      for (int end = 0; end <= others_; ++end) {
        if (end == 0 ? set != 0 : (set & bit(end)) == 0) continue;
        for (int place = 1; place <= others_; ++place) {
          if ((set & bit(place)) == 0)
            rest(set, end) = std::min(rest(set, end), with(set, end, place, most));
        }
      }
    }
    std::vector<int> order{0};
    for (std::size_t set = 0; set != sets_ - 1; set |= bit(order.back())) {
      const int end = order.back();
      for (int place = 1; place <= others_; ++place) {
        if ((set & bit(place)) != 0 || with(set, end, place, most) != rest(set, end)) continue;
        order.push_back(place);
        break;
      }
    }
    return order;
  }

  const EdgeCosts& costs_;
  const int others_;
  const std::size_t sets_;
  std::vector<std::int64_t> rest_;
};

std::vector<int> nearest_neighbours(const EdgeCosts& costs, int first) {
  std::vector<int> order{first};
  std::vector<int> left = natural(costs.places());
  std::erase(left, first);
  while (!left.empty()) {
    const auto nearest = std::min_element(left.begin(), left.end(), [&](int a, int b) {
      return costs.at(order.back(), a) < costs.at(order.back(), b);
    });
    order.push_back(*nearest);
    left.erase(nearest);
  }
  return order;
}

/// Makes a tour better as long as a single change does so.
class LocalSearch {
 public:
  LocalSearch(const EdgeCosts& costs, std::vector<int> order)
      : costs_(costs), order_(std::move(order)), cost_(cost_of(costs, order_)) {}

  std::vector<int> run() {
    while (looks_ < kMostLooks && (turn_a_part() || move_a_part())) {
    }
    return std::move(order_);
  }

 private:
  bool keep_if_better(const std::vector<int>& changed) {
    looks_ += costs_.places();
    const TourCost cost = cost_of(costs_, changed);
    if (cost >= cost_) return false;
    order_ = changed;
    cost_ = cost;
    return true;
  }

  /// 2-opt. The inner edges of the part are passed in the other direction, and may cost something
  /// else there.
  bool turn_a_part() {
    for (std::size_t begin = 0; begin + 1 < order_.size(); ++begin) {
      for (std::size_t end = begin + 2; end <= order_.size(); ++end) {
        if (looks_ > kMostLooks) return false;
        std::vector<int> changed = order_;
        std::reverse(changed.begin() + static_cast<std::ptrdiff_t>(begin),
                     changed.begin() + static_cast<std::ptrdiff_t>(end));
        if (keep_if_better(changed)) return true;
      }
    }
    return false;
  }

  /// Or-opt: up to three places that follow each other go somewhere else.
  bool move_a_part() {
    for (std::size_t length = 1; length <= 3; ++length) {
      for (std::size_t from = 0; from + length <= order_.size(); ++from) {
        std::vector<int> others = order_;
        const auto first = others.begin() + static_cast<std::ptrdiff_t>(from);
        const std::vector<int> part(first, first + static_cast<std::ptrdiff_t>(length));
        others.erase(first, first + static_cast<std::ptrdiff_t>(length));
        for (std::size_t to = 0; to <= others.size(); ++to) {
          if (looks_ > kMostLooks) return false;
          std::vector<int> changed = others;
          changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(to), part.begin(),
                         part.end());
          if (keep_if_better(changed)) return true;
        }
      }
    }
    return false;
  }

  const EdgeCosts& costs_;
  std::vector<int> order_;
  TourCost cost_;
  std::int64_t looks_ = 0;
};

std::vector<int> good_tour(const EdgeCosts& costs) {
  std::vector<int> best = natural(costs.places());
  for (int first = 0; first < std::min(costs.places(), 64); ++first) {
    std::vector<int> order = nearest_neighbours(costs, first);
    if (cost_of(costs, order) < cost_of(costs, best)) best = std::move(order);
  }
  best = LocalSearch(costs, std::move(best)).run();
  std::rotate(best.begin(), std::find(best.begin(), best.end(), 0), best.end());
  return best;
}

}  // namespace

EdgeCosts::EdgeCosts(int places, const std::function<std::int64_t(int, int)>& cost)
    : places_(places) {
  SHOAL_USER_CHECK(places >= 1, "tour", "{} places", places);
  for (int from = 0; from < places; ++from) {
    for (int to = 0; to < places; ++to) {
      const std::int64_t value = from == to ? 0 : cost(from, to);
      SHOAL_USER_CHECK(value >= 0, "tour", "from {} to {} costs {}", from, to, value);
      costs_.push_back(value);
    }
  }
}

TourCost cost_of(const EdgeCosts& costs, std::span<const int> order) {
  TourCost total;
  for (std::size_t i = 0; order.size() > 1 && i < order.size(); ++i) {
    const std::int64_t step = costs.at(order[i], order[(i + 1) % order.size()]);
    total.slowest = std::max(total.slowest, step);
    total.sum += step;
  }
  return total;
}

std::vector<int> bottleneck_tour(const EdgeCosts& costs) {
  if (costs.places() <= 2) return natural(costs.places());
  return costs.places() <= kMostPlacesOfBestTour ? BestTour(costs).find() : good_tour(costs);
}

}  // namespace shoal::collective
