#include "shoal/parallel/tensor/column_linear.h"

#include <ATen/core/Tensor.h>

#include "shoal/nn/replay.h"
#include "shoal/parallel/tensor/overlapped_products.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

ColumnLinear::ColumnLinear(const nn::Linear& original, RowLinks links)
    : Linear(nn::Replacement(), original), links_(std::move(links)) {}

std::vector<at::Tensor> ColumnLinear::products(const std::vector<const Linear*>& layers,
                                               bool biased, const at::Tensor& x,
                                               const nn::Context& context) const {
  std::vector<Layer> operands;
  for (const Linear* layer : layers) {
    const bool adds = biased && layer->bias();
    operands.push_back({layer->weight()->weight(), adds ? layer->bias()->weight() : ops::Weight()});
  }
  std::vector<at::Tensor> results;
  if (!parts_in_order(context.stream, x.size(0), links_.ranks.size())) {
    const at::Tensor all = gather_stream(x, links_.ranks, context);
    for (const Layer& operand : operands)
      results.push_back(nn::product(context, all, operand.weight, operand.bias));
    return results;
  }
  nn::Replay* replay = context.replay;
  std::vector<at::Tensor> known;
  if (replay != nullptr && replay->repeating())
    for (std::size_t i = 0; i < layers.size(); ++i) known.push_back(replay->next());
  results = gathered_products(x, operands, links_, context.stream, known);
  if (replay != nullptr && !replay->repeating())
    for (const at::Tensor& result : results) replay->keep(result);
  return results;
}

at::Tensor ColumnLinear::onto(const at::Tensor& residual, const at::Tensor& x,
                              const nn::Context& context) const {
  at::Tensor y = products({this}, true, x, context)[0];
  return residual.defined() ? residual + y : y;
}

at::Tensor ColumnLinear::multiplied(const at::Tensor& x, const nn::Context& context) const {
  return products({this}, false, x, context)[0];
}

std::pair<at::Tensor, at::Tensor> ColumnLinear::with(const Linear& other, const at::Tensor& x,
                                                     const nn::Context& context) const {
  if (dynamic_cast<const ColumnLinear*>(&other) == nullptr) return Linear::with(other, x, context);
  std::vector<at::Tensor> both = products({this, &other}, true, x, context);
  return {std::move(both[0]), std::move(both[1])};
}

}  // namespace shoal::parallel
