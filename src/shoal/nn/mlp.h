#pragma once

#include "shoal/nn/module.h"

namespace shoal::nn {

/// The second branch of a block: it maps x [B, T, h] to [B, T, h].
class FeedForward : public Module {
 public:
  /// Returns residual + forward(x), in one pass where it can; `residual` may be undefined.
  virtual at::Tensor onto(const at::Tensor& residual, const at::Tensor& x,
                          const Context& context) = 0;

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override {
    return onto({}, x, context);
  }
};

/// Computes down(act(up x)), or down(act(gate x) * up x) when gated. Its children are `gate` (when
/// gated), `up` and `down`; `width` is that of what lies between.
class Mlp : public FeedForward {
 public:
  Mlp(const model::ModelSpec& spec, std::int64_t width);
  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x, const Context& context) override;

 protected:
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;

 private:
  at::Tensor hidden(const at::Tensor& x, const Context& context);

  model::Activation activation_;
  std::shared_ptr<Module> gate_;
  std::shared_ptr<Module> up_;
  std::shared_ptr<Module> down_;
};

}  // namespace shoal::nn
