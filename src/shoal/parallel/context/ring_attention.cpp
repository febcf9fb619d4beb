#include "shoal/parallel/context/ring_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/ops/attention_part.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/key_ranges.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace shoal::parallel {
namespace {

using ops::AttentionPart;
using ops::HeadTensors;
using ops::TokenPlaces;

/// Messages of the two kinds between two neighbours are told apart by their tags.
constexpr std::uint32_t kKeysAndValues = 1;
constexpr std::uint32_t kTheirGradient = 2;

/// A tensor that is being received.
struct Arrival {
  at::Tensor tensor;
  comm::Work work;

  at::Tensor take() {
    work.order();
    return std::exchange(tensor, {});
  }
};

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

/// The tokens of all ranks, and the messages by which blocks travel round the ring.
class Ring {
 public:
  /// `places`: the tokens of each rank.
  Ring(comm::Group ranks, const ops::HeadShape& shape, std::vector<TokenPlaces> places)
      : ranks_(std::move(ranks)), shape_(shape), places_(std::move(places)) {}

  AttentionPart forward(const at::Tensor& qkv) const;
  /// Returns the gradient of `qkv`, of which `whole` is the result.
  at::Tensor backward(const at::Tensor& qkv, const AttentionPart& whole,
                      const at::Tensor& d_out) const;

 private:
  int size() const { return ranks_.size(); }
  /// The rank that lies `steps` behind this one in the ring, or before it if negative.
  int at(int steps) const { return (ranks_.rank() + steps + size()) % size(); }
  /// Which keys of a rank this rank's queries see.
  at::Tensor ranges_of(int rank) const {
    return ops::key_ranges(places_[static_cast<std::size_t>(ranks_.rank())],
                           places_[static_cast<std::size_t>(rank)]);
  }
  at::Tensor block_of(const at::Tensor& qkv) const {
    return qkv.view({qkv.size(0), qkv.size(1), -1, shape_.heads_per_group + 2, shape_.head_size})
        .narrow(3, shape_.heads_per_group, 2)
        .contiguous();
  }
  /// A tensor for the block of a rank, with the samples and heads of `like`.
  at::Tensor room_for(int rank, const at::Tensor& like, const at::TensorOptions& options) const {
    return at::empty({like.size(0), places_[static_cast<std::size_t>(rank)].columns, like.size(2),
                      2, shape_.head_size},
                     options);
  }
  comm::Work send(const at::Tensor& tensor, int to, std::uint32_t tag) const {
    return ranks_.send(tensor, to, tag, {.async = true});
  }
  Arrival receive(int from, std::uint32_t tag, const at::Tensor& room) const {
    return {room, ranks_.recv(room, from, tag, {.async = true})};
  }
  Arrival receive_block(int rank, int from, const at::Tensor& like) const {
    const ScopedCategory category(MemoryCategory::kCommunication);
    return receive(from, kKeysAndValues, room_for(rank, like, like.options()));
  }
  Arrival receive_gradient(int rank, const at::Tensor& like, const AttentionPart& whole) const {
    const ScopedCategory category(MemoryCategory::kCommunication);
    return receive(at(-1), kTheirGradient, room_for(rank, like, whole.lse.options()));
  }

  /// Waits until the next block is here and this one has been taken, and frees this one: a rank
  /// never has more than two.
  at::Tensor change(Arrival& next, comm::Work& sent) const {
    sent.order();
    at::Tensor block = next.take();
    // The group keeps what it sends until it looks at its operations again.
    ranks_.poll();
    return block;
  }

  comm::Group ranks_;
  ops::HeadShape shape_;
  std::vector<TokenPlaces> places_;
};

AttentionPart Ring::forward(const at::Tensor& qkv) const {
  const HeadTensors own = ops::head_tensors(qkv, shape_);
  at::Tensor block = block_of(qkv);
  AttentionPart sum;
  for (int step = 0; step < size(); ++step) {
    // The next block comes, and this one goes on, while this one is computed with.
    const bool last = step + 1 == size();
    Arrival next;
    comm::Work sent;
    if (!last) {
      next = receive_block(at(step + 1), at(1), block);
      sent = send(block, at(-1), kKeysAndValues);
    }
    const at::Tensor ranges = ranges_of(at(step));
    if (step == 0) {
      sum = ops::attention_part(own, ranges);
    } else if (shows_any(ranges)) {
      ops::merge(sum, ops::attention_part(with_block(own.q, block), ranges));
    }
    if (last) break;
    block = change(next, sent);
  }
  return sum;
}

/// Adds the gradient that a block of another rank causes to the queries' gradient `d_q`, and
/// returns that of the block.
at::Tensor gradient_of_block(const at::Tensor& block, const at::Tensor& ranges, const at::Tensor& q,
                             const AttentionPart& whole, const at::Tensor& d_out,
                             const at::Tensor& d_q) {
  const auto options = whole.lse.options();  // fp32, or fp64 of fp64
  if (!shows_any(ranges)) return at::zeros(block.sizes(), options);
  const at::Tensor d_block = at::empty(block.sizes(), options);
  const at::Tensor d_q_part = at::empty(q.sizes(), options);
  ops::attention_part_backward(with_block(q, block), ranges, whole, d_out,
                               with_block(d_q_part, d_block));
  d_q.add_(d_q_part);
  return d_block;
}

at::Tensor Ring::backward(const at::Tensor& qkv, const AttentionPart& whole,
                          const at::Tensor& d_out) const {
  const HeadTensors own = ops::head_tensors(qkv, shape_);
  const at::Tensor d_qkv = at::empty_like(qkv);
  const HeadTensors d_own = ops::head_tensors(d_qkv, shape_);
  at::Tensor block = block_of(qkv);
  comm::Work gradient_sent;
  for (int step = 0; step < size(); ++step) {
    const bool last = step + 1 == size();
    const int rank = at(-step);
    // Posted in the order in which the neighbour sends: the gradient of this block, to which the
    // block's first visitor had nothing to add up, then the next block.
    Arrival gradient;
    if (step > 1) gradient = receive_gradient(rank, block, whole);
    Arrival next;
    comm::Work sent;
    if (!last) {
      next = receive_block(at(-step - 1), at(-1), block);
      sent = send(block, at(1), kKeysAndValues);
    }
    const at::Tensor ranges = ranges_of(rank);
    if (step == 0) {
      // It writes every query, key and value of d_qkv.
      ops::attention_part_backward(own, ranges, whole, d_out, d_own);
    } else {
      const at::Tensor d_block = gradient_of_block(block, ranges, own.q, whole, d_out, d_own.q);
      if (step > 1) d_block.add_(gradient.take());
      gradient_sent.order();
      gradient_sent = send(d_block, at(1), kTheirGradient);
    }
    if (last) break;
    block = change(next, sent);
  }
  const at::Tensor others = receive_gradient(ranks_.rank(), block, whole).take();
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
