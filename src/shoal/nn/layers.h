#pragma once

#include <utility>

#include "shoal/nn/module.h"
#include "shoal/ops/norm.h"

namespace shoal::nn {

/// Computes x weight^T + bias: weight [out, in], bias [out] (zeros at first unless `bias_init` is
/// another initialisation).
class Linear : public Module {
 public:
  struct Options {
    bool bias = true;
    model::Init init = model::Init::kNormal;
    double scale = 0.02;
    model::Init bias_init = model::Init::kZeros;
  };
  Linear(std::int64_t in, std::int64_t out, const Options& options);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  ///< null without one
  /// Returns residual + forward(x), in one pass. `residual` may be undefined.
  virtual at::Tensor onto(const at::Tensor& residual, const at::Tensor& x,
                          const Context& context) const;
  /// Returns true when forward is `multiplied` + bias and nothing else, so that a caller may add
  /// the bias in an operator of its own.
  virtual bool plain_product() const { return true; }
  /// Returns forward(x) without the bias.
  virtual at::Tensor multiplied(const at::Tensor& x, const Context& context) const;
  /// Returns forward(x) of this layer and of `other`, which reads the same x.
  virtual std::pair<at::Tensor, at::Tensor> with(const Linear& other, const at::Tensor& x,
                                                 const Context& context) const;

 protected:
  Linear(Replacement, const Linear& original);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

/// Applies LayerNorm or RMSNorm over the last dimension.
class Norm : public Module {
 public:
  Norm(ops::NormKind kind, std::int64_t width, bool bias, double epsilon);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// Returns (x, norm(x)), the first of them for the residual connection; see ops::norm_residual.
  virtual std::pair<at::Tensor, at::Tensor> split(const at::Tensor& x,
                                                  const Context& context) const;

 protected:
  Norm(Replacement, const Norm& original);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  ops::NormKind kind_;
  double epsilon_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

/// Looks up the rows of a table by token: x [B, T] int64 to [B, T, D].
class Embedding : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t width, double scale);
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  Embedding(Replacement, const Embedding& original);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
};

/// Adds the row of its position to every column of x [B, T, D], the rows of the stream at hand.
class LearnedPositions : public Module {
 public:
  LearnedPositions(std::int64_t positions, std::int64_t width, double scale);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
};

/// Returns residual + dropout(x), for rows of the stream. The mask is a function of (context.key,
/// `name`, sample, position, feature). Outside training, and with probability 0, nothing is
/// dropped. `residual` may be undefined.
at::Tensor dropout(const at::Tensor& x, double probability, const std::string& name,
                   const Context& context, const at::Tensor& residual = {});

}  // namespace shoal::nn
