#pragma once

#include <cstdint>
#include <vector>

#include "shoal/forecast/mixture_memory.h"
#include "shoal/forecast/plan_names.h"
#include "shoal/model/kept_activations.h"

namespace shoal::forecast {

/// Returns a micro-batch as one rank of the job runs it: of context ranks the one that has most.
MicroBatch micro_batch(const ModelSpec& spec, const Training& training);

/// The bytes that the units of a transformer hold on one rank while one micro-batch goes through
/// them: those that stay from forward to backward, and the temporaries of their worst moments.
/// Models of other families have blocks alone.
class UnitMoments {
 public:
  UnitMoments(const ModelSpec& spec, const Training& training, const Cluster& cluster);

  /// Bytes of one activation.
  static constexpr double kElement = 4;

  const ModelSpec& spec() const { return spec_; }
  const model::MicroBatch& batch() const { return batch_; }
  /// Returns what each block keeps for its backward pass.
  const std::vector<Keep>& keeps() const { return keeps_; }
  const model::BlockCost& block(std::int64_t number) const {
    return costs_[static_cast<std::size_t>(number)];
  }

  double rows() const { return batch_.rows(); }
  /// Return the bytes of all rows at the width of the model, and of this rank's rows of the stream.
  double width() const { return kElement * rows() * static_cast<double>(spec_.hidden); }
  double stream() const { return width() / tensor_; }
  /// Returns the bytes of a step's micro-batches, which are all read before the first one runs, and
  /// of the tables of positions.
  double data() const { return data_; }

  /// Returns the bytes that the head keeps beside the loss: its input, the input of its matmul, two
  /// numbers a row.
  double head_input() const { return stream() + rounded(head_width()) + 8 * head_rows(); }
  /// A moment of the head: what it holds of the loss, and temporaries.
  struct Head {
    double held = 0;
    double temporary = 0;
    bool gradient = false;  ///< the gradient of its weight has been written
  };
  /// Returns the moments of the head that may be its worst. The last one is that in which the loss
  /// is done and its backward pass begins.
  std::vector<Head> head() const;

  /// Returns the temporaries of the backward pass of one block.
  double block_backward(std::int64_t block, Weights weights = Weights::kNow) const;
  /// Returns what the products of a block hold that only weights want, until they are computed
  /// (nn/weight_gradients.h), and the same of the head.
  double block_factors(std::int64_t block) const;
  double head_factors() const;
  /// Returns the temporaries of the head's weight gradient where its logits are computed again for
  /// it; otherwise they are among the moments of `head`. `first`: of the micro-batches of a step.
  double head_weight_gradient(bool first) const;
  /// Returns the temporaries of the embedding's backward pass.
  double embedding_backward() const {
    return 2 * width() / (tokens_cut_ ? 1 : tensor_) + exchanged(tokens_cut_);
  }

 private:
  /// Returns the bytes that an exchange between stream and all rows adds.
  double exchanged(bool exchanges) const { return exchanges && tensor_ > 1 ? stream() : 0; }
  /// Return the rows of which the head computes logits, and their bytes at the width of the model:
  /// those of the stream where every rank has the whole output layer.
  double head_rows() const { return output_cut_ ? rows() : rows() / tensor_; }
  double head_width() const { return output_cut_ ? width() : stream(); }
  double feed_forward_backward(std::int64_t block, Weights weights) const;
  double moving(model::Boundary from, model::Boundary to, double whole) const;
  double result_gradient(std::int64_t block) const;
  double attention_moments(std::int64_t block) const;
  double feed_forward_factors(std::int64_t block) const;
  /// Returns the bytes of an activation as a matmul keeps it, from its bytes in fp32.
  double rounded(double bytes) const { return bytes / kElement * batch_.product_bytes; }
  double vocabulary() const;
  double logits_block() const;

  const ModelSpec& spec_;
  bool narrow_;  ///< weights have 16 bits, and their operands are rounded to that
  model::MicroBatch batch_;
  double tensor_;    ///< ranks that divide heads, features, vocabulary and the stream
  bool tokens_cut_;  ///< the token table
  bool output_cut_;  ///< the output layer
  std::int64_t threads_;
  bool one_loss_block_;  ///< the head computes all its logits at once
  bool recompute_logits_;
  bool narrow_gradient_;   ///< gradients have 16 bits
  bool tensor_in_place_;   ///< tensor-parallel ranks share memory
  bool context_in_place_;  ///< context-parallel ranks do
  bool experts_in_place_;  ///< ranks with other experts do
  double data_;
  std::vector<Keep> keeps_;
  std::vector<model::BlockCost> costs_;
};

}  // namespace shoal::forecast
