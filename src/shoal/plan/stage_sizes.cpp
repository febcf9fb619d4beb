#include "shoal/plan/stage_sizes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"
#include "shoal/plan/division_rules.h"

namespace shoal::plan {
namespace {

void require_units(std::int64_t units, int stages) {
  SHOAL_USER_CHECK(stages >= 1, "stages", "a pipeline needs at least one stage: stages={}", stages);
  const std::string broken = stages_rule(units, stages);
  SHOAL_USER_CHECK(broken.empty(), "stages", "{}", broken);
}

constexpr double kImpossible = std::numeric_limits<double>::infinity();

/// Finds divisions of a row of units into stages by dynamic programming: `least[s][i]` is the best
/// value of units i ... in stages s ..., where `join` combines the cost of stage s with the best
/// value of what follows it.
class Divisions {
 public:
  Divisions(const std::vector<double>& costs, int stages,
            const std::function<double(double stage, double rest)>& join)
      : join_(join), before_(costs.size() + 1), least_(stages + 1) {
    std::partial_sum(costs.begin(), costs.end(), before_.begin() + 1);
    const std::size_t units = costs.size();
    least_[stages].assign(units + 1, kImpossible);
    least_[stages][units] = 0;
    for (int stage = stages - 1; stage >= 0; --stage) {
      least_[stage].assign(units + 1, kImpossible);
      for (std::size_t begin = 0; begin < units; ++begin) {
        for (std::size_t end = begin + 1; end <= units; ++end)
          least_[stage][begin] = std::min(least_[stage][begin], value(stage, begin, end));
      }
    }
  }

  double best() const { return least_[0][0]; }

  /// Returns the sizes of the best division in which earlier stages have as many units as possible.
  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> result;
    const std::size_t units = before_.size() - 1;
    std::size_t begin = 0;
    for (std::size_t stage = 0; stage + 1 < least_.size(); ++stage) {
      std::size_t end = units;
      while (value(stage, begin, end) != least_[stage][begin]) --end;
      result.push_back(static_cast<std::int64_t>(end - begin));
      begin = end;
    }
    return result;
  }

 private:
  double value(std::size_t stage, std::size_t begin, std::size_t end) const {
    const double rest = least_[stage + 1][end];
    return rest == kImpossible ? kImpossible : join_(before_[end] - before_[begin], rest);
  }

  std::function<double(double, double)> join_;
  std::vector<double> before_;  ///< cost of all units before one
  std::vector<std::vector<double>> least_;
};

}  // namespace

std::vector<std::int64_t> even_stages(std::int64_t units, int stages) {
  require_units(units, stages);
  std::vector<std::int64_t> sizes;
  for (int stage = 0; stage < stages; ++stage) {
    const auto [begin, end] = even_part_of<std::int64_t>(units, stages, stage);
    sizes.push_back(end - begin);
  }
  return sizes;
}

std::vector<std::int64_t> balanced_stages(const std::vector<double>& unit_costs, int stages) {
  require_units(static_cast<std::int64_t>(unit_costs.size()), stages);
  for (std::size_t i = 0; i < unit_costs.size(); ++i) {
    SHOAL_USER_CHECK(std::isfinite(unit_costs[i]) && unit_costs[i] >= 0, "stages",
                     "the cost of unit {} is {}: it must be finite and not negative", i,
                     unit_costs[i]);
  }
  const Divisions by_largest(unit_costs, stages,
                             [](double stage, double rest) { return std::max(stage, rest); });
  const double largest = by_largest.best();
  // Many divisions have the same largest stage, as nothing is said about the others: a model with
  // a large head would put all blocks into one stage.
  const Divisions by_squares(unit_costs, stages, [largest](double stage, double rest) {
    return stage > largest ? kImpossible : stage * stage + rest;
  });
  return by_squares.sizes();
}

void check_stages(const std::vector<std::int64_t>& units_of_stage, std::int64_t units, int stages) {
  require_units(units, stages);
  SHOAL_USER_CHECK(units_of_stage.size() == static_cast<std::size_t>(stages), "stages",
                   "one number of units for each stage: {} numbers ({}) for {} stages",
                   units_of_stage.size(), fmt::join(units_of_stage, ", "), stages);
  for (std::size_t i = 0; i < units_of_stage.size(); ++i) {
    SHOAL_USER_CHECK(units_of_stage[i] >= 1, "stages",
                     "stage {} has {} units: it needs at least one", i, units_of_stage[i]);
  }
  const std::int64_t sum =
      std::accumulate(units_of_stage.begin(), units_of_stage.end(), std::int64_t{0});
  SHOAL_USER_CHECK(sum == units, "stages", "the stages ({}) have {} units, the model has {}",
                   fmt::join(units_of_stage, ", "), sum, units);
}

}  // namespace shoal::plan
