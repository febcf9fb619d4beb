#include "shoal/parallel/tensor/vocabulary.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "shoal/base/check.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/entropy_parts.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/parallel/redistribute.h"
#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {
namespace {

/// True for the rows whose loss this rank reports: labels [B, T] in the stream's rows.
at::Tensor own_rows(const at::Tensor& labels, const nn::Stream& stream) {
  const at::Tensor own = at::zeros(labels.sizes(), at::kBool);
  own.narrow(stream.dim, stream.begin, stream.count).fill_(true);
  return own.view({-1});
}

}  // namespace

VocabularyEmbedding::VocabularyEmbedding(const nn::Embedding& original, comm::Group ranks)
    : Embedding(nn::Replacement(), original), ranks_(std::move(ranks)) {}

at::Tensor VocabularyEmbedding::forward(const at::Tensor& x, const nn::Context& context) {
  const mesh::Box& box = weight()->box();
  const std::int64_t rows = weight()->global_shape()[0];
  SHOAL_USER_CHECK(
      x.numel() == 0 || (x.min().item<std::int64_t>() >= 0 && x.max().item<std::int64_t>() < rows),
      "embedding", "a token lies outside the {} rows of the table", rows);
  const at::Tensor own = x.ge(box.begin[0]).logical_and(x.lt(box.end[0]));
  // Tokens of other ranks look up row 0, and their result is dropped.
  const at::Tensor index = x.sub(box.begin[0]).mul(own);
  const at::Tensor found = ops::embedding(index, weight()->weight());
  return sum_into_stream(found.mul(own.unsqueeze(-1)), ranks_, context);
}

VocabularyOutput::VocabularyOutput(const nn::Output& original, comm::Group ranks)
    : Output(nn::Replacement(), original), ranks_(std::move(ranks)) {}

at::Tensor VocabularyOutput::forward(const at::Tensor& x, const nn::Context& context) {
  const std::int64_t classes = weight()->global_shape()[0];
  if (!context.labels.defined()) {
    std::vector<std::int64_t> whole = x.sizes().vec();
    whole.back() = classes;
    return redistribute(ops::linear(x, weight()->weight()), ranks_, mesh::Placement::shard(-1),
                        mesh::Placement::replicate(), whole);
  }
  SHOAL_USER_CHECK(context.stream.divided(), "tensor parallel",
                   "a loss needs the rows of the stream of which this rank reports it");
  const at::Tensor labels = context.labels.contiguous();
  ops::check_labels(labels, labels.numel(), classes);
  const at::Tensor own = own_rows(labels, context.stream);
  const at::Tensor label = labels.view({-1});
  const std::int64_t first_class = weight()->box().begin[0];
  // The gradient of logits that are computed again needs the sums over all ranks' classes, and not
  // another exchange.
  const at::Tensor kept =
      context.recompute_logits ? at::empty({label.size(0)}, at::kDouble) : at::Tensor();
  const auto loss = [&](const at::Tensor& logits, std::int64_t first, bool gradient) {
    const std::int64_t rows = logits.size(0);
    const at::Tensor block = label.narrow(0, first, rows);
    const at::Tensor part = ops::entropy_part(logits, block, first_class);
    const at::Tensor parts = at::empty({ranks_.size(), rows, 2}, part.options());
    ranks_.all_gather(parts.view({-1}), part.view({-1}));
    const at::Tensor log_sums = at::logsumexp(parts.select(2, 0), {0}).contiguous();
    if (kept.defined()) kept.narrow(0, first, rows).copy_(log_sums);
    const at::Tensor targets = parts.select(2, 1).sum(0);
    if (gradient)
      ops::entropy_part_gradient(logits, block, first_class, log_sums, context.loss_scale);
    const at::Tensor counted = own.narrow(0, first, rows).logical_and(block.ne(ops::kIgnoredLabel));
    return log_sums.sub(targets).masked_select(counted).sum().item<double>();
  };
  const auto again = [label, kept, first_class, scale = context.loss_scale](
                         const at::Tensor& logits, std::int64_t first) {
    const std::int64_t rows = logits.size(0);
    ops::entropy_part_gradient(logits, label.narrow(0, first, rows), first_class,
                               kept.narrow(0, first, rows), scale);
  };
  return ops::linear_loss(x, weight()->weight(), context.loss_scale, {loss, again},
                          {.recompute_logits = context.recompute_logits});
}

}  // namespace shoal::parallel
