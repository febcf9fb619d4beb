#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/element_type.h"
#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// The matmul of a linear layer: an input [rows, in] times the transpose of a weight [out, in].
struct ProductShape {
  std::string layers;     ///< where it is in the model: "up, gate"
  std::int64_t rows = 0;  ///< tokens, or rows of a table
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t count = 1;  ///< products of this shape in one pass of a micro-batch
  /// Where kernels tell a plan its times: they have one for linear layers. Otherwise the product is
  /// a part of the kernel of the loss, of experts or of routing.
  bool linear = true;

  double flops() const {
    return 2 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  }
  /// Bytes of its three matrices in float32.
  double bytes() const {
    return 4 * (static_cast<double>(rows) * static_cast<double>(in + out) +
                static_cast<double>(in) * static_cast<double>(out));
  }
  bool operator==(const ProductShape&) const = default;
};

/// The three products that a linear layer runs in a training step, of equal FLOPs.
enum class ProductPass {
  kForward,         ///< y [rows, out] = x w^T
  kInputGradient,   ///< dx [rows, in] = dy w
  kWeightGradient,  ///< dw [out, in] = dy^T x
};

/// Returns the products of a model's linear layers for one micro-batch as one rank runs them that
/// has blocks of all stages: its part of features, rows and experts, in the order of the forward
/// pass; equal shapes once. The output layer has the rows of a block of its loss (plan::kLossRows),
/// and once more those of a last, shorter one. Attention's own products are not among them.
std::vector<ProductShape> product_shapes(const ModelSpec& spec, const Training& training);

/// Returns the products from which `calibrated` finds what a matmul of any size takes: shapes that
/// the blocks of small models have, from 64 rows on.
const std::vector<ProductShape>& calibration_shapes();

/// Returns true if a plan of this training, in fp32 or bf16, sums the times of kernels that the
/// cluster has (predicts_step_time); otherwise it goes by the figures of the device.
bool planned_by_kernels(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                        ElementType type);

/// Returns the seconds that the planner counts for such a product by the figures of the device.
/// `by_kernels`: by the kernel of linear layers, half of its backward pass for each gradient;
/// nothing where the product is a part of another kernel. Throws Error(config) where the device has
/// no peak of this type.
std::optional<double> planned_product_s(const Cluster& cluster, const ProductShape& shape,
                                        ProductPass pass, ElementType type, bool by_kernels);

}  // namespace shoal::forecast
