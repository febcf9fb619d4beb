#include "shoal/collective/work_vector.h"

#include <cstring>
#include <numeric>

#include "shoal/base/element_type.h"

namespace shoal::collective {
namespace {

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

WorkVector::WorkVector(const Operation& o, int rank, int ranks, bool partial_sums)
    : element_(size_of(o.type)) {
  lay_out(o, rank, ranks, partial_sums);
}

void WorkVector::lay_out(const Operation& o, int rank, int ranks, bool partial_sums) {
  const std::size_t n = o.buffer.count;
  const std::size_t all = n * static_cast<std::size_t>(ranks);
  const std::size_t own = n * static_cast<std::size_t>(rank);
  // One segment type serves reading and writing. Step tables only send from segments that lie in
  // the caller's input.
  auto* in = static_cast<std::byte*>(const_cast<void*>(o.buffer.input));
  auto* out = static_cast<std::byte*>(o.buffer.output);
  const bool root = o.peer == rank;
  const auto copied = [&](std::size_t count) {
    own_ = std::make_unique_for_overwrite<std::byte[]>(count * element_);
    copy_bytes(own_.get(), in, count * element_);
    segments_ = {{0, count, own_.get()}};
  };
  switch (o.kind) {
    case Kind::kBarrier:
      own_ = std::make_unique<std::byte[]>(16);
      segments_ = {{0, 1, own_.get()}};
      return;
    case Kind::kSend:
      segments_ = {{0, n, in}};
      return;
    case Kind::kReceive:
      segments_ = {{0, n, out}};
      return;
    case Kind::kReduce:
      if (!root && partial_sums) return copied(n);
      if (!root) {
        segments_ = {{0, n, in}};
        return;
      }
      [[fallthrough]];
    case Kind::kAllReduce:
      copy_bytes(out, in, n * element_);
      segments_ = {{0, n, out}};
      return;
    case Kind::kBroadcast:
      if (root) copy_bytes(out, in, n * element_);
      segments_ = {{0, n, out}};
      return;
    case Kind::kReduceScatter:
      // Partial sums would overwrite the caller's input; so would an output that overlaps it.
      if (partial_sums ||
          (out < in + all * element_ && in < out + n * element_ && out != in + own * element_))
        return copied(all);
      // The output is this rank's part of the input, or does not overlap it: only that part is
      // written, so the other ranks' parts are sent from the input.
      copy_bytes(out, in + own * element_, n * element_);
      segments_ = {{0, own, in}, {own, own + n, out}, {own + n, all, in + (own + n) * element_}};
      return;
    case Kind::kGather:
      if (!root) {
        segments_ = {{own, own + n, in}};
        return;
      }
      [[fallthrough]];
    case Kind::kAllGather:
      copy_bytes(out + own * element_, in, n * element_);
      segments_ = {{0, all, out}};
      return;
    case Kind::kScatter:
      if (root) copy_bytes(out, in + own * element_, n * element_);
      segments_ = {root ? Segment{0, all, in} : Segment{own, own + n, out}};
      return;
    case Kind::kAllToAll:
      return lay_out_exchange(o, rank, ranks);
  }
}

void WorkVector::lay_out_exchange(const Operation& o, int rank, int ranks) {
  auto* in = static_cast<std::byte*>(const_cast<void*>(o.buffer.input));
  auto* out = static_cast<std::byte*>(o.buffer.output);
  const std::vector<std::size_t> equal(static_cast<std::size_t>(ranks), o.buffer.count);
  const std::span<const std::size_t> send = o.send_counts.empty() ? equal : o.send_counts;
  const std::span<const std::size_t> receive = o.send_counts.empty() ? equal : o.receive_counts;
  const auto sum = [](std::span<const std::size_t> counts, std::size_t until) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(until),
                           std::size_t{0});
  };
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t sent = sum(send, send.size());
  const std::size_t received = sum(receive, receive.size());
  // What a rank sends to itself is no message.
  copy_bytes(out + sum(receive, me) * element_, in + sum(send, me) * element_, send[me] * element_);
  segments_ = {{0, sent, in}, {sent, sent + received, out}};
}

std::byte* WorkVector::at(Range range) const {
  for (const Segment& s : segments_) {
    if (s.begin <= range.begin && range.end <= s.end)
      return s.data + (range.begin - s.begin) * element_;
  }
  return nullptr;
}

void WorkVector::finish(const Operation& o, int rank) const {
  if (o.kind != Kind::kReduceScatter || !own_) return;
  const std::size_t bytes = o.buffer.count * element_;
  copy_bytes(o.buffer.output, own_.get() + static_cast<std::size_t>(rank) * bytes, bytes);
}

}  // namespace shoal::collective
