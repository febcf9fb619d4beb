#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shoal::nn {

/// The whole sequence of which context-parallel ranks hold some columns each. Inputs, labels,
/// positions and documents of the context are those of the columns at hand; what attention must
/// know of the others is here.
struct Sequence {
  std::int64_t columns = 0;  ///< of all ranks; 0: the sequence is not divided
  at::Tensor documents;      ///< [B or 1, columns] int32, of all columns; undefined: one document

  bool divided() const { return columns > 0; }
};

}  // namespace shoal::nn
