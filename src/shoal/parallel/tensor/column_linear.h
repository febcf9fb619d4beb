#pragma once

#include <utility>
#include <vector>

#include "shoal/nn/layers.h"
#include "shoal/parallel/tensor/row_messages.h"

namespace shoal::parallel {

/// A linear layer whose weight [out, in] is cut along `out` (column-parallel), of ranks that share
/// no memory. It takes this rank's rows of the stream, [b, t, in], and gathers the others itself,
/// so that they arrive while it multiplies its own; it gives this rank's features of all rows, [B,
/// T, out / ranks]. If the ranks do not divide the rows evenly it gathers first, as GatheredNorm
/// does.
class ColumnLinear final : public nn::Linear {
 public:
  ColumnLinear(const nn::Linear& original, RowLinks links);

  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x,
                  const nn::Context& context) const override;
  at::Tensor multiplied(const at::Tensor& x, const nn::Context& context) const override;
  /// Gathers the rows once, when `other` is a ColumnLinear too.
  std::pair<at::Tensor, at::Tensor> with(const Linear& other, const at::Tensor& x,
                                         const nn::Context& context) const override;

 private:
  /// The results of several layers, of their biases too if `biased`.
  std::vector<at::Tensor> products(const std::vector<const Linear*>& layers, bool biased,
                                   const at::Tensor& x, const nn::Context& context) const;

  RowLinks links_;
};

}  // namespace shoal::parallel
