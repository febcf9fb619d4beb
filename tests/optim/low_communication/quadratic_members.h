#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/comm/world.h"

// Members that minimise quadratic functions of their own, which plain loops in double can follow.
namespace shoal::optim {

/// Two parameters, of 40 x 7 and of 211 values: no multiple of a codec's block.
inline constexpr std::int64_t kValues = 491;

inline double start_of(std::int64_t i) {
  return static_cast<float>(Key(5).normal(static_cast<std::uint64_t>(i)));
}
/// The function of member m is sum_i curvature_i (x_i - target_mi)^2 / 2.
inline double curvature_of(std::int64_t i) {
  return static_cast<float>(0.5 + Key(6).uniform(static_cast<std::uint64_t>(i)));
}
inline double target_of(int member, std::int64_t i) {
  const Key key = Key(7).child(static_cast<std::uint64_t>(member));
  return static_cast<float>(key.normal(static_cast<std::uint64_t>(i)));
}

class Member {
 public:
  explicit Member(int number) : number_(number) {
    parameters = {at::empty({40, 7}), at::empty({211})};
    for_values([](float& x, std::int64_t i) { x = static_cast<float>(start_of(i)); });
  }

  /// Calls body(x, i) for each value.
  template <class Body>
  void for_values(const Body& body) const {
    std::int64_t i = 0;
    for (const at::Tensor& parameter : parameters) {
      auto* x = parameter.data_ptr<float>();
      for (std::int64_t j = 0; j < parameter.numel(); ++j) body(x[j], i++);
    }
  }

  /// A step of gradient descent on the member's own function.
  void descend(double rate) const {
    for_values([&](float& x, std::int64_t i) {
      const double slope = curvature_of(i) * (x - target_of(number_, i));
      x = static_cast<float>(x - rate * slope);
    });
  }

  std::vector<float> values() const {
    std::vector<float> all;
    for_values([&](const float& x, std::int64_t) { all.push_back(x); });
    return all;
  }

  std::vector<at::Tensor> parameters;

 private:
  int number_;
};

inline comm::WorldOptions threads(int ranks) {
  return {.size = ranks, .arena = false, .timeout = std::chrono::minutes(5)};
}

/// Returns whether all ranks have the bits of `values`. Collective.
inline bool all_have(const comm::Group& group, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const at::Tensor own = at::empty({count});
  std::copy(values.begin(), values.end(), own.data_ptr<float>());
  const at::Tensor all = at::empty({group.size() * count});
  group.all_gather(all, own);
  bool equal = true;
  for (int r = 0; r < group.size(); ++r)
    equal = equal && all.narrow(0, r * count, count).equal(own);
  return equal;
}

}  // namespace shoal::optim
