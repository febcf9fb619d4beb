#include "shoal/parallel/expert/dispatch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"

namespace shoal::parallel {
namespace {

using RowCounts = std::vector<std::size_t>;

/// Returns the rows that all ranks sent to this one, in the order of the ranks.
at::Tensor exchanged(const at::Tensor& rows, const RowCounts& received, const RowCounts& sent,
                     const comm::Group& ranks) {
  const at::Tensor from = rows.contiguous();
  const auto width = static_cast<std::size_t>(rows.size(1));
  const std::size_t count = std::accumulate(received.begin(), received.end(), std::size_t{0});
  const at::Tensor out =
      at::empty({static_cast<std::int64_t>(count), rows.size(1)}, rows.options());
  RowCounts receive = received;
  RowCounts send = sent;
  for (std::size_t& elements : receive) elements *= width;
  for (std::size_t& elements : send) elements *= width;
  ranks.all_to_all(out, from, std::move(receive), std::move(send));
  return out;
}

at::Tensor to_experts(const at::Tensor& rows, const Dispatch& dispatch, const comm::Group& ranks) {
  return exchanged(rows, dispatch.received, dispatch.sent, ranks)
      .index_select(0, dispatch.by_expert);
}

at::Tensor from_experts(const at::Tensor& rows, const Dispatch& dispatch,
                        const comm::Group& ranks) {
  return exchanged(rows.index_select(0, dispatch.by_rank), dispatch.sent, dispatch.received, ranks);
}

/// Makes a node of one direction, whose backward is the other. It runs on every rank, also where
/// nothing asks for a gradient or no row is there: the others wait for it.
template <class There, class Back>
at::Tensor travel(const char* name, const at::Tensor& rows, const There& there, const Back& back) {
  return ops::differentiable(
      name, {rows},
      [&](const ops::Wanted&) {
        const at::Tensor out = there(rows);
        return ops::Recorded{
            {out},
            {},
            [back, shape = out.sizes().vec(), options = out.options()](
                const ops::Tensors&, const ops::Tensors& gradients) {
              return ops::Tensors{
                  back(gradients[0].defined() ? gradients[0] : at::zeros(shape, options))};
            }};
      },
      ops::Runs::kAlways)[0];
}

}  // namespace

std::shared_ptr<const Dispatch> exchange_counts(const std::vector<std::int64_t>& counts,
                                                const comm::Group& ranks) {
  const auto size = static_cast<std::size_t>(ranks.size());
  SHOAL_CHECK(counts.size() % size == 0, "{} experts on {} ranks", counts.size(), size);
  const std::size_t own = counts.size() / size;
  const auto all = static_cast<std::int64_t>(counts.size());
  const at::Tensor mine = at::empty({all}, at::kLong);
  std::copy(counts.begin(), counts.end(), mine.mutable_data_ptr<std::int64_t>());
  const at::Tensor theirs = at::empty({all}, at::kLong);
  ranks.all_to_all(theirs, mine);

  auto dispatch = std::make_shared<Dispatch>();
  dispatch->sent.resize(size);
  dispatch->received.resize(size);
  dispatch->counts.resize(own);
  const auto* arriving = theirs.const_data_ptr<std::int64_t>();  // [ranks, own]
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t e = 0; e < own; ++e) {
      dispatch->sent[r] += static_cast<std::size_t>(counts[r * own + e]);
      dispatch->received[r] += static_cast<std::size_t>(arriving[r * own + e]);
      dispatch->counts[e] += arriving[r * own + e];
    }
  }
  // Rows arrive by rank and then by expert; experts want them by expert and then by rank.
  std::vector<std::int64_t> next(own, 0);
  for (std::size_t e = 1; e < own; ++e) next[e] = next[e - 1] + dispatch->counts[e - 1];
  const std::int64_t rows =
      std::accumulate(dispatch->counts.begin(), dispatch->counts.end(), std::int64_t{0});
  dispatch->by_expert = at::empty({rows}, at::kLong);
  dispatch->by_rank = at::empty({rows}, at::kLong);
  auto* by_expert = dispatch->by_expert.mutable_data_ptr<std::int64_t>();
  auto* by_rank = dispatch->by_rank.mutable_data_ptr<std::int64_t>();
  std::int64_t arrived = 0;
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t e = 0; e < own; ++e) {
      for (std::int64_t i = 0; i < arriving[r * own + e]; ++i, ++arrived) {
        by_rank[arrived] = next[e];
        by_expert[next[e]++] = arrived;
      }
    }
  }
  return dispatch;
}

at::Tensor send_to_experts(const at::Tensor& rows, const std::shared_ptr<const Dispatch>& dispatch,
                           const comm::Group& ranks) {
  return travel(
      "send_to_experts", rows, [&](const at::Tensor& x) { return to_experts(x, *dispatch, ranks); },
      [dispatch, ranks](const at::Tensor& dy) { return from_experts(dy, *dispatch, ranks); });
}

at::Tensor return_from_experts(const at::Tensor& rows,
                               const std::shared_ptr<const Dispatch>& dispatch,
                               const comm::Group& ranks) {
  return travel(
      "return_from_experts", rows,
      [&](const at::Tensor& x) { return from_experts(x, *dispatch, ranks); },
      [dispatch, ranks](const at::Tensor& dy) { return to_experts(dy, *dispatch, ranks); });
}

}  // namespace shoal::parallel
