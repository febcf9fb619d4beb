#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/transformer.h"

namespace shoal::parallel {

/// An embedding whose table every tensor-parallel rank has: each looks up the tokens of its own
/// rows of the stream. tokens [B, T] to [b, t, h].
class OwnRowsEmbedding final : public nn::Embedding {
 public:
  explicit OwnRowsEmbedding(const nn::Embedding& original)
      : Embedding(nn::Replacement(), original) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;
};

/// An output layer whose weight every tensor-parallel rank has. x [b, t, h], this rank's rows of
/// the stream, gives their loss. Without labels it gives the logits of all rows, on every rank.
class OwnRowsOutput final : public nn::Output {
 public:
  OwnRowsOutput(const nn::Output& original, comm::Group ranks)
      : Output(nn::Replacement(), original), ranks_(std::move(ranks)) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group ranks_;
};

}  // namespace shoal::parallel
