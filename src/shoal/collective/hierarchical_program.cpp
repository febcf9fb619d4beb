#include "shoal/collective/hierarchical_program.h"

#include <cstring>

#include "shoal/base/element_type.h"
#include "shoal/collective/step.h"
#include "shoal/collective/tcp_call.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kWhole = 8 << 10;  // bytes up to which one rank of each host speaks for it where slices are of different sizes

std::byte* plus(const void* p, std::size_t bytes) { return static_cast<std::byte*>(const_cast<void*>(p)) + bytes; }

/// Makes the phases of one operation on one rank.
class Planner {
 public:
  Planner(const Operation& o, const HostLayout& layout, std::byte* scratch) : o_(o), l_(layout), scratch_(scratch), element_(size_of(o.type)) {}

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
    const std::size_t n = o_.buffer.count, m = static_cast<std::size_t>(l_.local_size());
    const bool equal = l_.in_blocks && n % m == 0, slices = equal || n * element_ > kWhole;
    const int parts = slices ? l_.columns : 1;
    const Range own = l_.local < parts ? part_of(n, parts, l_.local) : Range{};
    if (equal)
      add(Lane::kGather, Kind::kReduceScatter, {o_.buffer.input, out(own.begin), own.size()});
    else
      for (int j = 0; j < parts; ++j) {
        const Range part = part_of(n, parts, j);
        add(Lane::kGather, Kind::kReduce, {in(part.begin), out(part.begin), part.size()}, j);
      }
    if (own.size() > 0) add(Lane::kBetween, Kind::kAllReduce, {out(own.begin), out(own.begin), own.size()});
    if (equal)
      add(Lane::kSpread, Kind::kAllGather, {out(own.begin), o_.buffer.output, own.size()});
    else
      spread(parts);
    return std::move(program_);
  }

  // The first rank of each host speaks for it.
  HierarchicalProgram reduce() {
    const std::size_t n = o_.buffer.count;
    const int host = l_.host_of[o_.peer];
    void* sum = l_.rank == o_.peer ? o_.buffer.output : scratch_;
    add(Lane::kGather, Kind::kReduce, {o_.buffer.input, sum, n}, 0);
    if (l_.local == 0) add(Lane::kBetween, Kind::kReduce, {sum, sum, n}, host);
    if (l_.host == host && l_.local_of[o_.peer] != 0) add(Lane::kSpread, Kind::kBroadcast, {sum, sum, n}, 0);
    return std::move(program_);
  }

  HierarchicalProgram broadcast() {
    const std::size_t n = o_.buffer.count;
    const int host = l_.host_of[o_.peer], parts = n * element_ > kWhole ? l_.columns : 1;
    if (l_.host == host) add(Lane::kGather, Kind::kBroadcast, o_.buffer, l_.local_of[o_.peer]);
    if (l_.local < parts) {
      const Range own = part_of(n, parts, l_.local);
      add(Lane::kBetween, Kind::kBroadcast, {out(own.begin), out(own.begin), own.size()}, host);
    }
    if (l_.host != host) spread(parts);
    return std::move(program_);
  }

  // This rank's contribution goes to its like on every other host, straight to where it belongs; then each host shares what it has got.
  HierarchicalProgram all_gather() {
    const std::size_t c = o_.buffer.count, m = static_cast<std::size_t>(l_.columns);
    const auto place = [&](int h) { return (static_cast<std::size_t>(h) * m + static_cast<std::size_t>(l_.local)) * c; };
    if (c > 0 && out(place(l_.host)) != o_.buffer.input) std::memmove(out(place(l_.host)), o_.buffer.input, c * element_);
    for (int d = 1; d < l_.hosts(); ++d) add(Lane::kBetween, Kind::kSend, {out(place(l_.host)), nullptr, c}, (l_.host + d) % l_.hosts());
    for (int d = 1; d < l_.hosts(); ++d) {
      const int h = (l_.host + l_.hosts() - d) % l_.hosts();
      add(Lane::kBetween, Kind::kReceive, {nullptr, out(place(h)), c}, h);
    }
    for (int h = 0; h < l_.hosts(); ++h) add(Lane::kSpread, Kind::kAllGather, {out(place(h)), out(static_cast<std::size_t>(h) * m * c), c});
    return std::move(program_);
  }

  // The ranks of a host have one output: each writes its part and those of its likes, once none of them wants what is there.
  HierarchicalProgram all_gather_shared() {
    const std::size_t c = o_.buffer.count, m = static_cast<std::size_t>(l_.columns);
    const auto place = [&](int h) { return (static_cast<std::size_t>(h) * m + static_cast<std::size_t>(l_.local)) * c; };
    add(Lane::kGather, Kind::kBarrier, {});
    for (int d = 1; d < l_.hosts(); ++d) add(Lane::kBetween, Kind::kSend, {o_.buffer.input, nullptr, c}, (l_.host + d) % l_.hosts());
    for (int d = 1; d < l_.hosts(); ++d) {
      const int h = (l_.host + l_.hosts() - d) % l_.hosts();
      add(Lane::kBetween, Kind::kReceive, {nullptr, out(place(h)), c}, h);
    }
    if (out(place(l_.host)) != o_.buffer.input) program_.phases.back().copy = {o_.buffer.input, out(place(l_.host)), c * element_};
    add(Lane::kSpread, Kind::kBarrier, {});
    return std::move(program_);
  }

  HierarchicalProgram reduce_scatter() {
    const std::size_t c = o_.buffer.count, m = static_cast<std::size_t>(l_.columns);
    for (int h = 0; h < l_.hosts(); ++h) {
      const auto i = static_cast<std::size_t>(h);
      add(Lane::kGather, Kind::kReduceScatter, {in(i * m * c), scratch_ + i * c * element_, c});
    }
    add(Lane::kBetween, Kind::kReduceScatter, {scratch_, o_.buffer.output, c});
    return std::move(program_);
  }

 private:
  std::byte* in(std::size_t at) const { return plus(o_.buffer.input, at * element_); }
  std::byte* out(std::size_t at) const { return plus(o_.buffer.output, at * element_); }

  /// The j-th rank of this host has slice j; every rank gets it.
  void spread(int parts) {
    for (int j = 0; j < parts; ++j) {
      const Range part = part_of(o_.buffer.count, parts, j);
      add(Lane::kSpread, Kind::kBroadcast, {out(part.begin), out(part.begin), part.size()}, j);
    }
  }

  void add(Lane lane, Kind kind, const Buffer& buffer, int peer = -1) {
    if (program_.phases.empty() || program_.phases.back().lane != lane) program_.phases.push_back({.lane = lane, .operations = {}});
    // Every contribution is scaled once, where the ranks of a host reduce theirs; what follows are sums.
    const bool average = o_.reduction == Reduction::kAverage, scaled = average || o_.reduction == Reduction::kPremulSum,
               scales = lane == Lane::kGather;
    const double scale = average ? 1.0 / static_cast<double>(l_.host_of.size()) : o_.scale;
    program_.phases.back().operations.push_back({.kind = kind,
                                                 .type = o_.type,
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

  const Operation& o_;
  const HostLayout& l_;
  std::byte* scratch_;
  std::size_t element_;
  HierarchicalProgram program_;
};

}  // namespace

std::size_t hierarchical_scratch_bytes(const Operation& o, const HostLayout& layout) {
  const std::size_t bytes = o.buffer.count * size_of(o.type);
  if (o.kind == Kind::kReduce) return layout.rank == o.peer ? 0 : bytes;
  if (o.kind == Kind::kReduceScatter && layout.in_blocks) return bytes * static_cast<std::size_t>(layout.hosts());
  return 0;
}

HierarchicalProgram plan_hierarchical(const Operation& o, const HostLayout& layout, bool once, std::byte* scratch) {
  Planner planner(o, layout, scratch);
  if (once || (o.buffer.count == 0 && o.kind != Kind::kBarrier)) return planner.flat();
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
      return layout.in_blocks ? planner.all_gather() : planner.flat();
    case Kind::kReduceScatter:
      return layout.in_blocks ? planner.reduce_scatter() : planner.flat();
    default:
      return planner.flat();
  }
}

}  // namespace shoal::collective
