#include "shoal/ops/routing.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"

namespace shoal::ops {
namespace {

/// DeepSeek's guard against a sum of gates that is zero.
constexpr double kLeastSum = 1e-20;
/// Tokens below which another thread costs more than it saves.
constexpr std::int64_t kTokensAThread = 256;

/// score[e] of one token from its logits.
template <class T>
void score_row(RouterScore kind, const T* logits, std::int64_t experts, T* score) {
  if (kind == RouterScore::kSigmoid) {
    for (std::int64_t e = 0; e < experts; ++e) score[e] = 1 / (1 + std::exp(-logits[e]));
    return;
  }
  T most = -std::numeric_limits<T>::infinity();
  for (std::int64_t e = 0; e < experts; ++e) most = std::max(most, logits[e]);
  T sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    score[e] = std::exp(logits[e] - most);
    sum += score[e];
  }
  for (std::int64_t e = 0; e < experts; ++e) score[e] /= sum;
}

/// The k experts with the highest score + bias; `best` is room for k values.
template <class T>
void choose(const T* score, const T* bias, std::int64_t experts, std::int64_t k,
            std::int64_t* chosen, T* best) {
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const T value = bias ? score[e] + bias[e] : score[e];
    // Negated, so that scores that are not numbers still give k experts: the loss reports them.
    if (count == k && !(value > best[k - 1])) continue;
    std::int64_t at = count < k ? count++ : k - 1;
    // Behind all that are not smaller: of equal ones the lower number came first.
    for (; at > 0 && value > best[at - 1]; --at) {
      best[at] = best[at - 1];
      chosen[at] = chosen[at - 1];
    }
    best[at] = value;
    chosen[at] = e;
  }
}

struct Sizes {
  std::int64_t tokens;
  std::int64_t experts;
  std::int64_t k;
};

template <class T>
void route_rows(const Sizes& n, const RoutingOptions& options, const T* logits, const T* bias,
                std::int64_t* chosen, T* gates, T* scores) {
  at::parallel_for(0, n.tokens, kTokensAThread, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> best(static_cast<std::size_t>(n.k));
    for (std::int64_t t = begin; t < end; ++t) {
      T* score = scores + t * n.experts;
      std::int64_t* mine = chosen + t * n.k;
      T* gate = gates + t * n.k;
      score_row(options.score, logits + t * n.experts, n.experts, score);
      choose(score, bias, n.experts, n.k, mine, best.data());
      T sum = static_cast<T>(kLeastSum);
      // The bias has done its work: a gate is the score alone.
      for (std::int64_t j = 0; j < n.k; ++j) sum += score[mine[j]];
      const T factor = static_cast<T>(options.scale) / (options.normalize ? sum : T(1));
      for (std::int64_t j = 0; j < n.k; ++j) gate[j] = score[mine[j]] * factor;
    }
  });
}

/// Adds to d_scores [T, E] what comes through the gates, and turns it into the gradient of the
/// logits in place.
template <class T>
void route_backward(const Sizes& n, const RoutingOptions& options, const std::int64_t* chosen,
                    const T* scores, const T* d_gates, T* gradient) {
  at::parallel_for(0, n.tokens, kTokensAThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T* score = scores + t * n.experts;
      T* d = gradient + t * n.experts;
      const std::int64_t* mine = chosen + t * n.k;
      if (d_gates) {
        const T* d_gate = d_gates + t * n.k;
        T sum = static_cast<T>(kLeastSum);
        T dot = 0;
        for (std::int64_t j = 0; j < n.k; ++j) {
          sum += score[mine[j]];
          dot += d_gate[j] * score[mine[j]];
        }
        const T scale = static_cast<T>(options.scale);
        // g_j = c s_j / S: ds_j = c / S (dg_j - sum_i dg_i s_i / S)
        for (std::int64_t j = 0; j < n.k; ++j) {
          d[mine[j]] +=
              options.normalize ? scale / sum * (d_gate[j] - dot / sum) : scale * d_gate[j];
        }
      }
      if (options.score == RouterScore::kSigmoid) {
        for (std::int64_t e = 0; e < n.experts; ++e) d[e] *= score[e] * (1 - score[e]);
        continue;
      }
      T mean = 0;
      for (std::int64_t e = 0; e < n.experts; ++e) mean += d[e] * score[e];
      for (std::int64_t e = 0; e < n.experts; ++e) d[e] = score[e] * (d[e] - mean);
    }
  });
}

template <class T>
Recorded routed(const at::Tensor& logits, const at::Tensor& bias, const RoutingOptions& options) {
  const Sizes n{logits.size(0), logits.size(1), options.experts_per_token};
  const at::Tensor experts = at::empty({n.tokens, n.k}, at::kLong);
  const at::Tensor gates = at::empty({n.tokens, n.k}, logits.options());
  const at::Tensor scores = at::empty({n.tokens, n.experts}, logits.options());
  const at::Tensor added =
      bias.defined() ? bias.to(logits.scalar_type()).contiguous() : at::Tensor();
  route_rows(n, options, logits.const_data_ptr<T>(),
             added.defined() ? added.const_data_ptr<T>() : nullptr,
             experts.mutable_data_ptr<std::int64_t>(), gates.mutable_data_ptr<T>(),
             scores.mutable_data_ptr<T>());
  return {{experts, gates, scores},
          {experts, scores},
          [n, options](const Tensors& saved, const Tensors& gradients) {
            // Gates and scores may both reach a loss, or one of them.
            const at::Tensor result = gradients[2].defined() ? gradients[2].contiguous().clone()
                                                             : at::zeros_like(saved[1]);
            const at::Tensor d_gates =
                gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
            route_backward(n, options, saved[0].const_data_ptr<std::int64_t>(),
                           saved[1].const_data_ptr<T>(),
                           d_gates.defined() ? d_gates.const_data_ptr<T>() : nullptr,
                           result.mutable_data_ptr<T>());
            return Tensors{result};
          }};
}

}  // namespace

Routing route(const at::Tensor& input, const at::Tensor& bias, const RoutingOptions& options) {
  SHOAL_USER_CHECK(input.dim() == 2 && options.experts_per_token >= 1 &&
                       options.experts_per_token <= input.size(1),
                   "route", "{} of {} experts for logits of {} dimensions",
                   options.experts_per_token, input.dim() ? input.size(-1) : 0, input.dim());
  SHOAL_USER_CHECK(!bias.defined() || bias.numel() == input.size(1), "route",
                   "{} biases for {} experts", bias.numel(), input.size(1));
  SHOAL_USER_CHECK(input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble, "route",
                   "logits of type {}: float32 or float64", c10::toString(input.scalar_type()));
  const Tensors outputs = differentiable("route", {input}, [&](const Wanted&) {
    const at::Tensor logits = input.contiguous();
    return input.scalar_type() == at::kDouble ? routed<double>(logits, bias, options)
                                              : routed<float>(logits, bias, options);
  });
  return {outputs[0], outputs[1], outputs[2]};
}

at::Tensor count_choices(const at::Tensor& experts, std::int64_t all_experts) {
  const std::int64_t sequences = experts.size(0);
  const at::Tensor counts = at::zeros({sequences, all_experts}, at::kLong);
  const at::Tensor chosen = experts.contiguous();
  const auto* choice = chosen.const_data_ptr<std::int64_t>();
  auto* count = counts.mutable_data_ptr<std::int64_t>();
  const std::int64_t each = sequences > 0 ? chosen.numel() / sequences : 0;
  for (std::int64_t b = 0; b < sequences; ++b)
    for (std::int64_t i = 0; i < each; ++i) ++count[b * all_experts + choice[b * each + i]];
  return counts;
}

at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& before,
                           std::int64_t capacity) {
  SHOAL_USER_CHECK(
      experts.dim() == 3 && before.dim() == 2 && before.size(0) == experts.size(0) && capacity >= 1,
      "within_capacity", "a capacity of {}, and {} counts for {} choices", capacity, before.numel(),
      experts.numel());
  const at::Tensor chosen = experts.contiguous();
  const at::Tensor taken = at::empty(experts.sizes(), at::kBool);
  const at::Tensor counts = before.clone();
  const auto* choice = chosen.const_data_ptr<std::int64_t>();
  auto* count = counts.mutable_data_ptr<std::int64_t>();
  auto* kept = taken.mutable_data_ptr<bool>();
  const std::int64_t each = experts.size(1) * experts.size(2);
  for (std::int64_t b = 0; b < experts.size(0); ++b) {
    for (std::int64_t i = 0; i < each; ++i)
      kept[b * each + i] = count[b * before.size(1) + choice[b * each + i]]++ < capacity;
  }
  return taken;
}

}  // namespace shoal::ops
