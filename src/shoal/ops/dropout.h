#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shoal/base/philox.h"

namespace shoal::ops {

/// The place of the rows of a tensor [B, T, D] in the step. Masks are functions of it, so that any
/// split of the batch gives the same masks.
struct RowPlace {
  at::Tensor samples;    ///< [B] int64, global sample index; undefined: 0 .. B - 1
  at::Tensor positions;  ///< [T] int64; undefined: contiguous from `position_begin`
  std::int64_t position_begin = 0;
};

/// Returns residual (undefined: 0) + dropout(x): every element becomes zero with `probability`, and
/// the others are divided by 1 - probability (rounded to 1/65536). The mask is a function of (key,
/// sample, position, feature) and drawn again in backward, so nothing is saved. x [B, T, D] or [B,
/// D].
at::Tensor dropout(const at::Tensor& x, double probability, Key key, const RowPlace& place,
                   const at::Tensor& residual = {});

}  // namespace shoal::ops
