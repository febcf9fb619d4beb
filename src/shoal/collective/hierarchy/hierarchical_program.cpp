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

/// Up to this size the leader of each node takes part for it where slices would differ in size.
constexpr std::size_t kLeaderOnlyBytes = 8 << 10;

std::byte* plus(const void* p, std::size_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(p)) + bytes;
}

bool is_flat(const Operation& o, const HostLayout& layout, bool in_rank_order) {
  if (o.kind == Kind::kBarrier) return false;
  if (o.coding.codec != Codec::kNone) return true;
  if (o.buffer.count == 0 || (in_rank_order && reduces(o.kind))) return true;
  if (o.kind == Kind::kAllGather || o.kind == Kind::kReduceScatter) return !layout.in_blocks;
  return o.kind != Kind::kAllReduce && o.kind != Kind::kReduce && o.kind != Kind::kBroadcast;
}

/// Builds the phases of one operation on one rank.
class ProgramBuilder {
 public:
  ProgramBuilder(const Operation& o, const HostLayout& layout, std::byte* scratch)
      : operation_(o), layout_(layout), scratch_(scratch), rounds_once_(must_round_once(o)) {
    use_buffers(o.type, o.buffer.input, o.buffer.output);
  }

  /// Passes the operation on as it is, to the communicator of all ranks.
  HierarchicalProgram flat() {
    Operation operation = operation_;
    operation.more = {};
    program_.phases.push_back({.stage = Stage::kFlat, .operations = {operation}});
    return std::move(program_);
  }

  HierarchicalProgram barrier() {
    add(Stage::kLocalIn, Kind::kBarrier, {});
    if (layout_.local == 0) add(Stage::kAcross, Kind::kBarrier, {});
    add(Stage::kLocalOut, Kind::kBarrier, {});
    return std::move(program_);
  }

  // Each node reduces slice j to its j-th rank, column j adds the sums of the nodes, and each node
  // shares the slices. Where all nodes hold equal blocks of ranks and slices have equal sizes, one
  // reduce-scatter and one all-gather do the local work. Small operations have one slice.
  HierarchicalProgram all_reduce() {
    const std::size_t n = operation_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(layout_.local_size());
    const bool equal = layout_.in_blocks && n % m == 0;
    const bool large = n * size_of(operation_.type) > kLeaderOnlyBytes;
    const bool slices = equal || large;
    const int parts = slices ? layout_.columns : 1;
    const Range own = layout_.local < parts ? part_of(n, parts, layout_.local) : Range{};
    if (rounds_once_) widen_input(n);
    if (equal) {
      add(Stage::kLocalIn, Kind::kReduceScatter, {input_, out(own.begin), own.size()});
    } else {
      for (int j = 0; j < parts; ++j) {
        const Range part = part_of(n, parts, j);
        add(Stage::kLocalIn, Kind::kReduce, {in(part.begin), out(part.begin), part.size()}, j);
      }
    }
    if (rounds_once_) {
      exchange_rounded(own, large);
    } else if (own.size() > 0) {
      add(Stage::kAcross, Kind::kAllReduce, {out(own.begin), out(own.begin), own.size()});
    }
    if (equal) {
      add(Stage::kLocalOut, Kind::kAllGather,
          {out(own.begin), operation_.buffer.output, own.size()});
    } else {
      share_slices(parts);
    }
    return std::move(program_);
  }

  // The leader of each node, its first rank, carries the node's sum across.
  HierarchicalProgram reduce() {
    const std::size_t n = operation_.buffer.count;
    const int host = layout_.host_of[operation_.peer];
    void* result = layout_.rank == operation_.peer
                       ? operation_.buffer.output
                       : scratch_ + (rounds_once_ ? n * sizeof(float) : 0);
    if (rounds_once_) widen_input(n);
    void* sum = rounds_once_ ? scratch_ : result;
    add(Stage::kLocalIn, Kind::kReduce, {input_, sum, n}, 0);
    if (layout_.local == 0) add(Stage::kAcross, Kind::kReduce, {sum, sum, n}, host);
    if (layout_.host != host) return std::move(program_);
    if (rounds_once_ && layout_.local == 0) round({0, n}, result);
    use_buffers(operation_.type, result, result);
    if (layout_.local_of[operation_.peer] != 0)
      add(Stage::kLocalOut, Kind::kBroadcast, {result, result, n}, 0);
    return finished();
  }

  // The root's node shares the data first, so that the j-th rank of it can send slice j across.
  HierarchicalProgram broadcast() {
    const std::size_t n = operation_.buffer.count;
    const int host = layout_.host_of[operation_.peer];
    const int parts = n * element_ > kLeaderOnlyBytes ? layout_.columns : 1;
    if (layout_.host == host)
      add(Stage::kLocalIn, Kind::kBroadcast, operation_.buffer, layout_.local_of[operation_.peer]);
    if (layout_.local < parts) {
      const Range own = part_of(n, parts, layout_.local);
      add(Stage::kAcross, Kind::kBroadcast, {out(own.begin), out(own.begin), own.size()}, host);
    }
    if (layout_.host != host) share_slices(parts);
    return std::move(program_);
  }

  // This rank's contribution goes to the rank of its column on every other node, straight to where
  // it belongs; then the ranks of each node share what they have received.
  HierarchicalProgram all_gather() {
    const std::size_t c = operation_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(layout_.columns);
    std::byte* own = out(place_of_column(layout_.host));
    if (c > 0 && own != operation_.buffer.input)
      std::memmove(own, operation_.buffer.input, c * element_);
    exchange_with_column(own);
    for (int h = 0; h < layout_.hosts(); ++h) {
      add(Stage::kLocalOut, Kind::kAllGather,
          {out(place_of_column(h)), out(static_cast<std::size_t>(h) * m * c), c});
    }
    return std::move(program_);
  }

  // The ranks of a node have one output: each writes its own part and those of its column. The
  // first barrier is there because a rank may still read what lies in the output.
  HierarchicalProgram all_gather_shared() {
    add(Stage::kLocalIn, Kind::kBarrier, {});
    exchange_with_column(operation_.buffer.input);
    std::byte* own = out(place_of_column(layout_.host));
    if (own != operation_.buffer.input)
      program_.phases.back().copy = {operation_.buffer.input, own,
                                     operation_.buffer.count * element_};
    add(Stage::kLocalOut, Kind::kBarrier, {});
    return std::move(program_);
  }

  // Each node reduces, for every node h, the parts of the ranks of h: the j-th rank of this node
  // gets the sum for the j-th rank of h. The column then adds these sums.
  HierarchicalProgram reduce_scatter() {
    const std::size_t c = operation_.buffer.count;
    const std::size_t m = static_cast<std::size_t>(layout_.columns);
    const std::size_t all = c * layout_.host_of.size();
    if (rounds_once_) widen_input(all);
    std::byte* sums = scratch_ + (rounds_once_ ? all * element_ : 0);
    for (int h = 0; h < layout_.hosts(); ++h) {
      const auto i = static_cast<std::size_t>(h);
      add(Stage::kLocalIn, Kind::kReduceScatter, {in(i * m * c), sums + i * c * element_, c});
    }
    if (!rounds_once_) {
      add(Stage::kAcross, Kind::kReduceScatter, {sums, operation_.buffer.output, c});
      return std::move(program_);
    }
    std::byte* own = sums + static_cast<std::size_t>(layout_.host) * c * element_;
    add(Stage::kAcross, Kind::kReduceScatter, {sums, own, c});
    pending_.push_back({false, operation_.type, own, operation_.buffer.output, c});
    return finished();
  }

 private:
  /// Returns the first element, in a gathered result, of this column's rank on node `host`.
  std::size_t place_of_column(int host) const {
    const auto rank = static_cast<std::size_t>(host) * static_cast<std::size_t>(layout_.columns) +
                      static_cast<std::size_t>(layout_.local);
    return rank * operation_.buffer.count;
  }
  /// Sends `own` to the rank of this column on every other node, beginning with the next node so
  /// that not all send to the same one, and receives the contributions of these ranks.
  void exchange_with_column(const void* own) {
    const std::size_t c = operation_.buffer.count;
    for (int d = 1; d < layout_.hosts(); ++d)
      add(Stage::kAcross, Kind::kSend, {own, nullptr, c}, (layout_.host + d) % layout_.hosts());
    for (int d = 1; d < layout_.hosts(); ++d) {
      const int h = (layout_.host + layout_.hosts() - d) % layout_.hosts();
      add(Stage::kAcross, Kind::kReceive, {nullptr, out(place_of_column(h)), c}, h);
    }
  }

  std::byte* in(std::size_t at) const { return plus(input_, at * element_); }
  std::byte* out(std::size_t at) const { return plus(output_, at * element_); }

  /// The operations added from here on have this type and these buffers.
  void use_buffers(ElementType type, const void* input, void* output) {
    type_ = type;
    element_ = size_of(type);
    input_ = input;
    output_ = output;
  }

  /// Widens the contribution into the front of the scratch memory, where the operations added from
  /// here on work.
  void widen_input(std::size_t count) {
    pending_.push_back({true, operation_.type, operation_.buffer.input, scratch_, count});
    use_buffers(ElementType::kF32, scratch_, scratch_);
  }

  /// Rounds the elements `range` of the fp32 result to their place behind `to`.
  void round(Range range, void* to) {
    if (range.size() > 0) {
      pending_.push_back({false, operation_.type, scratch_ + range.begin * sizeof(float),
                          plus(to, range.begin * size_of(operation_.type)), range.size()});
    }
  }

  /// All-reduces `own` within the column: as fp32 until one rank has the whole sum of a part of it,
  /// and as rounded values from there on, so that every rank gets the bits that one has rounded.
  void exchange_rounded(Range own, bool large) {
    const auto part = [&](int host) {
      const Range inside = part_of(own.size(), layout_.hosts(), host);
      return Range{own.begin + inside.begin, own.begin + inside.end};
    };
    const auto for_each_part = [&](Kind kind) {
      for (int h = 0; h < layout_.hosts(); ++h) {
        if (const Range r = part(h); r.size() > 0)
          add(Stage::kAcross, kind, {out(r.begin), out(r.begin), r.size()}, h);
      }
    };
    if (own.size() > 0 && !large)
      add(Stage::kAcross, Kind::kAllReduce, {out(own.begin), out(own.begin), own.size()});
    if (own.size() > 0 && large) for_each_part(Kind::kReduce);
    use_buffers(operation_.type, operation_.buffer.output, operation_.buffer.output);
    round(large ? part(layout_.host) : own, operation_.buffer.output);
    if (own.size() > 0 && large) for_each_part(Kind::kBroadcast);
  }

  /// Gives slice j, which the j-th rank of this node has, to every rank of the node.
  void share_slices(int parts) {
    for (int j = 0; j < parts; ++j) {
      const Range part = part_of(operation_.buffer.count, parts, j);
      add(Stage::kLocalOut, Kind::kBroadcast, {out(part.begin), out(part.begin), part.size()}, j);
    }
  }

  struct Scaling {
    Reduction reduction;
    double factor;
  };
  /// Every contribution is scaled once, where the ranks of a node reduce theirs. The later stages
  /// add sums that are scaled already.
  Scaling scaling_in(Stage stage) const {
    const bool average = operation_.reduction == Reduction::kAverage;
    if (!average && operation_.reduction != Reduction::kPremulSum) return {operation_.reduction, 1};
    if (stage != Stage::kLocalIn) return {Reduction::kSum, 1};
    return {Reduction::kPremulSum,
            average ? 1.0 / static_cast<double>(layout_.host_of.size()) : operation_.scale};
  }

  /// Adds an operation to the current phase, or begins a phase where the stage changes or
  /// conversions must run before.
  void add(Stage stage, Kind kind, const Buffer& buffer, int peer = -1) {
    if (program_.phases.empty() || program_.phases.back().stage != stage || !pending_.empty()) {
      program_.phases.push_back(
          {.stage = stage, .operations = {}, .copy = {}, .before = std::exchange(pending_, {})});
    }
    const Scaling scaling = scaling_in(stage);
    program_.phases.back().operations.push_back({.kind = kind,
                                                 .type = type_,
                                                 .reduction = scaling.reduction,
                                                 .buffer = buffer,
                                                 .peer = peer,
                                                 .tag = operation_.tag,
                                                 .priority = operation_.priority,
                                                 .scale = scaling.factor,
                                                 .timeout = operation_.timeout});
  }

  HierarchicalProgram finished() {
    program_.after = std::exchange(pending_, {});
    return std::move(program_);
  }

  const Operation& operation_;
  const HostLayout& layout_;
  std::byte* scratch_;
  bool rounds_once_;
  ElementType type_{};
  std::size_t element_ = 1;
  const void* input_ = nullptr;
  void* output_ = nullptr;
  std::vector<Conversion> pending_;  ///< run before the phase that comes next
  HierarchicalProgram program_;
};

/// Returns the elements in front of part `rank`.
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
  ProgramBuilder builder(o, layout, scratch);
  if (is_flat(o, layout, in_rank_order)) return builder.flat();
  switch (o.kind) {
    case Kind::kBarrier:
      return builder.barrier();
    case Kind::kAllReduce:
      return builder.all_reduce();
    case Kind::kReduce:
      return builder.reduce();
    case Kind::kBroadcast:
      return builder.broadcast();
    case Kind::kAllGather:
      if (o.shared_output) return builder.all_gather_shared();
      return builder.all_gather();
    default:
      return builder.reduce_scatter();
  }
}

std::vector<Operation> messages_on_host(const Operation& o, const HostLayout& layout) {
  std::vector<Operation> messages;
  const auto& local_ranks = layout.members[static_cast<std::size_t>(layout.host)];
  const std::size_t element = size_of(o.type);
  const auto add = [&](Kind kind, int local_peer, const void* memory,
                       std::span<const std::size_t> counts, int part) {
    const std::size_t count =
        counts.empty() ? o.buffer.count : counts[static_cast<std::size_t>(part)];
    if (count == 0) return;
    std::byte* at = plus(memory, before(counts, o.buffer.count, part) * element);
    messages.push_back(
        {.kind = kind,
         .type = o.type,
         .buffer = kind == Kind::kSend ? Buffer{at, nullptr, count} : Buffer{nullptr, at, count},
         .peer = local_peer,
         .priority = o.priority,
         .timeout = o.timeout});
  };
  const bool root_here =
      o.peer >= 0 && layout.host_of[static_cast<std::size_t>(o.peer)] == layout.host;
  const int root = root_here ? layout.local_of[static_cast<std::size_t>(o.peer)] : -1;
  for (int d = 1; d < layout.local_size(); ++d) {
    const int local_peer = (layout.local + d) % layout.local_size();
    const int rank = local_ranks[static_cast<std::size_t>(local_peer)];
    if (o.kind == Kind::kAllToAll) {
      add(Kind::kSend, local_peer, o.buffer.input, o.send_counts, rank);
      add(Kind::kReceive, local_peer, o.buffer.output, o.receive_counts, rank);
    } else if (layout.local == root) {
      if (o.kind == Kind::kGather) add(Kind::kReceive, local_peer, o.buffer.output, {}, rank);
      if (o.kind == Kind::kScatter) add(Kind::kSend, local_peer, o.buffer.input, {}, rank);
    } else if (local_peer == root) {
      if (o.kind == Kind::kGather) add(Kind::kSend, local_peer, o.buffer.input, {}, 0);
      if (o.kind == Kind::kScatter) add(Kind::kReceive, local_peer, o.buffer.output, {}, 0);
    }
  }
  return messages;
}

}  // namespace shoal::collective
