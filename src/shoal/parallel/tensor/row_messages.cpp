#include "shoal/parallel/tensor/row_messages.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/memory_category.h"

namespace shoal::parallel {
namespace {

/// Messages of the kinds between two ranks are told apart by their tags.
constexpr std::uint32_t kRows = 1;
constexpr std::uint32_t kSummands = 2;
constexpr std::uint32_t kProbe = 3;

constexpr std::int64_t kProbeBytes = 1 << 20;

/// Waits until nobody reads what was sent any more, and lets the group free it. The rows from a
/// peer took as long, so this wait is short.
void finish(std::vector<comm::Work>& sends, const comm::Group& group) {
  for (comm::Work& work : sends) work.order();
  group.poll();
}

/// The rank that lies `steps` behind this one, in a ring.
int neighbour(const comm::Group& group, int steps) {
  return (group.rank() + steps + group.size()) % group.size();
}

}  // namespace

at::Tensor part_of(const at::Tensor& rows, int rank, int ranks) {
  const std::int64_t count = rows.size(0) / ranks;
  return rows.narrow(0, rank * count, count);
}

RowLinks measured_links(const comm::Group& ranks) {
  const at::Tensor sent = at::zeros({kProbeBytes}, at::kByte);
  const at::Tensor received = at::empty_like(sent);
  double seconds = 0;
  // The first message opens the connection's window: the second is measured.
  for (int i = 0; i < 2; ++i) {
    ranks.barrier();
    const auto begin = Clock::now();
    comm::Work arrival = ranks.recv(received, neighbour(ranks, -1), kProbe, {.async = true});
    comm::Work departure = ranks.send(sent, neighbour(ranks, 1), kProbe, {.async = true});
    arrival.order();
    departure.order();
    seconds = to_seconds(Clock::now() - begin);
  }
  const at::Tensor slowest = at::full({1}, seconds, at::kDouble);
  ranks.all_reduce(slowest, {.reduction = comm::Reduction::kMax});
  return {ranks, *slowest.const_data_ptr<double>() / static_cast<double>(kProbeBytes)};
}

at::Tensor gather_rows(const at::Tensor& own, const comm::Group& group, const OnPart& arrived) {
  const int size = group.size();
  const at::Tensor all = at::empty({size * own.size(0), own.size(1)}, own.options());
  const at::Tensor sent = own.contiguous();
  std::vector<comm::Work> receives;
  std::vector<comm::Work> sends;
  // Every rank sends to its successor first, so the predecessor's part is the first to arrive.
  for (int distance = 1; distance < size; ++distance) {
    const int from = neighbour(group, -distance);
    receives.push_back(group.recv(part_of(all, from, size), from, kRows, {.async = true}));
    sends.push_back(group.send(sent, neighbour(group, distance), kRows, {.async = true}));
  }
  const auto here = [&](int rank) {
    if (arrived) arrived(rank, part_of(all, rank, size));
  };
  part_of(all, group.rank(), size).copy_(sent);
  here(group.rank());
  for (int distance = 1; distance < size; ++distance) {
    receives[static_cast<std::size_t>(distance - 1)].order();
    here(neighbour(group, -distance));
  }
  finish(sends, group);
  return all;
}

at::Tensor sum_rows(const at::Tensor& summand, const comm::Group& group, const OnPart& make,
                    const std::function<void()>& meanwhile) {
  const int size = group.size();
  std::vector<at::Tensor> summands;
  for (int rank = 0; rank < size; ++rank) summands.push_back(part_of(summand, rank, size));
  std::vector<comm::Work> receives(summands.size());
  std::vector<comm::Work> sends;
  std::vector<at::Tensor> arriving(summands.size());
  for (int distance = 1; distance < size; ++distance) {
    const int from = neighbour(group, -distance);
    const auto place = static_cast<std::size_t>(from);
    const ScopedCategory category(MemoryCategory::kCommunication);
    arriving[place] = at::empty_like(summands[place]);
    receives[place] = group.recv(arriving[place], from, kSummands, {.async = true});
  }
  for (int distance = 1; distance < size; ++distance) {
    const int to = neighbour(group, distance);
    const at::Tensor& part = summands[static_cast<std::size_t>(to)];
    if (make) make(to, part);
    sends.push_back(group.send(part, to, kSummands, {.async = true}));
  }
  arriving[static_cast<std::size_t>(group.rank())] =
      summands[static_cast<std::size_t>(group.rank())];
  if (make) make(group.rank(), arriving[static_cast<std::size_t>(group.rank())]);
  if (meanwhile) meanwhile();
  // A tensor of its own, which does not keep the memory of all parts.
  at::Tensor sum;
  for (std::size_t rank = 0; rank < arriving.size(); ++rank) {
    receives[rank].order();
    if (rank == 1) sum = arriving[0] + arriving[1];
    if (rank > 1) sum.add_(arriving[rank]);
  }
  finish(sends, group);
  return sum;
}

}  // namespace shoal::parallel
