#include "shoal/ops/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "shoal/base/check.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/kernel_input.h"
#include "shoal/ops/norm_kernels.h"

namespace shoal::ops {
namespace {

struct Statistics {
  at::Tensor y, mean, rstd;
};
struct NormGradients {
  at::Tensor x, weight, bias;
};

bool has_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return is_fp32_on_cpu(x) && weight.scalar_type() == at::kFloat;
}

kernels::NormShape shape_of(NormKind kind, const at::Tensor& x, double epsilon) {
  const std::int64_t width = x.size(-1);
  return {x.numel() / std::max<std::int64_t>(width, 1), width, kind == NormKind::kLayer,
          static_cast<float>(epsilon)};
}

/// The plain path: any type, any device.
Statistics plain_forward(NormKind kind, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, double epsilon) {
  const at::Tensor mean = kind == NormKind::kLayer ? x.mean(-1, true) : at::Tensor();
  const at::Tensor centred = mean.defined() ? x - mean : x;
  const at::Tensor rstd = (centred.square().mean(-1, true) + epsilon).rsqrt();
  at::Tensor y = centred * rstd * weight;
  if (bias.defined()) y = y + bias;
  return {y, mean, rstd};
}

NormGradients plain_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& mean, const at::Tensor& rstd, bool bias) {
  const at::Tensor hat = (mean.defined() ? x - mean : x) * rstd;
  const at::Tensor g = dy * weight;
  at::Tensor through = g - hat * (g * hat).mean(-1, true);
  if (mean.defined()) through = through - g.mean(-1, true);
  const std::int64_t width = x.size(-1);
  return {through * rstd, (dy * hat).reshape({-1, width}).sum(0),
          bias ? dy.reshape({-1, width}).sum(0) : at::Tensor()};
}

/// LibTorch has fused kernels for devices, in float32; that of RMSNorm knows no bias.
bool has_device_kernel(NormKind kind, const at::Tensor& x, const at::Tensor& weight, bool bias) {
  return !x.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
         (kind == NormKind::kLayer || !bias);
}

Statistics device_forward(NormKind kind, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias, double epsilon) {
  const std::int64_t width = x.size(-1);
  if (kind == NormKind::kRms) {
    const auto [y, rstd] = at::_fused_rms_norm(x, width, weight, epsilon);
    return {y, {}, rstd};
  }
  const auto [y, mean, rstd] = at::native_layer_norm(x, width, weight, bias, epsilon);
  return {y, mean, rstd};
}

NormGradients device_backward(NormKind kind, const at::Tensor& dy, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& mean,
                              const at::Tensor& rstd, bool bias) {
  const std::int64_t width = x.size(-1);
  if (kind == NormKind::kRms) {
    const auto [dx, dw] =
        at::_fused_rms_norm_backward(dy.contiguous(), x, width, rstd, weight, {true, true});
    return {dx, dw, {}};
  }
  // The kernel reads no bias; it wants one where it makes its gradient.
  const at::Tensor like_bias = bias ? at::zeros_like(weight) : at::Tensor();
  const auto [dx, dw, db] = at::native_layer_norm_backward(dy.contiguous(), x, width, mean, rstd,
                                                           weight, like_bias, {true, true, bias});
  return {dx, dw, db};
}

Statistics forward(NormKind kind, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& bias, double epsilon) {
  if (has_device_kernel(kind, x, weight, bias.defined()))
    return device_forward(kind, x, weight, bias, epsilon);
  if (!has_kernel(x, weight)) return plain_forward(kind, x, weight, bias, epsilon);
  const auto shape = shape_of(kind, x, epsilon);
  const at::Tensor mean =
      kind == NormKind::kLayer ? at::empty({shape.rows}, x.options()) : at::Tensor();
  const at::Tensor y = at::empty_like(x);
  const at::Tensor rstd = at::empty({shape.rows}, x.options());
  kernels::norm_forward(
      shape, pointer(x), pointer(weight), pointer(bias), y.mutable_data_ptr<float>(),
      mean.defined() ? mean.mutable_data_ptr<float>() : nullptr, rstd.mutable_data_ptr<float>());
  return {y, mean, rstd};
}

/// `d_residual` may be undefined; it is in the result's x already.
NormGradients backward(NormKind kind, const at::Tensor& dy, const at::Tensor& d_residual,
                       const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
                       const at::Tensor& rstd, bool bias) {
  if (!has_kernel(x, weight)) {
    NormGradients gradients = has_device_kernel(kind, x, weight, bias)
                                  ? device_backward(kind, dy, x, weight, mean, rstd, bias)
                                  : plain_backward(dy, x, weight, mean, rstd, bias);
    if (d_residual.defined()) gradients.x = gradients.x + d_residual;
    return gradients;
  }
  // The kernel adds rows to the gradients of weight and bias, in order: one thread, one set of
  // bits.
  NormGradients gradients{at::empty_like(x), at::zeros_like(weight),
                          bias ? at::zeros_like(weight) : at::Tensor()};
  const at::Tensor dy_rows = dy.contiguous();
  const at::Tensor residual_rows = d_residual.defined() ? d_residual.contiguous() : at::Tensor();
  kernels::norm_backward(shape_of(kind, x, 0), pointer(dy_rows), pointer(x), pointer(weight),
                         pointer(mean), pointer(rstd), pointer(residual_rows),
                         gradients.x.mutable_data_ptr<float>(),
                         gradients.weight.mutable_data_ptr<float>(),
                         bias ? gradients.bias.mutable_data_ptr<float>() : nullptr);
  return gradients;
}

Tensors run(NormKind kind, const at::Tensor& input, const Weight& weight, const Weight& bias,
            double epsilon, bool residual) {
  SHOAL_USER_CHECK(
      input.dim() >= 1 && weight.tensor.dim() == 1 && input.size(-1) == weight.tensor.size(0),
      "norm", "last dimension of the input is {}, the weight has {}",
      input.dim() ? input.size(-1) : 0, weight.tensor.numel());
  return differentiable("norm", {input, weight.tensor, bias.tensor}, [&](const Wanted& wanted) {
    const at::Tensor x = input.contiguous();
    const Statistics out =
        forward(kind, x, summand(weight.tensor, x), summand(bias.tensor, x), epsilon);
    Recorded recorded;
    recorded.outputs = {out.y};
    // The stream as an output of this node: its gradient arrives here together with the norm's, and
    // one pass adds them. Autograd would otherwise add two tensors itself.
    if (residual) recorded.outputs.push_back(x.detach());
    if (!wanted.any) return recorded;
    // One number or two a row are kept instead of the normalised row, which is computed again.
    recorded.saved = {x, weight.tensor, out.mean, out.rstd};
    recorded.backward = [kind, weight_sink = weight.sink, bias_sink = bias.sink,
                         has_bias = bias.defined(), residual,
                         wanted](const Tensors& saved, const Tensors& gradients) {
      const at::Tensor d_residual = residual ? gradients[1] : at::Tensor();
      // Only the residual was used.
      if (!gradients[0].defined()) return Tensors{d_residual, {}, {}};
      const NormGradients g = backward(kind, gradients[0], d_residual, saved[0],
                                       summand(saved[1], saved[0]), saved[2], saved[3], has_bias);
      return Tensors{g.x, wanted.input[1] ? hand_over(weight_sink, g.weight) : at::Tensor(),
                     wanted.input[2] ? hand_over(bias_sink, g.bias) : at::Tensor()};
    };
    return recorded;
  });
}

}  // namespace

at::Tensor norm(NormKind kind, const at::Tensor& x, const Weight& weight, const Weight& bias,
                double epsilon) {
  return run(kind, x, weight, bias, epsilon, false)[0];
}

std::pair<at::Tensor, at::Tensor> norm_residual(NormKind kind, const at::Tensor& x,
                                                const Weight& weight, const Weight& bias,
                                                double epsilon) {
  Tensors out = run(kind, x, weight, bias, epsilon, true);
  return {std::move(out[1]), std::move(out[0])};
}

}  // namespace shoal::ops
