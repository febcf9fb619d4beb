#pragma once

#include <optional>
#include <string_view>

#include "shoal/base/clock.h"

namespace shoal::ops {

/// Whose code multiplies fp32 matrices and computes fp32 attention. The two round differently, so
/// the ranks of a job must use the same one.
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

/// The engine of this process: Shoal's own unless set_product_engine said otherwise.
ProductEngine product_engine();
/// For all threads; between steps, not while a product runs.
void set_product_engine(ProductEngine engine);

/// Least seconds that the products of one linear layer of GPT-2 took: 128 rows, 768 x 768, forward
/// and backward, in each engine.
struct EngineTimes {
  double shoal_s = 0;
  double libtorch_s = 0;
};

/// Runs both in turns, so that a busy moment strikes both, for about `budget` and at least twice.
EngineTimes measure_engines(Duration budget);

/// LibTorch's engine where it takes less than 3/4 of the time that Shoal's takes, else Shoal's,
/// whose bits promise more. The margin is wider than what one measurement differs from the next.
ProductEngine better_engine(const EngineTimes& times);

}  // namespace shoal::ops
