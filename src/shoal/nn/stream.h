#pragma once

#include <cstdint>

#include "shoal/ops/dropout.h"

namespace shoal::nn {

struct Context;

/// The part of the residual stream [B, T, h] that this rank holds where tensor-parallel ranks
/// divide it: rows [begin, begin + count) of one dimension. Inputs, labels and everything else in
/// the context stay those of all tokens.
struct Stream {
  int dim = 0;  ///< 0: samples, 1: columns
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t whole = 0;  ///< size of `dim` in the inputs; 0: the stream is not divided

  bool divided() const { return whole > 0; }
};

/// Returns the samples and positions of the rows of the stream at hand, by which layers on the
/// stream (dropout, learned positions) find their places.
ops::RowPlace place_in_stream(const Context& context);

}  // namespace shoal::nn
