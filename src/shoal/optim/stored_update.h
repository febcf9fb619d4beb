#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/base/element_type.h"
#include "shoal/base/philox.h"
#include "shoal/optim/update.h"

namespace shoal::optim {

/// An array with the type of its elements; null: there is none.
struct Stored {
  void* data = nullptr;
  ElementType type = ElementType::kF32;

  Stored from(std::size_t element) const;  ///< the array from `element` on
};

/// The arrays that AdamW reads and writes for a range of a parameter. bf16 arrays are rounded
/// stochastically: they hold running values whose changes are smaller than half of the last place
/// and would be lost by rounding to nearest. `copy` is no running value and is rounded to nearest.
struct StoredAdamW {
  Stored parameter;  ///< f32 (the master weight where there is a copy), or bf16
  /// bf16 or f16 values of the forward pass, written from `parameter` in the same pass; or null.
  Stored copy;
  Stored gradient;             ///< f32, bf16 or f16; read only
  Stored exp_avg, exp_avg_sq;  ///< f32 or bf16
};

/// The random numbers that round one update of one parameter.
struct RoundingDraws {
  Key key;
  /// Index of the first element within the parameter, so that any split of it gives the same bits.
  std::uint64_t first = 0;
};

/// Does adamw_update on arrays of any of these types. A block at a time becomes float in the
/// first-level cache, so that each array passes through memory once.
void adamw_update(const StoredAdamW& arrays, std::size_t count, const AdamWFactors& factors,
                  const RoundingDraws& draws);

/// Returns sum_of_squares of a stored array, as if it were widened to float first.
double sum_of_squares(const Stored& values, std::size_t count);

}  // namespace shoal::optim
