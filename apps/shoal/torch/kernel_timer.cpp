#include "apps/shoal/torch/kernel_timer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "shoal/forecast/trimmed_mean.h"

namespace shoal::apps {
namespace {

constexpr std::int64_t kWeights = 40 << 20;
constexpr std::int64_t kMostCopies = 256;
constexpr std::size_t kLeastCalls = 1;
constexpr double kMostCalls = 1e4;

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

at::Tensor values(at::IntArrayRef shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).remainder_(17).mul_(0.01).sub_(0.05).view(shape);
}
at::Tensor leaf(at::IntArrayRef shape) { return values(shape).requires_grad_(true); }

void KernelTimer::add(const std::string& name, const plan::KernelWork& work,
                      const std::vector<double>& times) {
  times_[name].push_back({work, forecast::mean_time(times)});
}

double KernelTimer::now(Calls calls) const {
  if (calls == Calls::kOwn || ranks_per_core_ == 1) return seconds_of(CLOCK_MONOTONIC);
  return ranks_per_core_ * seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

void KernelTimer::repeat(std::int64_t copies, std::vector<std::vector<double>*> times,
                         const std::function<void(std::int64_t)>& once, Calls calls) const {
  group_.barrier();
  std::int64_t turn = 0;
  double start = now(Calls::kOwn);
  once(turn++);
  const double first = now(Calls::kOwn) - start;
  for (auto* list : times) list->clear();
  double wanted = kMostCalls;
  if (calls == Calls::kTogether) {
    // The longest first call decides, so that no rank is left alone in a collective.
    const at::Tensor longest = at::full({1}, first, at::kDouble);
    group_.all_reduce(longest, {.reduction = comm::Reduction::kMax});
    wanted = std::clamp(std::ceil(seconds_ / longest.item<double>()), 1.0, kMostCalls);
  }
  const auto goes_on = [&] {
    const auto made = static_cast<double>(turn - 1);
    if (calls == Calls::kTogether) return made < wanted;
    return times.front()->size() < kLeastCalls || now(Calls::kOwn) - start < seconds_;
  };
  for (start = now(Calls::kOwn); goes_on(); ++turn) once(turn % copies);
}

std::pair<std::vector<double>, std::vector<double>> KernelTimer::both(const Operator& op) const {
  std::vector<double> there;
  std::vector<double> back;
  // A queue of forward passes whose backward is still to come: each turn adds one and finishes the
  // oldest, so that `behind` others lie between the two.
  std::deque<std::pair<std::int64_t, at::Tensor>> waiting;
  // Fills the queue before the clock runs.
  for (std::int64_t i = op.copies - op.behind; i < op.copies; ++i)
    waiting.emplace_back(i, op.forward(i));
  repeat(
      op.copies, {&there, &back},
      [&](std::int64_t copy) {
        const double start = now(op.calls);
        waiting.emplace_back(copy, op.forward(copy));
        const double middle = now(op.calls);
        there.push_back(middle - start);
        waiting.front().second.backward(op.gradient);
        back.push_back(now(op.calls) - middle);
        op.clear(waiting.front().first);
        waiting.pop_front();
      },
      op.calls);
  return {there, back};
}

void KernelTimer::add_both(const std::string& name, const std::string& type,
                           const plan::KernelWork& work, const Operator& op) {
  const auto times = both(op);
  add(name + type, work, times.first);
  add(name + "_backward" + type, work, times.second);
}

void KernelTimer::add_sums(const std::string& name, const plan::KernelWork& work,
                           const Operator& op) {
  const auto times = both(op);
  std::vector<double> sums;
  for (std::size_t i = 0; i < times.first.size(); ++i)
    sums.push_back(times.first[i] + times.second[i]);
  add(name, work, sums);
}

WeightPlaces::WeightPlaces(bool bf16)
    : weights_(at::full({kWeights}, 0.01, at::kFloat)),
      gradients_(at::full({kWeights}, 0.01, at::kFloat)) {
  if (bf16) narrow_ = at::full({kWeights}, 0.01, at::kBFloat16);
}

std::int64_t WeightPlaces::copies(std::int64_t count) {
  return std::clamp<std::int64_t>(kWeights / count, 1, kMostCopies);
}

void WeightPlaces::give(nn::Parameter& parameter, at::ScalarType type) {
  const std::int64_t count = parameter.global_count();
  parameter.set_types(type, at::kFloat);
  parameter.set_tensor((type == at::kFloat ? weights_ : narrow_)
                           .narrow(0, next_, count)
                           .view(parameter.global_shape()));
  parameter.set_sink(gradients_.narrow(0, next_, count).view(parameter.global_shape()));
  next_ += count;
}

}  // namespace shoal::apps
