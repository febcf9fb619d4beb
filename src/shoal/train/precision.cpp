#include "shoal/train/precision.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/name_pattern.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/matmul.h"
#include "shoal/train/config/precision.h"

namespace shoal::train {
namespace {

/// The widest product of a layer: [in, out] of its weight.
std::pair<std::int64_t, std::int64_t> widest(const model::ModelSpec& spec) {
  if (spec.family != model::Family::kMlp) return {spec.hidden, spec.ffn};
  std::pair<std::int64_t, std::int64_t> best{spec.inputs, spec.outputs};
  std::int64_t in = spec.inputs;
  for (const std::int64_t width : spec.widths) {
    if (in * width > best.first * best.second) best = {in, width};
    in = width;
  }
  return best;
}

/// Forward and backward of one linear layer in `type`, with the conversions that it needs.
class LayerProducts {
 public:
  LayerProducts(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType type)
      : type_(type),
        x_(at::full({rows, in}, 0.5, at::kFloat)),
        dy_(at::full({rows, out}, 0.25, at::kFloat)),
        w_(at::full({out, in}, 0.125, at::kFloat).to(type)),
        y_(at::empty_like(dy_)),
        dx_(at::empty_like(x_)),
        dw_(at::empty({out, in}, at::kFloat)) {}

  // The three products of a layer's step, y = x W^T, dx = dy W and dW = dy^T x, with the rounding
  // of x and dy that 16-bit weights ask for.
  double seconds() const {
    const auto begin = Clock::now();
    const at::Tensor x = ops::factor(x_, type_);
    const at::Tensor dy = ops::factor(dy_, type_);
    ops::matmul(y_, x, w_.t());
    ops::matmul(dx_, dy, w_);
    ops::matmul(dw_, dy.t(), x);
    return to_seconds(Clock::now() - begin);
  }

 private:
  at::ScalarType type_;
  at::Tensor x_, dy_, w_, y_, dx_, dw_;
};

double speed(const ProductTimes& times) { return times.fp32_s / times.narrow_s; }

}  // namespace

at::ScalarType scalar_type(Precision type) {
  if (type == Precision::kBf16) return at::kBFloat16;
  return type == Precision::kFp16 ? at::kHalf : at::kFloat;
}

void set_types(nn::Model& model, const Job& job, Precision type) {
  const PrecisionSection& section = job.config.precision;
  const std::vector<PrecisionRule> rules = precision_rules(job);
  std::vector<bool> fitted(rules.size());
  for (const auto& parameter : model.parameters()) {
    // Vectors (norms, biases) take part in no product: 16 bits would save nothing and cost
    // accuracy.
    // A router chooses by small differences, and multiplies little.
    const bool stays =
        parameter->global_shape().size() == 1 || parameter->name().ends_with(".router.weight");
    Precision chosen = stays ? Precision::kFp32 : type;
    // From the last to the first, so that the first rule that fits decides. Every rule that fits
    // any parameter counts as used.
    for (std::size_t i = rules.size(); i-- > 0;) {
      const auto& names = parameter->names();
      if (std::none_of(names.begin(), names.end(), [&](const std::string& name) {
            return fits_pattern(rules[i].pattern, name);
          }))
        continue;
      chosen = rules[i].type;
      fitted[i] = true;
    }
    // What moves by small steps without a master stays as it is, whatever a rule says.
    if (parameter->adjusted()) chosen = Precision::kFp32;
    parameter->set_types(scalar_type(chosen), scalar_type(section.gradients));
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!fitted[i]) {
      throw config_error(job, "precision.parameters",
                         fmt::format("\"{}\" fits no parameter of the model; one is called {}",
                                     rules[i].pattern, model.parameters().front()->name()));
    }
  }
}

optim::Storage storage_options(const JobConfig& config) {
  return {.master = config.precision.master_weights,
          .moments = scalar_type(config.precision.moments),
          .rounding = Key(static_cast<std::uint64_t>(config.debug.seed)).child("rounding"),
          .folder = config.optimizer.state_folder};
}

std::optional<optim::LossScale> loss_scale(const nn::Model& model, const JobConfig& config,
                                           const comm::Group& group) {
  const auto parameters = model.parameters();
  // Only fp16 lacks the range of gradients; bf16 has that of fp32.
  const bool half = std::any_of(parameters.begin(), parameters.end(), [](const auto& p) {
    return p->tensor().scalar_type() == at::kHalf;
  });
  // Stages of a pipeline may have other types: all ranks scale, or none.
  if (group.sum(half ? 1 : 0) == 0) return std::nullopt;
  return optim::LossScale({.initial = config.precision.loss_scale,
                           .growth_interval = config.precision.loss_scale_growth_interval});
}

void reset_masters(const std::vector<parallel::OwnedRange>& owned, optim::Optimizer& optimizer,
                   Key key) {
  std::size_t slice = 0;
  for (const parallel::OwnedRange& range : owned) {
    if (!range.parameter->requires_grad()) continue;
    // Slices are the trained ranges in order: frozen ones have none.
    const at::Tensor& master = optimizer.master(slice++);
    if (!master.defined() || master.numel() == 0 || !ops::is_narrow(range.values.scalar_type()))
      continue;
    master.view({-1}).copy_(
        range.parameter->initial(key).view({-1}).slice(0, range.begin, range.end));
  }
}

std::string describe_precision(const nn::Model& model, const JobConfig& config) {
  const PrecisionSection& section = config.precision;
  const auto parameters = model.parameters();
  std::string weights;
  for (const Precision type : {Precision::kBf16, Precision::kFp16}) {
    const auto count = std::count_if(parameters.begin(), parameters.end(), [&](const auto& p) {
      return p->tensor().scalar_type() == scalar_type(type);
    });
    if (count > 0) {
      weights += fmt::format("{}{} weights ({} of {} tensors)", weights.empty() ? "" : ", ",
                             name_of(type), count, parameters.size());
    }
  }
  const bool adamw = config.optimizer.name == OptimizerKind::kAdamW;
  const bool narrow_moments = adamw && section.moments != Precision::kFp32;
  const bool narrow_gathers = section.gathers != Precision::kFp32;
  const bool narrow_gradients = section.gradients != Precision::kFp32;
  if (weights.empty() && !narrow_gradients && !narrow_gathers && !narrow_moments) return {};
  if (weights.empty()) {
    weights = "fp32 weights";
  } else {
    weights += section.master_weights ? " with fp32 masters" : " rounded stochastically";
  }
  std::string text = fmt::format("{}, gradients {}", weights, name_of(section.gradients));
  if (adamw) text += fmt::format(", moments {}", name_of(section.moments));
  if (narrow_gathers) text += fmt::format(", gathers {}", name_of(section.gathers));
  return text;
}

ProductTimes measure_products(const model::ModelSpec& spec, std::int64_t rows, Precision type,
                              Duration budget, const comm::Group& group) {
  const auto [in, out] = widest(spec);
  // More rows than this change the ratio little and take long.
  const std::int64_t some = std::clamp<std::int64_t>(rows, 1, 256);
  const LayerProducts wide(some, in, out, at::kFloat);
  const LayerProducts narrow(some, in, out, scalar_type(type));
  const at::Tensor times = at::empty({2}, at::kDouble);
  double* fp32 = times.mutable_data_ptr<double>();
  double* other = fp32 + 1;
  group.barrier();
  // The first of each touches fresh memory; the types take turns, so that a busy moment strikes
  // both.
  wide.seconds();
  narrow.seconds();
  *fp32 = wide.seconds();
  *other = narrow.seconds();
  for (const Deadline deadline = Deadline::in(budget); !deadline.passed();) {
    *fp32 = std::min(*fp32, wide.seconds());
    *other = std::min(*other, narrow.seconds());
  }
  // All ranks get the same sums and so make the same choice: with different types they could not
  // train together.
  group.all_reduce(times);
  return {*fp32 / group.size(), *other / group.size()};
}

Precision faster_type(const ProductTimes& bf16) {
  // bf16 loses digits: it must gain a twentieth.
  return speed(bf16) > 1.05 ? Precision::kBf16 : Precision::kFp32;
}

std::string describe_choice(const ProductTimes& bf16) {
  return fmt::format(
      "precision.type = \"auto\": {}. A layer's products take {:.3g} ms in bf16 and {:.3g} ms in "
      "fp32 on this processor ({:.2f} x).",
      name_of(faster_type(bf16)), 1e3 * bf16.narrow_s, 1e3 * bf16.fp32_s, speed(bf16));
}

std::optional<std::string> warn_if_slow(Precision type, const ProductTimes& times) {
  if (times.narrow_s < 10 * times.fp32_s) return std::nullopt;
  return fmt::format(
      "Warning: this processor multiplies {0} {1:.3g} times slower than fp32: a layer's products "
      "take {2:.3g} ms in {0} and {3:.3g} ms in "
      "fp32. precision.type = \"fp32\" or \"auto\" is faster.",
      name_of(type), times.narrow_s / times.fp32_s, 1e3 * times.narrow_s, 1e3 * times.fp32_s);
}

}  // namespace shoal::train
