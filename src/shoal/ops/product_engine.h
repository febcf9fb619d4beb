#pragma once

#include <optional>
#include <string_view>

#include "shoal/base/clock.h"

namespace shoal::ops {

/// The code that multiplies fp32 matrices and computes fp32 attention. The two engines round
/// differently, so the ranks of a job must use the same one.
enum class ProductEngine {
  /// Shoal's own product (kernels::gemm). The bits of an element depend on the values alone: not on
  /// where the matrices lie, how rows and columns are cut, or how many threads there are.
  kShoal,
  /// The BLAS in LibTorch. The bits may depend on the number of threads, and in MKL on where the
  /// matrices lie unless MKL_CBWR is strict (base/instruction_sets.h).
  kLibTorch,
};

std::string_view name(ProductEngine engine);  ///< "shoal", "libtorch"
std::optional<ProductEngine> product_engine(std::string_view name);

/// Returns the engine of this process: Shoal's own unless set_product_engine has chosen another.
ProductEngine product_engine();
/// Sets the engine for all threads. It must not be called while a matmul runs.
void set_product_engine(ProductEngine engine);

/// The shortest times, in seconds, of the matmuls of one linear layer of GPT-2 in each engine: 128
/// rows, 768 x 768, forward and backward.
struct EngineTimes {
  double shoal_s = 0;
  double libtorch_s = 0;
};

/// Runs both engines in turns, so that a busy moment slows both, for about `budget` and at least
/// twice.
EngineTimes measure_engines(Duration budget);

/// Returns LibTorch's engine where it takes less than 3/4 of the time that Shoal's takes. Otherwise
/// it returns Shoal's, whose bits depend on less. The margin is wider than the difference between
/// two measurements.
ProductEngine better_engine(const EngineTimes& times);

}  // namespace shoal::ops
