#include "shoal/collective/hierarchy/hierarchical_program.h"

#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "shoal/base/element_type.h"
#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/tcp/tcp_call.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kWhole = 8 << 10;  // bytes up to which one rank of each host speaks for it
                                         // where slices are of different sizes

std::byte* plus(const void* p, std::size_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(p)) + bytes;
}

bool is_flat(const Operation& o, const HostLayout& layout, bool in_rank_order) {
  if (o.kind == Kind::kBarrier) return false;
  if (o.buffer.count == 0 || (in_rank_order && reduces(o.kind))) return true;
  if (o.kind == Kind::kAllGather || o.kind == Kind::kReduceScatter) return !layout.in_blocks;
  return o.kind != Kind::kAllReduce && o.kind != Kind::kReduce && o.kind != Kind::kBroadcast;
}

/// Makes the phases of one operation on one rank.
class Planner {
 public:
  Planner(const Operation& o, const HostLayout& layout, std::byte* scratch)
      : o_(o), l_(layout), scratch_(scratch), rounds_once_(must_round_once(o)) {
    travel_as(o.type, o.buffer.input, o.buffer.output);
  }

  HierarchicalProgram flat() {
    Operation operation = o_;
    operation.more = {};
    program_.phases.push_back({.lane = Lane::kFlat, .operations = {operation}});
    return std::move(program_);
  }

  HierarchicalProgram barrier() {
    add(Lane::kGather, Kind::kBarrier, {});
    if (l_.local == 0) add(Lane::kBetween, Kind::kBarrier, {});
    add(Lane::kSpread, Kind::kBarrier, {});
    return std::move(program_);
  }

  HierarchicalProgram all_reduce() {
    const std::size_t n = o_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(l_.local_size());
    const bool equal = l_.in_blocks && n % m == 0;
    const bool large = n * size_of(o_.type) > kWhole;
    const bool slices = equal || large;
    const int parts = slices ? l_.columns : 1;
    const Range own = l_.local < parts ? part_of(n, parts, l_.local) : Range{};
    if (rounds_once_) widen_input(n);
    if (equal) {
      add(Lane::kGather, Kind::kReduceScatter, {input_, out(own.begin), own.size()});
    } else {
      for (int j = 0; j < parts; ++j) {
        const Range part = part_of(n, parts, j);
        add(Lane::kGather, Kind::kReduce, {in(part.begin), out(part.begin), part.size()}, j);
      }
    }
    if (rounds_once_) {
      exchange_rounded(own, large);
    } else if (own.size() > 0) {
      add(Lane::kBetween, Kind::kAllReduce, {out(own.begin), out(own.begin), own.size()});
    }
    if (equal) {
      add(Lane::kSpread, Kind::kAllGather, {out(own.begin), o_.buffer.output, own.size()});
    } else {
      spread(parts);
    }
    return std::move(program_);
  }

  // The first rank of each host speaks for it.
  HierarchicalProgram reduce() {
    const std::size_t n = o_.buffer.count;
    const int host = l_.host_of[o_.peer];
    void* result =
        l_.rank == o_.peer ? o_.buffer.output : scratch_ + (rounds_once_ ? n * sizeof(float) : 0);
    if (rounds_once_) widen_input(n);
    void* sum = rounds_once_ ? scratch_ : result;
    add(Lane::kGather, Kind::kReduce, {input_, sum, n}, 0);
    if (l_.local == 0) add(Lane::kBetween, Kind::kReduce, {sum, sum, n}, host);
    if (l_.host != host) return std::move(program_);
    if (rounds_once_ && l_.local == 0) round({0, n}, result);
    travel_as(o_.type, result, result);
    if (l_.local_of[o_.peer] != 0) add(Lane::kSpread, Kind::kBroadcast, {result, result, n}, 0);
    return finished();
  }

  HierarchicalProgram broadcast() {
    const std::size_t n = o_.buffer.count;
    const int host = l_.host_of[o_.peer];
    const int parts = n * element_ > kWhole ? l_.columns : 1;
    if (l_.host == host) add(Lane::kGather, Kind::kBroadcast, o_.buffer, l_.local_of[o_.peer]);
    if (l_.local < parts) {
      const Range own = part_of(n, parts, l_.local);
      add(Lane::kBetween, Kind::kBroadcast, {out(own.begin), out(own.begin), own.size()}, host);
    }
    if (l_.host != host) spread(parts);
    return std::move(program_);
  }

  // This rank's contribution goes to its like on every other host, straight to where it belongs;
  // then each host shares what it has got.
  HierarchicalProgram all_gather() {
    const std::size_t c = o_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(l_.columns);
    const auto place = [&](int h) {
      return (static_cast<std::size_t>(h) * m + static_cast<std::size_t>(l_.local)) * c;
    };
    if (c > 0 && out(place(l_.host)) != o_.buffer.input)
      std::memmove(out(place(l_.host)), o_.buffer.input, c * element_);
    for (int d = 1; d < l_.hosts(); ++d) {
      add(Lane::kBetween, Kind::kSend, {out(place(l_.host)), nullptr, c},
          (l_.host + d) % l_.hosts());
    }
    for (int d = 1; d < l_.hosts(); ++d) {
      const int h = (l_.host + l_.hosts() - d) % l_.hosts();
      add(Lane::kBetween, Kind::kReceive, {nullptr, out(place(h)), c}, h);
    }
    for (int h = 0; h < l_.hosts(); ++h) {
      add(Lane::kSpread, Kind::kAllGather,
          {out(place(h)), out(static_cast<std::size_t>(h) * m * c), c});
    }
    return std::move(program_);
  }

  // The ranks of a host have one output: each writes its part and those of its likes, once none of
  // them wants what is there.
  HierarchicalProgram all_gather_shared() {
    const std::size_t c = o_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(l_.columns);
    const auto place = [&](int h) {
      return (static_cast<std::size_t>(h) * m + static_cast<std::size_t>(l_.local)) * c;
    };
    add(Lane::kGather, Kind::kBarrier, {});
    for (int d = 1; d < l_.hosts(); ++d)
      add(Lane::kBetween, Kind::kSend, {o_.buffer.input, nullptr, c}, (l_.host + d) % l_.hosts());
    for (int d = 1; d < l_.hosts(); ++d) {
      const int h = (l_.host + l_.hosts() - d) % l_.hosts();
      add(Lane::kBetween, Kind::kReceive, {nullptr, out(place(h)), c}, h);
    }
    if (out(place(l_.host)) != o_.buffer.input)
      program_.phases.back().copy = {o_.buffer.input, out(place(l_.host)), c * element_};
    add(Lane::kSpread, Kind::kBarrier, {});
    return std::move(program_);
  }

  HierarchicalProgram reduce_scatter() {
    const std::size_t c = o_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(l_.columns);
    const std::size_t all = c * l_.host_of.size();
    if (rounds_once_) widen_input(all);
    std::byte* sums = scratch_ + (rounds_once_ ? all * element_ : 0);
    for (int h = 0; h < l_.hosts(); ++h) {
      const auto i = static_cast<std::size_t>(h);
      add(Lane::kGather, Kind::kReduceScatter, {in(i * m * c), sums + i * c * element_, c});
    }
    if (!rounds_once_) {
      add(Lane::kBetween, Kind::kReduceScatter, {sums, o_.buffer.output, c});
      return std::move(program_);
    }
    std::byte* own = sums + static_cast<std::size_t>(l_.host) * c * element_;
    add(Lane::kBetween, Kind::kReduceScatter, {sums, own, c});
    pending_.push_back({false, o_.type, own, o_.buffer.output, c});
    return finished();
  }

 private:
  std::byte* in(std::size_t at) const { return plus(input_, at * element_); }
  std::byte* out(std::size_t at) const { return plus(output_, at * element_); }

  /// From here on operations are of `type`, and these are their buffers.
  void travel_as(ElementType type, const void* input, void* output) {
    type_ = type, element_ = size_of(type);
    input_ = input, output_ = output;
  }

  /// The contribution goes to the front of the scratch memory as fp32, and is worked on there.
  void widen_input(std::size_t count) {
    pending_.push_back({true, o_.type, o_.buffer.input, scratch_, count});
    travel_as(ElementType::kF32, scratch_, scratch_);
  }

  /// Rounds elements of the fp32 result to their place behind `to`.
  void round(Range range, void* to) {
    if (range.size() > 0) {
      pending_.push_back({false, o_.type, scratch_ + range.begin * sizeof(float),
                          plus(to, range.begin * size_of(o_.type)), range.size()});
    }
  }

  /// All-reduces `own` within the column: as fp32, until one rank has the sum of a part of it;
  /// rounded from there on.
  void exchange_rounded(Range own, bool large) {
    const auto part = [&](int host) {
      const Range inside = part_of(own.size(), l_.hosts(), host);
      return Range{own.begin + inside.begin, own.begin + inside.end};
    };
    const auto for_each_part = [&](Kind kind) {
      for (int h = 0; h < l_.hosts(); ++h) {
        if (const Range r = part(h); r.size() > 0)
          add(Lane::kBetween, kind, {out(r.begin), out(r.begin), r.size()}, h);
      }
    };
    if (own.size() > 0 && !large)
      add(Lane::kBetween, Kind::kAllReduce, {out(own.begin), out(own.begin), own.size()});
    if (own.size() > 0 && large) for_each_part(Kind::kReduce);
    travel_as(o_.type, o_.buffer.output, o_.buffer.output);
    round(large ? part(l_.host) : own, o_.buffer.output);
    if (own.size() > 0 && large) for_each_part(Kind::kBroadcast);
  }

  /// The j-th rank of this host has slice j; every rank gets it.
  void spread(int parts) {
    for (int j = 0; j < parts; ++j) {
      const Range part = part_of(o_.buffer.count, parts, j);
      add(Lane::kSpread, Kind::kBroadcast, {out(part.begin), out(part.begin), part.size()}, j);
    }
  }

  void add(Lane lane, Kind kind, const Buffer& buffer, int peer = -1) {
    if (program_.phases.empty() || program_.phases.back().lane != lane || !pending_.empty()) {
      program_.phases.push_back(
          {.lane = lane, .operations = {}, .copy = {}, .before = std::exchange(pending_, {})});
    }
    // Every contribution is scaled once, where the ranks of a host reduce theirs; what follows are
    // sums.
    const bool average = o_.reduction == Reduction::kAverage;
    const bool scaled = average || o_.reduction == Reduction::kPremulSum;
    const bool scales = lane == Lane::kGather;
    const double scale = average ? 1.0 / static_cast<double>(l_.host_of.size()) : o_.scale;
    program_.phases.back().operations.push_back({.kind = kind,
                                                 .type = type_,
                                                 .reduction = !scaled  ? o_.reduction
                                                              : scales ? Reduction::kPremulSum
                                                                       : Reduction::kSum,
                                                 .buffer = buffer,
                                                 .peer = peer,
                                                 .tag = o_.tag,
                                                 .priority = o_.priority,
                                                 .scale = scaled && scales ? scale : 1,
                                                 .timeout = o_.timeout});
  }

  HierarchicalProgram finished() {
    program_.after = std::exchange(pending_, {});
    return std::move(program_);
  }

  const Operation& o_;
  const HostLayout& l_;
  std::byte* scratch_;
  bool rounds_once_;
  ElementType type_{};
  std::size_t element_ = 1;
  const void* input_ = nullptr;
  void* output_ = nullptr;
  std::vector<Conversion> pending_;  ///< for the phase that comes next
  HierarchicalProgram program_;
};

/// Elements in front of part `rank`.
std::size_t before(std::span<const std::size_t> counts, std::size_t count, int rank) {
  if (counts.empty()) return count * static_cast<std::size_t>(rank);
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

}  // namespace

void Conversion::run() const {
  if (widens) {
    widen(type, from, static_cast<float*>(to), count);
  } else {
    narrow(type, static_cast<const float*>(from), to, count);
  }
}

std::size_t hierarchical_scratch_bytes(const Operation& o, const HostLayout& layout,
                                       bool in_rank_order) {
  if (is_flat(o, layout, in_rank_order)) return 0;
  const std::size_t n = o.buffer.count;
  const std::size_t bytes = n * size_of(o.type);
  const std::size_t hosts = static_cast<std::size_t>(layout.hosts());
  const std::size_t wide = must_round_once(o) ? n * sizeof(float) : 0;
  if (o.kind == Kind::kReduce) return wide + (layout.rank == o.peer ? 0 : bytes);
  if (o.kind == Kind::kReduceScatter)
    return wide > 0 ? wide * (layout.host_of.size() + hosts) : bytes * hosts;
  return wide;
}

HierarchicalProgram plan_hierarchical(const Operation& o, const HostLayout& layout,
                                      bool in_rank_order, std::byte* scratch) {
  Planner planner(o, layout, scratch);
  if (is_flat(o, layout, in_rank_order)) return planner.flat();
  switch (o.kind) {
    case Kind::kBarrier:
      return planner.barrier();
    case Kind::kAllReduce:
      return planner.all_reduce();
    case Kind::kReduce:
      return planner.reduce();
    case Kind::kBroadcast:
      return planner.broadcast();
    case Kind::kAllGather:
      if (o.shared_output) return planner.all_gather_shared();
      return planner.all_gather();
    default:
      return planner.reduce_scatter();
  }
}

std::vector<Operation> messages_on_host(const Operation& o, const HostLayout& layout) {
  std::vector<Operation> messages;
  const auto& mates = layout.members[static_cast<std::size_t>(layout.host)];
  const std::size_t element = size_of(o.type);
  const auto add = [&](Kind kind, int mate, const void* memory, std::span<const std::size_t> counts,
                       int part) {
    const std::size_t count =
        counts.empty() ? o.buffer.count : counts[static_cast<std::size_t>(part)];
    if (count == 0) return;
    std::byte* at = plus(memory, before(counts, o.buffer.count, part) * element);
    messages.push_back(
        {.kind = kind,
         .type = o.type,
         .buffer = kind == Kind::kSend ? Buffer{at, nullptr, count} : Buffer{nullptr, at, count},
         .peer = mate,
         .priority = o.priority,
         .timeout = o.timeout});
  };
  const bool root_here =
      o.peer >= 0 && layout.host_of[static_cast<std::size_t>(o.peer)] == layout.host;
  const int root = root_here ? layout.local_of[static_cast<std::size_t>(o.peer)] : -1;
  for (int d = 1; d < layout.local_size(); ++d) {
    const int mate = (layout.local + d) % layout.local_size();
    const int rank = mates[static_cast<std::size_t>(mate)];
    if (o.kind == Kind::kAllToAll) {
      add(Kind::kSend, mate, o.buffer.input, o.send_counts, rank);
      add(Kind::kReceive, mate, o.buffer.output, o.receive_counts, rank);
    } else if (layout.local == root) {
      if (o.kind == Kind::kGather) add(Kind::kReceive, mate, o.buffer.output, {}, rank);
      if (o.kind == Kind::kScatter) add(Kind::kSend, mate, o.buffer.input, {}, rank);
    } else if (mate == root) {
      if (o.kind == Kind::kGather) add(Kind::kSend, mate, o.buffer.input, {}, 0);
      if (o.kind == Kind::kScatter) add(Kind::kReceive, mate, o.buffer.output, {}, 0);
    }
  }
  return messages;
}

}  // namespace shoal::collective
