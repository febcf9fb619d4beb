#include "shoal/ops/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "shoal/base/check.h"
#include "shoal/ops/activation_kernels.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/kernel_input.h"

namespace shoal::ops {
namespace {

// The activations of GPT-2 and Llama in fp32 have kernels; others, and other types, take LibTorch's
// operators.
bool has_kernel(Activation activation, const at::Tensor& x) {
  return (activation == Activation::kGeluTanh || activation == Activation::kSilu) &&
         is_fp32_on_cpu(x);
}
kernels::Curve curve(Activation activation) {
  return activation == Activation::kSilu ? kernels::Curve::kSilu : kernels::Curve::kGeluTanh;
}

at::Tensor plain_forward(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kTanh:
      return at::tanh(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
  }
  SHOAL_CHECK(false, "activation {}", static_cast<int>(activation));
}

at::Tensor plain_backward(Activation activation, const at::Tensor& dy, const at::Tensor& x) {
  switch (activation) {
    case Activation::kRelu:
      return at::threshold_backward(dy, x, 0);
    case Activation::kGelu:
      return at::gelu_backward(dy, x);
    case Activation::kGeluTanh:
      return at::gelu_backward(dy, x, "tanh");
    case Activation::kSilu:
      return at::silu_backward(dy, x);
    case Activation::kTanh:
      // These two are derived from the result, which is computed again: kept is the input, as for
      // all the others.
      return at::tanh_backward(dy, at::tanh(x));
    case Activation::kSigmoid:
      return at::sigmoid_backward(dy, at::sigmoid(x));
  }
  SHOAL_CHECK(false, "activation {}", static_cast<int>(activation));
}

at::Tensor biased(const at::Tensor& x, const at::Tensor& bias) {
  return bias.defined() ? x + bias : x;
}

at::Tensor backward(Activation activation, const at::Tensor& dy, const at::Tensor& x,
                    const at::Tensor& kept_bias, bool bias_wanted,
                    const std::shared_ptr<GradientSink>& sink, at::Tensor& d_bias) {
  const std::int64_t width = x.size(-1);
  // Forward kept the bias as the parameter stores it; a 16-bit one is widened again here, which
  // costs less than keeping a second copy.
  const at::Tensor bias = summand(kept_bias, x);
  // LibTorch's operators know no bias: the sum is made again, and the gradient of the bias is a
  // second pass.
  if (!has_kernel(activation, x)) {
    const at::Tensor dx = plain_backward(activation, dy, biased(x, bias));
    if (bias_wanted) {
      d_bias = deliver(sink, kept_bias, [&](const at::Tensor& target, bool accumulate) {
        const at::Tensor total = dx.reshape({-1, width}).sum(0);
        accumulate ? target.add_(total) : target.copy_(total);
      });
    }
    return dx;
  }
  const at::Tensor dx = at::empty_like(x);
  const auto run = [&](float* sums) {
    kernels::activation_backward(curve(activation), x.numel() / width, width, pointer(x),
                                 pointer(bias), pointer(dy), dx.mutable_data_ptr<float>(), sums);
  };
  if (!bias_wanted) {
    run(nullptr);
  } else {
    d_bias = deliver(sink, kept_bias, [&](const at::Tensor& target, bool accumulate) {
      // The kernel adds to what it is given: one pass makes dx and the gradient of the bias,
      // rounded once where the target has 16 bits.
      write_widened(target, accumulate, [&](const at::Tensor& sum, bool onto) {
        if (!onto) sum.zero_();
        run(sum.mutable_data_ptr<float>());
      });
    });
  }
  return dx;
}

}  // namespace

at::Tensor activate(Activation activation, const at::Tensor& input, const Weight& bias) {
  SHOAL_USER_CHECK(!bias.defined() || (input.dim() > 0 && bias.tensor.numel() == input.size(-1)),
                   "activate", "bias of {} for a last dimension of {}", bias.tensor.numel(),
                   input.dim() ? input.size(-1) : 0);
  return differentiable("activate", {input, bias.tensor}, [&](const Wanted& wanted) {
    const at::Tensor x = input.contiguous();
    const at::Tensor added = summand(bias.tensor, x);
    at::Tensor y;
    // An empty tensor has no last dimension to divide by.
    if (has_kernel(activation, x) && x.numel() > 0) {
      y = at::empty_like(x);
      const std::int64_t width = x.dim() ? x.size(-1) : 1;
      kernels::activation_forward(curve(activation), x.numel() / width, width, pointer(x),
                                  pointer(added), y.mutable_data_ptr<float>());
    } else {
      y = plain_forward(activation, biased(x, added));
    }
    return Recorded{
        {y},
        // Kept are the input and the bias, never their sum: backward computes it again from what
        // other operators keep too.
        {x, bias.tensor},
        [activation, wanted, sink = bias.sink](const Tensors& saved, const Tensors& gradients) {
          at::Tensor d_bias;
          at::Tensor dx = backward(activation, gradients[0].contiguous(), saved[0], saved[1],
                                   wanted.input[1], sink, d_bias);
          return Tensors{dx, d_bias};
        }};
  })[0];
}

at::Tensor gated(Activation activation, const at::Tensor& gate_input, const at::Tensor& up_input) {
  SHOAL_USER_CHECK(gate_input.sizes() == up_input.sizes(), "gated", "{} and {} elements",
                   gate_input.numel(), up_input.numel());
  return differentiable("gated", {gate_input, up_input}, [&](const Wanted&) {
    const at::Tensor gate = gate_input.contiguous();
    const at::Tensor up = up_input.contiguous();
    at::Tensor y;
    if (has_kernel(activation, gate)) {
      y = at::empty_like(gate);
      kernels::gated_forward(curve(activation), 1, gate.numel(), pointer(gate), pointer(up),
                             y.mutable_data_ptr<float>());
    } else {
      y = plain_forward(activation, gate) * up;
    }
    // Kept are the two results of matmuls; act(gate), as large again, is computed anew.
    return Recorded{{y}, {gate, up}, [activation](const Tensors& saved, const Tensors& gradients) {
                      const at::Tensor& gate = saved[0];
                      const at::Tensor& up = saved[1];
                      const at::Tensor dy = gradients[0].contiguous();
                      if (!has_kernel(activation, gate)) {
                        return Tensors{plain_backward(activation, dy * up, gate),
                                       dy * plain_forward(activation, gate)};
                      }
                      const at::Tensor d_gate = at::empty_like(gate);
                      const at::Tensor d_up = at::empty_like(up);
                      kernels::gated_backward(curve(activation), 1, gate.numel(), pointer(gate),
                                              pointer(up), pointer(dy),
                                              d_gate.mutable_data_ptr<float>(),
                                              d_up.mutable_data_ptr<float>());
                      return Tensors{d_gate, d_up};
                    }};
  })[0];
}

}  // namespace shoal::ops
