#include "shoal/optim/outer_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/equal_values.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/require.h"
#include "shoal/optim/update.h"

namespace shoal::optim {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  ///< elements a thread takes at least

const float* values_of(const at::Tensor& tensor) {
  return static_cast<const float*>(tensor.const_data_ptr());
}

std::span<float> span_of(const at::Tensor& tensor) {
  return {static_cast<float*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

at::Tensor zeros_of_state(std::int64_t count) {
  const ScopedCategory category(MemoryCategory::kOptimizer);
  return at::zeros({count}, at::kFloat);
}

/// Calls body(parameter, offset, begin, end) for the elements [begin, end) of each parameter, whose
/// first has the index `offset` behind all parameters before it.
template <class Body>
void for_elements(const std::vector<at::Tensor>& parameters, const Body& body) {
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    at::parallel_for(0, parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      body(parameter, offset, begin, end);
    });
    offset += parameter.numel();
  }
}

void check_options(const OuterOptions& options) {
  require(options.learning_rate > 0, "outer_optimizer", "learning_rate", options.learning_rate,
          "must be positive");
  require(options.momentum >= 0 && options.momentum < 1, "outer_optimizer", "momentum",
          options.momentum, "must lie in [0, 1)");
}

}  // namespace

void move_anchor(std::span<float> anchor, std::span<const float> sum, std::span<float> momentum,
                 int members, const OuterOptions& options) {
  const SgdFactors factors{.learning_rate = options.learning_rate,
                           .momentum = options.momentum,
                           .dampening = 0,
                           .weight_decay = 0,
                           .nesterov = true,
                           // Momentum begins with zeros, to which a first step adds the same.
                           .first = false,
                           .gradient_scale = 1.0 / members};
  const auto count = static_cast<std::int64_t>(anchor.size());
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    float* buffer = momentum.empty() ? nullptr : momentum.data() + begin;
    sgd_update(anchor.data() + begin, sum.data() + begin, buffer,
               static_cast<std::size_t>(end - begin), factors);
  });
}

void write_difference(std::span<const float> anchor, std::span<const float> parameters,
                      double weight, std::span<float> to) {
  const auto factor = static_cast<float>(weight);
  const auto count = static_cast<std::int64_t>(anchor.size());
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const float* const a = anchor.data();
    const float* const x = parameters.data();
    for (std::int64_t i = begin; i < end; ++i) to.data()[i] = factor * (a[i] - x[i]);
  });
}

void mix_anchor(std::span<float> parameters, std::span<const float> anchor, double mix) {
  if (mix == 0) {
    // Zero times an infinity would be no number.
    std::copy(anchor.begin(), anchor.end(), parameters.begin());
    return;
  }
  const auto kept = static_cast<float>(mix);
  const auto taken = static_cast<float>(1 - mix);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i] = kept * parameters[i] + taken * anchor[i];
}

OuterOptions plain_average(const collective::Coding& coding) {
  OuterOptions options;
  options.learning_rate = 1;
  options.momentum = 0;
  options.coding = coding;
  return options;
}

OuterOptimizer::OuterOptimizer(std::vector<at::Tensor> parameters, comm::Group members,
                               const OuterOptions& options, const OuterMemory& memory)
    : parameters_(std::move(parameters)), members_(std::move(members)), options_(options) {
  check_options(options);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters_) {
    SHOAL_USER_CHECK(
        parameter.scalar_type() == at::kFloat && parameter.is_contiguous() && parameter.is_cpu(),
        "outer_optimizer", "parameters are contiguous float32 on the CPU");
    count += parameter.numel();
  }
  const auto array = [count](const at::Tensor& given) {
    if (!given.defined()) return zeros_of_state(count);
    SHOAL_USER_CHECK(given.numel() == count && given.is_contiguous(), "outer_optimizer",
                     "{} parameters, and memory for {}", count, given.numel());
    return given;
  };
  anchor_ = array(memory.anchor);
  for_elements(parameters_, [&](const at::Tensor& from, std::int64_t offset, std::int64_t begin,
                                std::int64_t end) {
    std::copy(values_of(from) + begin, values_of(from) + end,
              span_of(anchor_).begin() + offset + begin);
  });
  if (options.momentum > 0) momentum_ = array(memory.momentum);
  if (options.coding.codec != collective::Codec::kNone) {
    collective::check_coding(options.coding, "outer_optimizer");
    if (options.error_feedback) {
      residual_ = array(memory.residual);
      const collective::Range part = collective::coded_part(
          options.coding, static_cast<std::size_t>(count), members_.size(), members_.rank());
      sum_begin_ = static_cast<std::int64_t>(part.begin);
      sum_residual_ = zeros_of_state(static_cast<std::int64_t>(part.size()));
    }
  }
  check_equal_starts();
}

void OuterOptimizer::check_equal_starts() const {
  if (!comm::first_unequal(members_, parameters_)) return;
  throw Error(ErrorKind::kMismatch, "outer_optimizer", "members start from different parameters")
      .at(members_.rank(), members_.size())
      .hint("give all members the same seed or the same checkpoint");
}

void OuterOptimizer::begin(std::int64_t step) {
  SHOAL_USER_CHECK(!in_flight(), "outer_optimizer",
                   "an exchange begins in step {} before the last one has ended", step);
  at::Tensor difference;
  {
    const ScopedCategory category(MemoryCategory::kCommunication);
    difference = at::empty({anchor_.numel()}, at::kFloat);
  }
  write_difference(difference);
  comm::Options options{.async = true, .timeout = options_.timeout, .coding = options_.coding};
  options.coding.key = options_.coding.key.child(static_cast<std::uint64_t>(step));
  collective::CodedFeedback feedback;
  if (residual_.defined()) {
    feedback.contribution = {span_of(residual_), span_of(residual_)};
    feedback.sum = {span_of(sum_residual_), span_of(sum_residual_)};
    // The operation may outlive this object.
    feedback.memory = std::make_shared<std::pair<at::Tensor, at::Tensor>>(residual_, sum_residual_);
    options.feedback = &feedback;
  }
  // A fragment may be empty, on all members that exchange it.
  if (difference.numel() > 0) work_ = members_.all_reduce(difference, options);
  difference_ = std::move(difference);
}

double OuterOptimizer::finish(double mix) {
  SHOAL_USER_CHECK(in_flight(), "outer_optimizer", "no exchange is in flight");
  SHOAL_USER_CHECK(mix >= 0 && mix < 1, "outer_optimizer", "mix={}: must lie in [0, 1)", mix);
  wait();
  const at::Tensor sum = std::exchange(difference_, {});
  if (options_.coding.codec == collective::Codec::kNone && sum.numel() > 0)
    for (const comm::Group& group : options_.alike) group.broadcast(sum, 0);
  const double mean = 1.0 / members_.size();
  const double norm = mean * std::sqrt(sum_of_squares({sum}));
  // The sum has the same bits on all members, so that all throw, or none.
  if (!std::isfinite(norm)) {
    throw Error(ErrorKind::kNonFinite, "outer_optimizer",
                fmt::format("the norm of the members' mean difference is {}", norm))
        .at(members_.rank(), members_.size())
        .hint("a member's parameters are not finite, or have gone very far");
  }
  move_anchor(span_of(anchor_), {values_of(sum), static_cast<std::size_t>(sum.numel())},
              momentum_.defined() ? span_of(momentum_) : std::span<float>(), members_.size(),
              options_);
  write_parameters(mix);
  return norm;
}

double OuterOptimizer::synchronise(std::int64_t step) {
  begin(step);
  return finish();
}

void OuterOptimizer::wait() {
  if (options_.longest_wait > Duration::zero()) {
    work_.wait(Deadline::in(options_.longest_wait));
  } else {
    work_.order();
  }
  work_ = {};
}

void OuterOptimizer::expect() {
  SHOAL_USER_CHECK(!in_flight(), "outer_optimizer", "an exchange is in flight already");
  const ScopedCategory category(MemoryCategory::kCommunication);
  difference_ = at::zeros({anchor_.numel()}, at::kFloat);
}

std::vector<OuterState> OuterOptimizer::states() const {
  std::vector<OuterState> states{{"anchor", anchor_, true}};
  if (momentum_.defined()) states.push_back({"momentum", momentum_, true});
  if (residual_.defined()) {
    states.push_back({"residual", residual_, false});
    states.push_back({"sum_residual", sum_residual_, false});
  }
  if (in_flight()) states.push_back({"difference", difference_, true});
  return states;
}

std::int64_t OuterOptimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const OuterState& state : states())
    bytes += static_cast<std::int64_t>(state.tensor.nbytes());
  return bytes;
}

void OuterOptimizer::write_difference(const at::Tensor& to) const {
  std::size_t offset = 0;
  for (const at::Tensor& parameter : parameters_) {
    const std::span<float> x = span_of(parameter);
    optim::write_difference(span_of(anchor_).subspan(offset, x.size()), x, 1,
                            span_of(to).subspan(offset, x.size()));
    offset += x.size();
  }
}

void OuterOptimizer::take_anchor() const { write_parameters(0); }

void OuterOptimizer::swap_anchor() const {
  for_elements(parameters_, [&](const at::Tensor& parameter, std::int64_t offset,
                                std::int64_t begin, std::int64_t end) {
    float* x = span_of(parameter).data();
    std::swap_ranges(x + begin, x + end, span_of(anchor_).data() + offset + begin);
  });
}

void OuterOptimizer::write_parameters(double mix) const {
  for_elements(parameters_, [&](const at::Tensor& parameter, std::int64_t offset,
                                std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    mix_anchor(span_of(parameter).subspan(static_cast<std::size_t>(begin), count),
               {values_of(anchor_) + offset + begin, count}, mix);
  });
}

}  // namespace shoal::optim
