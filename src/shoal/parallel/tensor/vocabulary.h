#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/transformer.h"

namespace shoal::parallel {

/// An embedding whose rows are cut among tensor-parallel ranks: each looks up the tokens that it
/// has, and the sum over the ranks is everybody's. tokens [B, T] to this rank's rows of the stream,
/// [b, t, h].
class VocabularyEmbedding final : public nn::Embedding {
 public:
  VocabularyEmbedding(const nn::Embedding& original, comm::Group ranks);

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group ranks_;
};

/// An output layer whose classes are cut among tensor-parallel ranks. x [B, T, h] of all rows gives
/// the loss of this rank's rows of the stream, so that the sum over ranks counts every row once; of
/// the logits each rank has its own classes, and two numbers a row travel. Without labels it gives
/// the logits of all classes, on every rank.
class VocabularyOutput final : public nn::Output {
 public:
  VocabularyOutput(const nn::Output& original, comm::Group ranks);

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group ranks_;
};

}  // namespace shoal::parallel
