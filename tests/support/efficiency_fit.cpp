#include "tests/support/efficiency_fit.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace shoal::plan {
namespace {

constexpr int kParameters = 6;
constexpr double kLargestShare = 0.98;
using Point = std::array<double, kParameters>;

/// Logarithms; shares bounded from above, the fixed costs from below.
Efficiency efficiency_at(const Point& at) {
  const auto share = [](double log) { return std::min(kLargestShare, std::exp(log)); };
  return {share(at[0]), std::max(1.0, std::exp(at[1])),
          share(at[2]), std::max(1e-7, std::exp(at[3])),
          share(at[4]), share(at[5])};
}

Point point_at(const Efficiency& efficiency) {
  return {std::log(efficiency.matmul),      std::log(std::max(efficiency.matmul_ramp_flops, 1.0)),
          std::log(efficiency.memory),      std::log(std::max(efficiency.operation_s, 1e-7)),
          std::log(efficiency.link_inside), std::log(efficiency.link_between)};
}

struct Vertex {
  Point at;
  double loss;
};

class Simplex {
 public:
  Simplex(const std::vector<TimedRow>& rows, const Point& start, double size) : rows_(rows) {
    vertices_.push_back(vertex(start));
    for (int i = 0; i < kParameters; ++i) {
      Point moved = start;
      moved[i] += size;
      vertices_.push_back(vertex(moved));
    }
  }

  Vertex run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    sort();
    return vertices_.front();
  }

 private:
  Vertex vertex(const Point& at) const {
    const Efficiency efficiency = efficiency_at(at);
    double loss = 0;
    double weights = 0;
    for (const TimedRow& row : rows_) {
      const double log = std::log(row.predicted_s(efficiency) / row.measured_s);
      loss += row.weight * log * log;
      weights += row.weight;
    }
    loss /= weights;
    // A share at its bound must not drift on where nothing changes.
    for (const int i : {0, 2, 4, 5}) loss += std::max(0.0, at[i] - std::log(kLargestShare));
    return {at, loss};
  }
  void sort() {
    std::stable_sort(vertices_.begin(), vertices_.end(),
                     [](const Vertex& a, const Vertex& b) { return a.loss < b.loss; });
  }
  /// The worst vertex mirrored at the middle of the others, `by` times as far.
  Vertex mirrored(double by) const {
    Point at{};
    for (int i = 0; i < kParameters; ++i) {
      double middle = 0;
      for (int j = 0; j < kParameters; ++j) middle += vertices_[j].at[i] / kParameters;
      at[i] = middle + by * (middle - vertices_.back().at[i]);
    }
    return vertex(at);
  }
  void step() {
    sort();
    const Vertex reflected = mirrored(1);
    if (reflected.loss < vertices_.front().loss) {
      const Vertex expanded = mirrored(2);
      vertices_.back() = expanded.loss < reflected.loss ? expanded : reflected;
    } else if (reflected.loss < vertices_[kParameters - 1].loss) {
      vertices_.back() = reflected;
    } else {
      const Vertex contracted = mirrored(-0.5);
      if (contracted.loss < vertices_.back().loss) {
        vertices_.back() = contracted;
      } else {
        shrink();
      }
    }
  }
  void shrink() {
    for (std::size_t v = 1; v < vertices_.size(); ++v) {
      Point at = vertices_[v].at;
      for (int i = 0; i < kParameters; ++i) at[i] = (at[i] + vertices_[0].at[i]) / 2;
      vertices_[v] = vertex(at);
    }
  }

  const std::vector<TimedRow>& rows_;
  std::vector<Vertex> vertices_;
};

}  // namespace

Efficiency fit_efficiency(const std::vector<TimedRow>& rows, const Efficiency& start) {
  Vertex best = Simplex(rows, point_at(start), 0.3).run(400);
  for (const double size : {-0.5, 0.3, -0.2, 0.1}) {
    const Vertex again = Simplex(rows, best.at, size).run(400);
    if (again.loss < best.loss) best = again;
  }
  return efficiency_at(best.at);
}

double error(const TimedRow& row, const Efficiency& efficiency) {
  return row.predicted_s(efficiency) / row.measured_s - 1;
}

}  // namespace shoal::plan
