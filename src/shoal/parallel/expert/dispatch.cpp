#include "shoal/parallel/expert/dispatch.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"
#include "shoal/parallel/read_in_place.h"

namespace shoal::parallel {
namespace {

using RowCounts = std::vector<std::size_t>;

constexpr std::int64_t kRowsAThread = 64;

at::Tensor rows_like(const at::Tensor& rows, std::int64_t count) {
  return at::empty({count, rows.size(1)}, rows.options());
}

std::int64_t sum_of(const RowCounts& counts) {
  return static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
}

/// Rows of consecutive ranks that lie behind each other: views of them, by rank.
std::vector<at::Tensor> by_rank(const at::Tensor& rows, const RowCounts& counts) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const std::size_t count : counts) {
    parts.push_back(rows.narrow(0, begin, static_cast<std::int64_t>(count)));
    begin += static_cast<std::int64_t>(count);
  }
  return parts;
}

/// Calls `copy` with the places of each run in `here` and in the tensor of its rank. All tensors
/// are contiguous rows of one width.
template <class Copy>
void for_runs(const std::vector<Dispatch::Run>& runs, const at::Tensor& here,
              const std::vector<at::Tensor>& parts, const Copy& copy) {
  if (here.size(0) == 0) return;
  const std::size_t row_bytes = static_cast<std::size_t>(here.size(1)) * here.element_size();
  auto* near = static_cast<std::byte*>(here.data_ptr());
  std::vector<std::byte*> far;
  for (const at::Tensor& part : parts) far.push_back(static_cast<std::byte*>(part.data_ptr()));
  const auto count = static_cast<std::int64_t>(runs.size());
  const std::int64_t runs_a_thread = 1 + kRowsAThread * count / here.size(0);
  at::parallel_for(0, count, runs_a_thread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Dispatch::Run& run = runs[static_cast<std::size_t>(i)];
      copy(
          near + static_cast<std::size_t>(run.here) * row_bytes,
          far[static_cast<std::size_t>(run.rank)] + static_cast<std::size_t>(run.there) * row_bytes,
          static_cast<std::size_t>(run.rows) * row_bytes);
    }
  });
}

/// Copies runs from the tensors of the ranks to `here`.
void collect(const std::vector<Dispatch::Run>& runs, const at::Tensor& here,
             const std::vector<at::Tensor>& parts) {
  for_runs(runs, here, parts, [](std::byte* near, const std::byte* far, std::size_t bytes) {
    std::memcpy(near, far, bytes);
  });
}

/// Copies runs from `here` to the tensors of the ranks.
void distribute(const std::vector<Dispatch::Run>& runs, const at::Tensor& here,
                const std::vector<at::Tensor>& parts) {
  for_runs(runs, here, parts, [](const std::byte* near, std::byte* far, std::size_t bytes) {
    std::memcpy(far, near, bytes);
  });
}

/// Returns the rows that all ranks sent to this one, in the order of the ranks.
at::Tensor exchanged(const at::Tensor& rows, const RowCounts& received, const RowCounts& sent,
                     const comm::Group& ranks) {
  const at::Tensor from = rows.contiguous();
  const auto width = static_cast<std::size_t>(rows.size(1));
  const at::Tensor out = rows_like(rows, sum_of(received));
  RowCounts receive = received;
  RowCounts send = sent;
  for (std::size_t& elements : receive) elements *= width;
  for (std::size_t& elements : send) elements *= width;
  ranks.all_to_all(out, from, std::move(receive), std::move(send));
  return out;
}

at::Tensor to_experts(const at::Tensor& rows, const Dispatch& dispatch, const comm::Group& ranks) {
  const at::Tensor out = rows_like(rows, sum_of(dispatch.received));
  const bool read = read_in_place(ranks, rows, 0, [&](const comm::Lent& lent) {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < ranks.size(); ++r) {
      const auto rank = static_cast<std::size_t>(r);
      parts.push_back(lent.part(r).narrow(0, dispatch.first[rank],
                                          static_cast<std::int64_t>(dispatch.received[rank])));
    }
    collect(dispatch.arriving, out, parts);
  });
  if (!read) {
    const at::Tensor arrived = exchanged(rows, dispatch.received, dispatch.sent, ranks);
    collect(dispatch.arriving, out, by_rank(arrived, dispatch.received));
  }
  return out;
}

at::Tensor from_experts(const at::Tensor& rows, const Dispatch& dispatch,
                        const comm::Group& ranks) {
  at::Tensor out;
  const bool read = read_in_place(ranks, rows, 0, [&](const comm::Lent& lent) {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < ranks.size(); ++r) parts.push_back(lent.part(r));
    out = rows_like(rows, sum_of(dispatch.sent));
    collect(dispatch.returning, out, parts);
  });
  if (read) return out;
  const at::Tensor packed = rows_like(rows, rows.size(0));
  distribute(dispatch.arriving, rows.contiguous(), by_rank(packed, dispatch.received));
  return exchanged(packed, dispatch.sent, dispatch.received, ranks);
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

/// `table`: rows of each rank for each expert, [ranks, E].
Dispatch dispatch_of(const at::Tensor& table, int rank) {
  const auto size = static_cast<std::size_t>(table.size(0));
  const auto self = static_cast<std::size_t>(rank);
  const auto all = static_cast<std::size_t>(table.size(1));
  const std::size_t own = all / size;
  const auto* counts = table.const_data_ptr<std::int64_t>();
  const auto rows = [&](std::size_t r, std::size_t expert) { return counts[r * all + expert]; };
  Dispatch dispatch{RowCounts(size),
                    RowCounts(size),
                    std::vector<std::int64_t>(own),
                    std::vector<std::int64_t>(size),
                    {},
                    {}};
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t e = 0; e < own; ++e) {
      dispatch.sent[r] += static_cast<std::size_t>(rows(self, r * own + e));
      dispatch.received[r] += static_cast<std::size_t>(rows(r, self * own + e));
      dispatch.counts[e] += rows(r, self * own + e);
    }
    for (std::size_t expert = 0; expert < self * own; ++expert)
      dispatch.first[r] += rows(r, expert);
  }
  std::int64_t here = 0;
  std::vector<std::int64_t> taken(size, 0);
  for (std::size_t e = 0; e < own; ++e) {
    for (std::size_t r = 0; r < size; ++r) {
      const std::int64_t count = rows(r, self * own + e);
      if (count > 0) dispatch.arriving.push_back({static_cast<int>(r), taken[r], here, count});
      taken[r] += count;
      here += count;
    }
  }
  here = 0;
  for (std::size_t holder = 0; holder < size; ++holder) {
    std::int64_t there = 0;
    for (std::size_t expert = holder * own; expert < (holder + 1) * own; ++expert) {
      for (std::size_t r = 0; r < size; ++r) {
        const std::int64_t count = rows(r, expert);
        if (r == self && count > 0)
          dispatch.returning.push_back({static_cast<int>(holder), there, here, count});
        if (r == self) here += count;
        there += count;
      }
    }
  }
  return dispatch;
}

}  // namespace

std::shared_ptr<const Dispatch> exchange_counts(const std::vector<std::int64_t>& counts,
                                                const comm::Group& ranks) {
  const auto size = static_cast<std::size_t>(ranks.size());
  SHOAL_CHECK(counts.size() % size == 0, "{} experts on {} ranks", counts.size(), size);
  const auto all = static_cast<std::int64_t>(counts.size());
  const at::Tensor mine = at::empty({all}, at::kLong);
  std::copy(counts.begin(), counts.end(), mine.mutable_data_ptr<std::int64_t>());
  const at::Tensor table = at::empty({ranks.size(), all}, at::kLong);
  ranks.all_gather(table, mine);
  return std::make_shared<const Dispatch>(dispatch_of(table, ranks.rank()));
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
