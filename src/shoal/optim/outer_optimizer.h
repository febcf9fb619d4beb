#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/collective/codec/coding.h"
#include "shoal/comm/group.h"

namespace shoal::optim {

/// The defaults are those of DiLoCo (Douillard et al., "DiLoCo: Distributed low-communication
/// training of language models", 2023).
struct OuterOptions {
  double learning_rate = 0.7;
  double momentum = 0.9;  ///< Nesterov's; 0: none, and no memory for it
  /// How differences travel. Each exchange takes the random numbers of a child of its key, named by
  /// the step.
  collective::Coding coding;
  /// With a codec: what rounding takes from a value is added to the next one.
  bool error_feedback = true;
  /// The time from the beginning of an exchange until it must be complete, also where its result is
  /// wanted later; zero: the group's.
  Duration timeout{};
  /// The longest that `finish` and `wait` wait for other members, from when they are called; zero:
  /// until `timeout`. With it `timeout` may be as long as steps may take.
  Duration longest_wait{};
  /// Groups in each of which the ranks are of one member and exchange the same values, each with
  /// ranks of other members. Their sums may differ in the last bits where ranks share hosts
  /// unevenly; all take that of the first rank of the group, in one group after the other. With a
  /// codec the bits are those of the values alone, and nothing is sent.
  std::vector<comm::Group> alike{};
};

/// Returns the options of local SGD (Stich, 2019): members take the mean of their parameters.
OuterOptions plain_average(const collective::Coding& coding = {});

/// One named array of an outer optimizer, flat. Checkpoints save and load it.
struct OuterState {
  std::string kind;  ///< "anchor", "momentum", "residual", "sum_residual" or "difference"
  at::Tensor tensor;
  bool shared = false;  ///< with the same bits on all members
};

/// Memory for the arrays of an OuterOptimizer, [values] float32 each. It takes its own for those
/// that are undefined.
struct OuterMemory {
  at::Tensor anchor, momentum, residual;
};

/// Moves an anchor by the sum of the differences of `members` members: the second line of the
/// formulas below. All have as many values; `momentum` is empty where the options have none.
void move_anchor(std::span<float> anchor, std::span<const float> sum, std::span<float> momentum,
                 int members, const OuterOptions& options);
/// Writes weight (a - x) of an anchor and of as many parameters.
void write_difference(std::span<const float> anchor, std::span<const float> parameters,
                      double weight, std::span<float> to);
/// Makes the parameters mix x + (1 - mix) a of themselves and an anchor of as many values.
void mix_anchor(std::span<float> parameters, std::span<const float> anchor, double mix);

/// Brings together the parameters of M members that have trained by themselves for some steps. With
/// x_m the parameters of member m and a the anchor, which all members have alike:
///   d_m = a - x_m;  g = (d_1 + ... + d_M) / M                    one all-reduce
///   b = momentum b + g;  a = a - learning_rate (g + momentum b)  SGD of torch.optim, Nesterov's
///   x_m = mix x_m + (1 - mix) a
/// Anchor and momentum have the same bits on all members, and so have the parameters where `mix` is
/// 0.
///
/// All of it is fp32. Without a codec the order of the sum is that of the group's algorithm; with
/// one, every transport gives the same bits.
///
/// Beside the parameters it holds, in fp32 and category optimizer, the anchor, the momentum, and
/// with error feedback a residual of all values and one of this member's part of them; during an
/// exchange the difference, category communication. Not thread-safe; uses LibTorch's intra-op
/// threads.
class OuterOptimizer {
 public:
  /// `parameters`: contiguous float32 on the CPU, whole or this member's shards; masters where
  /// forward reads 16 bits. They are read by `begin` and written by `finish`, without autograd
  /// noticing. `members` has one rank of each member: those that hold the same shards. All begin
  /// and finish in the same order, as with every operation of a group.
  ///
  /// Collective. Throws Error(mismatch) where members start from different values, Error(usage) for
  /// other parameters, Error(config) for options outside their range.
  OuterOptimizer(std::vector<at::Tensor> parameters, comm::Group members,
                 const OuterOptions& options = {}, const OuterMemory& memory = {});

  /// Starts the exchange of what the parameters are by now, and does not wait for other members.
  /// `step` is the same on all and another one each time: it names the codec's random numbers.
  void begin(std::int64_t step);
  /// Waits for the exchange in flight, moves the anchor and takes it over into the parameters:
  /// `mix` in [0, 1) is the share that these keep of themselves. Returns the norm of g, equal on
  /// all members. Throws Error(non-finite), on all members alike, where a sum is not finite; anchor
  /// and parameters are then as before.
  double finish(double mix = 0);
  /// Does both.
  double synchronise(std::int64_t step);
  bool in_flight() const { return difference_.defined(); }
  /// Moves what is in flight on, without waiting.
  void poll() const { members_.poll(); }

  /// Waits until the sum of an exchange in flight is there, so that `states` has it. `finish` is
  /// still to come, whenever it would have been.
  void wait();
  /// Makes room for the sum of an exchange that was in flight when a checkpoint was written, as if
  /// `begin` and `wait` had been called: `states` then has it, to be filled.
  void expect();
  /// Returns all arrays that the next exchanges depend on, besides the parameters.
  std::vector<OuterState> states() const;
  std::int64_t state_bytes() const;  ///< bytes of `states`

  const at::Tensor& anchor() const { return anchor_; }  ///< [values], parameter after parameter
  /// Returns the sum of an exchange in flight after `wait` or `expect`; undefined: none is.
  const at::Tensor& difference() const { return difference_; }
  /// Returns what rounding took from the sums of the values that this member adds up; undefined
  /// without error feedback.
  const at::Tensor& sum_residual() const { return sum_residual_; }
  std::int64_t sum_begin() const { return sum_begin_; }  ///< the first of these values
  /// Writes the anchor into the parameters.
  void take_anchor() const;
  /// Exchanges the values of parameters and anchor: the model that all members share lies in the
  /// parameters until the next call, which restores both. No exchange may begin or end meanwhile.
  void swap_anchor() const;

 private:
  void check_equal_starts() const;
  void write_difference(const at::Tensor& to) const;
  void write_parameters(double mix) const;

  std::vector<at::Tensor> parameters_;
  comm::Group members_;
  OuterOptions options_;
  at::Tensor anchor_;
  at::Tensor momentum_;    ///< undefined: there is none
  at::Tensor difference_;  ///< of an exchange in flight: this member's, and then the sum
  comm::Work work_;
  /// Error feedback has these; without it they are undefined. The operation updates them in place.
  at::Tensor residual_, sum_residual_;
  std::int64_t sum_begin_ = 0;
};

}  // namespace shoal::optim
