#include "shoal/parallel/tensor/gathered_norm.h"

#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

GatheredNorm::GatheredNorm(const nn::Norm& original, comm::Group ranks)
    : Norm(nn::Replacement(), original), ranks_(std::move(ranks)) {}

std::pair<at::Tensor, at::Tensor> GatheredNorm::split(const at::Tensor& x,
                                                      const nn::Context& context) const {
  const auto [residual, y] = Norm::split(x, context);
  // The residual stays divided: only what the next product reads is gathered.
  return {residual, gather_stream(y, ranks_, context)};
}

at::Tensor GatheredNorm::forward(const at::Tensor& x, const nn::Context& context) {
  return gather_stream(Norm::forward(x, context), ranks_, context);
}

}  // namespace shoal::parallel
