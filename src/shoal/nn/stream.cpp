#include "shoal/nn/stream.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include "shoal/nn/context.h"

namespace shoal::nn {

ops::RowPlace place_in_stream(const Context& context) {
  ops::RowPlace place{context.samples, context.positions, context.position_begin};
  const Stream& stream = context.stream;
  if (!stream.divided()) return place;
  if (stream.dim == 0) {
    place.samples = context.samples.defined()
                        ? context.samples.narrow(0, stream.begin, stream.count)
                        : at::arange(stream.begin, stream.begin + stream.count, at::kLong);
  } else if (context.positions.defined()) {
    place.positions = context.positions.narrow(0, stream.begin, stream.count);
  } else {
    place.position_begin += stream.begin;
  }
  return place;
}

}  // namespace shoal::nn
