#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

// A linear model of four inputs, its data and its optimizer, written by hand: enough to see whether
// several processes have trained the same thing.

namespace tiny {

constexpr std::size_t kInputs = 4;
/// The weights and the bias.
using Weights = std::array<double, kInputs + 1>;

/// Everything that a step changes.
struct State {
  Weights weights{};
  Weights momentum{};
};

/// Members add these up: the gradient of the sum of squared errors, that sum, and the number of
/// samples.
struct Sums {
  Weights gradient{};
  std::array<double, 2> loss_and_samples{};
  Sums& operator+=(const Sums& other) {
    for (std::size_t i = 0; i <= kInputs; ++i) gradient[i] += other.gradient[i];
    for (std::size_t i = 0; i < 2; ++i) loss_and_samples[i] += other.loss_and_samples[i];
    return *this;
  }
};

/// A number in [-1, 1) that belongs to sample `index`; the same on every machine.
inline double number(std::uint64_t index, std::uint64_t which) {
  std::uint64_t x = index * 8 + which + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1;
}

/// Forward and backward: adds the samples [first, first + count) to `sums`.
inline void add_samples(const State& state, std::uint64_t first, std::uint64_t count, Sums& sums) {
  for (std::uint64_t sample = first; sample < first + count; ++sample) {
    std::array<double, kInputs + 1> x{};
    double target = 0.5;
    double output = state.weights[kInputs];
    for (std::size_t i = 0; i < kInputs; ++i) {
      x[i] = number(sample, i);
      target += static_cast<double>(i + 1) * x[i];
      output += state.weights[i] * x[i];
    }
    x[kInputs] = 1;
    const double error = output - target;
    for (std::size_t i = 0; i <= kInputs; ++i) sums.gradient[i] += 2 * error * x[i];
    sums.loss_and_samples[0] += error * error;
    sums.loss_and_samples[1] += 1;
  }
}

/// The state after a step of stochastic gradient descent with momentum.
inline State updated(const State& state, const Sums& sums) {
  State next = state;
  for (std::size_t i = 0; i <= kInputs; ++i) {
    next.momentum[i] = 0.9 * state.momentum[i] + sums.gradient[i] / sums.loss_and_samples[1];
    next.weights[i] = state.weights[i] - 0.02 * next.momentum[i];
  }
  return next;
}

inline std::vector<std::byte> bytes_of(const State& state) {
  std::vector<std::byte> bytes(sizeof state);
  std::memcpy(bytes.data(), &state, sizeof state);
  return bytes;
}

}  // namespace tiny
