#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/shoal/torch/entry.h"
#include "shoal/comm/group.h"
#include "shoal/nn/parameter.h"

namespace shoal::apps {

/// Returns a tensor of values that no kernel takes a short way for.
at::Tensor values(at::IntArrayRef shape);
/// Returns the same as a leaf whose gradient is wanted.
at::Tensor leaf(at::IntArrayRef shape);

/// Calls operators again and again on all ranks at the same time, and keeps the means of what they
/// took on this one.
class KernelTimer {
 public:
  /// `seconds`: approximate time of a case. `ranks_per_core`: 1 where ranks have cores of their
  /// own.
  KernelTimer(comm::Group group, double seconds, double ranks_per_core)
      : group_(std::move(group)), seconds_(seconds), ranks_per_core_(ranks_per_core) {}

  const comm::Group& group() const { return group_; }

  void add(const std::string& name, const plan::KernelWork& work, const std::vector<double>& times);
  /// Returns all that was added since the last call.
  TimedKernels take() { return std::exchange(times_, {}); }

  /// Says which rank decides how often a case is called.
  enum class Calls {
    kOwn,      ///< each rank, until its time is up
    kTogether  ///< all ranks alike: the calls are collective
  };
  /// Returns a clock's seconds. If ranks share cores, calls in which they wait for each other are
  /// timed by the processor time of this rank, times the ranks of a core: others compute meanwhile,
  /// and their work is not to be counted twice.
  double now(Calls calls) const;

  /// Calls `once` until the time is up, all ranks beginning together; the first call does not
  /// count. It is told which of `copies` it is to use.
  void repeat(std::int64_t copies, std::vector<std::vector<double>*> times,
              const std::function<void(std::int64_t)>& once, Calls calls = Calls::kOwn) const;

  /// The forward pass of an operator in a case, with what its backward pass begins from.
  struct Operator {
    std::function<at::Tensor(std::int64_t)> forward;
    at::Tensor gradient;
    std::function<void(std::int64_t)> clear;  ///< is not timed
    std::int64_t copies = 1;                  ///< sets of weights
    std::int64_t behind = 0;  ///< forward passes of others that come between forward and backward
    Calls calls = Calls::kOwn;
  };
  /// Returns the times of forward and of backward.
  std::pair<std::vector<double>, std::vector<double>> both(const Operator& op) const;
  /// Adds them as `name` and `name`_backward with a suffix for the type of the weights.
  void add_both(const std::string& name, const std::string& type, const plan::KernelWork& work,
                const Operator& op);
  /// Adds their sums as `name`.
  void add_sums(const std::string& name, const plan::KernelWork& work, const Operator& op);

 private:
  comm::Group group_;
  double seconds_;
  double ranks_per_core_;
  TimedKernels times_;
};

/// Memory that one case after the other lays its weights into: it is touched for the first time
/// once. The weights that a case goes through in turn, and as many gradients, lie far beyond the
/// caches, so that each comes from memory, and beyond what the processor's tables of pages reach.
class WeightPlaces {
 public:
  explicit WeightPlaces(bool bf16);

  /// Returns how many weights of `count` elements fit.
  static std::int64_t copies(std::int64_t count);
  void clear() { next_ = 0; }
  /// Gives a parameter its value and, as in training, a sink into which backward writes the
  /// gradient.
  void give(nn::Parameter& parameter, at::ScalarType type);

 private:
  at::Tensor weights_, narrow_, gradients_;
  std::int64_t next_ = 0;
};

}  // namespace shoal::apps
