#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/base/element_type.h"
#include "shoal/base/philox.h"
#include "shoal/optim/update.h"

namespace shoal::optim {

/// An array and how its elements are stored; null: there is none.
struct Stored {
  void* data = nullptr;
  ElementType type = ElementType::kF32;

  Stored from(std::size_t element) const;  ///< the same from `element` on
};

/// What AdamW reads and writes of one stretch of a parameter. What is stored in bf16 is rounded
/// stochastically, for each holds a running value whose changes are smaller than half of its last
/// place; `copy` is no such value and is rounded to nearest.
struct StoredAdamW {
  Stored parameter;  ///< f32 (the master weight where there is a copy), or bf16
  Stored copy;  ///< bf16 or f16: what forward computes with, rewritten from `parameter` in the same
                ///< pass; or null
  Stored gradient;             ///< f32, bf16 or f16; read only
  Stored exp_avg, exp_avg_sq;  ///< f32 or bf16
};

/// Which random numbers round: of one update of one parameter.
struct RoundingDraws {
  Key key;
  std::uint64_t first = 0;  ///< index within the parameter of the stretch's first element: any
                            ///< split of a parameter gives the same bits
};

/// adamw_update on arrays of any of these types: a block at a time becomes float in the first
/// cache, so that each array passes through memory once.
void adamw_update(const StoredAdamW& arrays, std::size_t count, const AdamWFactors& factors,
                  const RoundingDraws& draws);

/// sum_of_squares of a stored array, float by float as if it were widened first.
double sum_of_squares(const Stored& values, std::size_t count);

}  // namespace shoal::optim
