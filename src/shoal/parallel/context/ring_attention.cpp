#include "shoal/parallel/context/ring_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros_like.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/ops/attention_part.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/key_ranges.h"
#include "shoal/parallel/context/ring_order.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace shoal::parallel {
namespace {

using ops::AttentionPart;
using ops::HeadTensors;
using ops::TokenPlaces;

/// Messages of the two kinds between two neighbours are told apart by their tags.
constexpr std::uint32_t kKeysAndValues = 1;
constexpr std::uint32_t kTheirGradient = 2;

/// A block: keys and values of one rank lie together, [B, S, groups, 2, head_size], so that one
/// message carries both.
HeadTensors with_block(const at::Tensor& q, const at::Tensor& block) {
  return {q, block.select(3, 0), block.select(3, 1)};
}

/// The tokens that each rank holds of the sequence of `context`. Throws Error(usage) when the
/// positions of this rank are not its columns of `cut`.
std::vector<ops::TokenPlaces> places_of_ranks(const nn::Context& context, const comm::Group& ranks,
                                              mesh::Placement::Cut cut) {
  const nn::Sequence& sequence = context.sequence;
  std::vector<ops::TokenPlaces> places;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor columns = columns_of(sequence.columns, cut, ranks.size(), rank);
    at::Tensor documents;
    if (sequence.documents.defined()) documents = sequence.documents.index_select(1, columns);
    places.push_back({columns.size(0), columns, documents});
  }
  const auto own = static_cast<std::size_t>(ranks.rank());
  SHOAL_USER_CHECK(context.positions.defined() &&
                       context.positions.sizes() == places[own].positions.sizes() &&
                       at::equal(context.positions, places[own].positions),
                   "context parallel",
                   "rank {} of {}: the positions are not its columns of {}: make inputs and "
                   "context by cut_sequence",
                   ranks.rank(), ranks.size(), sequence.columns);
  return places;
}

/// True where at least one query sees a key.
bool shows_any(const at::Tensor& ranges) {
  return ranges.select(2, 0).lt(ranges.select(2, 1)).any().item<bool>();
}

/// A tensor that is being received.
struct Arrival {
  at::Tensor tensor;
  comm::Work work;

  at::Tensor take() {
    work.order();
    return std::exchange(tensor, {});
  }
};

/// The tokens of all ranks, and the messages between neighbours in the ring.
class Ring {
 public:
  /// `places`: the tokens of each rank.
  Ring(comm::Group ranks, const ops::HeadShape& shape, std::vector<TokenPlaces> places)
      : ranks_(std::move(ranks)), shape_(shape), places_(std::move(places)) {}

  AttentionPart forward(const at::Tensor& qkv) const;
  /// Returns the gradient of `qkv`, of which `whole` is the result.
  at::Tensor backward(const at::Tensor& qkv, const AttentionPart& whole,
                      const at::Tensor& d_out) const;

  const comm::Group& ranks() const { return ranks_; }
  const ops::HeadShape& shape() const { return shape_; }
  int size() const { return ranks_.size(); }
  /// The rank that lies `steps` behind this one in the ring, or before it if negative.
  int at(int steps) const { return rank_in_ring(ranks_.rank(), steps, size()); }
  /// A tensor for the block of a rank, or for its gradient.
  at::Tensor room_for(int rank, const at::Tensor& qkv, const at::TensorOptions& options) const {
    const std::int64_t groups = qkv.size(2) / ((shape_.heads_per_group + 2) * shape_.head_size);
    return at::empty(
        {qkv.size(0), places_[static_cast<std::size_t>(rank)].columns, groups, 2, shape_.head_size},
        options);
  }
  comm::Work send(const at::Tensor& tensor, int to, std::uint32_t tag) const {
    return ranks_.send(tensor, to, tag, {.async = true});
  }
  Arrival receive(const at::Tensor& room, int from, std::uint32_t tag) const {
    return {room, ranks_.recv(room, from, tag, {.async = true})};
  }

 private:
  /// Which keys of a rank this rank's queries see.
  at::Tensor ranges_of(int rank) const {
    return ops::key_ranges(places_[static_cast<std::size_t>(ranks_.rank())],
                           places_[static_cast<std::size_t>(rank)]);
  }
  Arrival receive_gradient(int rank, const at::Tensor& qkv, const AttentionPart& whole) const {
    const ScopedCategory category(MemoryCategory::kCommunication);
    return receive(room_for(rank, qkv, whole.lse.options()), at(kBackwardVisits), kTheirGradient);
  }

  comm::Group ranks_;
  ops::HeadShape shape_;
  std::vector<TokenPlaces> places_;
};

/// The keys and values of all ranks, one rank after the other, from this one on: read in place
/// where the ranks can lend them to each other, and otherwise passed on from neighbour to
/// neighbour, so that a rank has two blocks at a time.
class Visits {
 public:
  /// `direction`: kForwardVisits or kBackwardVisits. Collective.
  Visits(const Ring& ring, const at::Tensor& qkv, int direction)
      : ring_(ring), qkv_(qkv), direction_(direction), lent_(ring.ranks().lend_in_place(qkv, 1)) {
    if (!lent_) {
      block_ = qkv.view({qkv.size(0), qkv.size(1), -1, ring.shape().heads_per_group + 2,
                         ring.shape().head_size})
                   .narrow(3, ring.shape().heads_per_group, 2)
                   .contiguous();
    }
  }

  int rank() const { return ring_.at(direction_ * step_); }
  bool last() const { return step_ + 1 == ring_.size(); }
  /// Queries `q` with the keys and values of `rank()`, which is another one.
  HeadTensors heads(const at::Tensor& q) const {
    if (!lent_) return with_block(q, block_);
    const HeadTensors theirs = ops::head_tensors(lent_->part(rank()), ring_.shape());
    return {q, theirs.k, theirs.v};
  }

  /// Lets the next block come, and this one go on, while this one is computed with.
  void prepare_next() {
    if (lent_ || last()) return;
    {
      const ScopedCategory category(MemoryCategory::kCommunication);
      next_ =
          ring_.receive(ring_.room_for(ring_.at(direction_ * (step_ + 1)), qkv_, qkv_.options()),
                        ring_.at(direction_), kKeysAndValues);
    }
    sent_ = ring_.send(block_, ring_.at(-direction_), kKeysAndValues);
  }
  /// Goes on to the next rank. With messages, waits until the next block is here and this one has
  /// been taken, and frees this one.
  void next() {
    ++step_;
    if (lent_) return;
    sent_.order();
    block_ = next_.take();
    // The group keeps what it sends until it looks at its operations again.
    ring_.ranks().poll();
  }
  /// Says that nothing is read any more.
  void finish() {
    lent_.reset();
    block_.reset();
  }

 private:
  const Ring& ring_;
  const at::Tensor& qkv_;
  int direction_;
  int step_ = 0;
  std::optional<comm::Lent> lent_;
  at::Tensor block_;
  Arrival next_;
  comm::Work sent_;
};

AttentionPart Ring::forward(const at::Tensor& qkv) const {
  const HeadTensors own = ops::head_tensors(qkv, shape_);
  Visits visits(*this, qkv, kForwardVisits);
  visits.prepare_next();
  AttentionPart sum = ops::attention_part(own, ranges_of(visits.rank()));
  while (!visits.last()) {
    visits.next();
    visits.prepare_next();
    const at::Tensor ranges = ranges_of(visits.rank());
    if (shows_any(ranges)) ops::merge(sum, ops::attention_part(visits.heads(own.q), ranges));
  }
  return sum;
}

/// Adds the gradient that keys and values of another rank cause to the queries' gradient `d_q`, and
/// returns theirs in `d_block`.
void gradient_of_block(const HeadTensors& heads, const at::Tensor& ranges,
                       const AttentionPart& whole, const at::Tensor& d_out, const at::Tensor& d_q,
                       const at::Tensor& d_block) {
  const at::Tensor d_q_part = at::empty(heads.q.sizes(), d_block.options());
  ops::attention_part_backward(heads, ranges, whole, d_out, with_block(d_q_part, d_block));
  d_q.add_(d_q_part);
}

at::Tensor Ring::backward(const at::Tensor& qkv, const AttentionPart& whole,
                          const at::Tensor& d_out) const {
  const HeadTensors own = ops::head_tensors(qkv, shape_);
  const at::Tensor d_qkv = at::empty_like(qkv);
  const HeadTensors d_own = ops::head_tensors(d_qkv, shape_);
  Visits visits(*this, qkv, kBackwardVisits);
  visits.prepare_next();
  // It writes every query, key and value of d_qkv.
  ops::attention_part_backward(own, ranges_of(visits.rank()), whole, d_out, d_own);
  comm::Work gradient_sent;
  for (bool first = true; !visits.last(); first = false) {
    visits.next();
    const int rank = visits.rank();
    // Posted in the order in which the neighbour sends: the gradient of this block, to which the
    // block's first visitor had nothing to add up, then the next block.
    Arrival gradient;
    if (!first) gradient = receive_gradient(rank, qkv, whole);
    visits.prepare_next();
    const at::Tensor ranges = ranges_of(rank);
    const at::Tensor d_block = room_for(rank, qkv, whole.lse.options());  // fp32, or fp64 of fp64
    if (shows_any(ranges)) {
      gradient_of_block(visits.heads(own.q), ranges, whole, d_out, d_own.q, d_block);
    } else {
      d_block.zero_();
    }
    if (!first) d_block.add_(gradient.take());
    gradient_sent.order();
    gradient_sent = send(d_block, at(-kBackwardVisits), kTheirGradient);
  }
  visits.finish();
  const at::Tensor others = receive_gradient(ranks_.rank(), qkv, whole).take();
  d_own.k.add_(others.select(3, 0));
  d_own.v.add_(others.select(3, 1));
  gradient_sent.order();
  ranks_.poll();
  return d_qkv;
}

}  // namespace

at::Tensor RingAttention::attend(const at::Tensor& x, const nn::Context& context) {
  const Ring ring(ranks(), shape(), places_of_ranks(context, ranks(), cut()));
  return ops::differentiable(
      "ring attention", {x},
      [&](const ops::Wanted&) {
        const at::Tensor qkv = x.contiguous();
        const AttentionPart whole = ring.forward(qkv);
        const at::Tensor out = whole.out.to(qkv.scalar_type());
        const ops::Backward backward = [ring](const ops::Tensors& saved,
                                              const ops::Tensors& gradients) {
          const at::Tensor& given = gradients[0];
          // A rank whose result reaches no loss goes round with the others.
          const at::Tensor d_out = given.defined() ? given : at::zeros_like(saved[1]);
          return ops::Tensors{ring.backward(saved[0], {saved[1], saved[2]}, d_out)};
        };
        // Keys and values of others come again in backward: nothing of them is kept.
        return ops::Recorded{{out}, {qkv, out, whole.lse}, backward};
      },
      ops::Runs::kAlways)[0];
}

}  // namespace shoal::parallel
