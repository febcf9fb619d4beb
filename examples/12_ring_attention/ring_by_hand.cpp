// Ring attention by hand: ranks divide one sequence, and keys and values travel round the ring of
// ranks. README.md walks through it: ring_by_hand [ranks].
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/comm/world.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace {
using at::Tensor;
using shoal::comm::Group;
using Cut = shoal::mesh::Placement::Cut;
constexpr std::int64_t kColumns = 96, kSize = 32;

/// One rank's columns of a sequence, and their attention, of one head, to all columns.
class Ring {
 public:
  Ring(const Group& group, Cut cut) : group_(group), ranks_(group.size()) {
    for (int rank = 0; rank < ranks_; ++rank)
      columns_.push_back(shoal::parallel::columns_of(kColumns, cut, ranks_, rank));
  }
  /// This rank's columns of what all have.
  Tensor mine(const Tensor& whole) const { return whole.index_select(-2, columns_[rank(0)]); }

  /// A block, keys and values [2, columns, size], passes every rank. Parts of the result are merged
  /// as if one softmax had been taken over all keys: `sums_` is the logarithm of its denominator.
  Tensor forward(const Tensor& q, Tensor block) {
    Tensor out;
    for (int step = 0; step < ranks_; ++step) {
      const Tensor scores = scores_of(q, block[0], rank(step));
      pairs.push_back(scores.isfinite().sum().item<std::int64_t>());
      const Tensor sum = scores.logsumexp(1, true);
      const Tensor part = (scores - sum).exp().nan_to_num(0).matmul(block[1]);
      // The own keys come first, and of these every query sees one: the sum is finite from then on.
      const Tensor total = step == 0 ? sum : at::logaddexp(sums_, sum);
      out = step == 0 ? part : out * (sums_ - total).exp() + part * (sum - total).exp();
      sums_ = total;
      if (step + 1 < ranks_) block = passed_on(block, -1);
    }
    return out;
  }

  /// Blocks go round the other way, and the gradient of each follows one step behind. Returns the
  /// gradients of the queries, and of keys and values.
  std::pair<Tensor, Tensor> backward(const Tensor& q, Tensor block, const Tensor& out,
                                     const Tensor& d_out) {
    Tensor d_q = at::zeros(q.sizes(), q.options());
    Tensor d_block;
    Tensor d_own;
    for (int step = 0; step < ranks_; ++step) {
      const Tensor seen = (scores_of(q, block[0], rank(-step)) - sums_).exp();
      const Tensor d_scores =
          seen * (d_out.matmul(block[1].t()) - (out * d_out).sum(1, true)) / std::sqrt(kSize);
      const Tensor part = at::stack({d_scores.t().matmul(q), seen.t().matmul(d_out)});
      d_q += d_scores.matmul(block[0]);
      // What earlier visitors of this block have added up comes from the rank before.
      if (step == 0) d_own = part;
      if (step > 0) d_block = step == 1 ? part : passed_on(d_block, 1) + part;
      if (step + 1 < ranks_) block = passed_on(block, 1);
    }
    if (ranks_ > 1) d_own += passed_on(d_block, 1);
    return {d_q, d_own};
  }
  double sent_bytes = 0;
  std::vector<std::int64_t> pairs;  ///< of queries and keys that see each other, by step

 private:
  int rank(int steps) const { return (group_.rank() + steps + ranks_) % ranks_; }
  /// Scaled scores against the keys of a rank; minus infinity where the key lies behind the query.
  Tensor scores_of(const Tensor& q, const Tensor& k, int of) const {
    const Tensor behind = columns_[of].gt(columns_[rank(0)].unsqueeze(1));
    return (q.matmul(k.t()) / std::sqrt(kSize)).masked_fill(behind, -INFINITY);
  }
  /// Sends to the rank on one side, and returns what comes from the other.
  Tensor passed_on(const Tensor& block, int direction) {
    Tensor other = at::empty_like(block);
    auto arrival = group_.recv(other, rank(-direction), 0, {.async = true});
    group_.send(block, rank(direction));
    arrival.order();
    sent_bytes += double(block.nbytes());
    return other;
  }

  const Group group_;
  const int ranks_;
  std::vector<Tensor> columns_;
  Tensor sums_;
};

Tensor wave(double seed) {
  return (at::arange(kColumns * kSize, at::kDouble) * seed).sin().view({kColumns, kSize});
}

void compare(const Group& group) {
  const Tensor q = wave(1.3).requires_grad_();
  const Tensor kv = at::stack({wave(1.7), wave(2.1)}).requires_grad_();
  const auto head = [](const Tensor& x) { return x.view({1, 1, kColumns, kSize}); };
  const Tensor out =
      at::scaled_dot_product_attention(head(q), head(kv[0]), head(kv[1]), {}, 0, true).view_as(q);
  out.backward(wave(2.9));
  const at::NoGradGuard not_recording;
  for (const Cut cut : {Cut::kEven, Cut::kZigzag}) {
    Ring ring(group, cut);
    const Tensor found = ring.forward(ring.mine(q), ring.mine(kv));
    const auto [d_q, d_kv] =
        ring.backward(ring.mine(q), ring.mine(kv), found, ring.mine(wave(2.9)));
    for (const Tensor& apart :
         {found - ring.mine(out), d_q - ring.mine(q.grad()), d_kv - ring.mine(kv.grad())})
      SHOAL_CHECK(apart.abs().max().item<double>() < 1e-12, "rank {}: wrong", group.rank());
    const Tensor pairs = at::zeros({group.size(), group.size()}, at::kLong);  // of a rank in a step
    for (int step = 0; step < group.size(); ++step) pairs[group.rank()][step] = ring.pairs[step];
    group.all_reduce(pairs);
    if (group.rank() > 0) continue;
    fmt::print("{:<7}", cut == Cut::kEven ? "even" : "zigzag");
    for (int rank = 0; rank < group.size(); ++rank)
      fmt::print("{:>6}", pairs[rank].sum().item<std::int64_t>());
    // In every step all wait for the rank that has most to do.
    fmt::print("{:>12}{:>12.1f} kB\n", pairs.amax(0).sum().item<std::int64_t>(),
               ring.sent_bytes / 1e3);
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  SHOAL_USER_CHECK(ranks > 0 && ranks <= 8 && kColumns % (2 * ranks) == 0, "ring_by_hand",
                   "the argument is a number of ranks up to 8 that divides {}", kColumns / 2);
  at::set_num_threads(1);
  fmt::print("pairs of queries and keys on each rank, pairs that all wait for, sent by a rank\n");
  shoal::comm::run_on_threads({.size = ranks}, compare);
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
