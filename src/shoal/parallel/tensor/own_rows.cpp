#include "shoal/parallel/tensor/own_rows.h"

#include <ATen/core/Tensor.h>

#include "shoal/base/check.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

at::Tensor OwnRowsEmbedding::forward(const at::Tensor& x, const nn::Context& context) {
  const nn::Stream& stream = context.stream;
  check_divided(stream);
  if (!stream.divided()) return Embedding::forward(x, context);
  return Embedding::forward(x.narrow(stream.dim, stream.begin, stream.count).contiguous(), context);
}

at::Tensor OwnRowsOutput::forward(const at::Tensor& x, const nn::Context& context) {
  const nn::Stream& stream = context.stream;
  if (!context.labels.defined()) return gather_stream(Output::forward(x, context), ranks_, context);
  SHOAL_USER_CHECK(stream.divided(), "tensor parallel",
                   "a loss needs the rows of the stream of which this rank reports it");
  nn::Context own = context;
  own.labels = context.labels.narrow(stream.dim, stream.begin, stream.count).contiguous();
  return Output::forward(x, own);
}

}  // namespace shoal::parallel
