#pragma once

#include <array>
#include <vector>

#include "shoal/collective/operation.h"
#include "shoal/collective/shared_memory/host_layout.h"

namespace shoal::collective {

/// Where a part of a hierarchical operation is carried out. Each is a sequence of its own: what
/// several operations do in one lane happens in the order of the operations on every rank.
enum class Lane : std::uint8_t {
  kGather,   ///< among the ranks of this host, on the way to the others
  kBetween,  ///< among the ranks of one column: the j-th of every host
  kSpread,   ///< among the ranks of this host, on the way back
  kFlat,     ///< among all, without regard to hosts
};
inline constexpr int kLanes = 4;

/// Elements of a type narrower than fp32 to be written as fp32 (`widens`), or rounded back.
struct Conversion {
  bool widens;
  ElementType type;  ///< the narrow one
  const void* from;
  void* to;
  std::size_t count;

  void run() const;
};

/// Operations on one lane that are started together, in order.
struct Phase {
  Lane lane;
  std::vector<Operation> operations;
  Buffer copy{};  ///< made when they are started: `count` bytes of memory of this rank
  std::vector<Conversion> before;  ///< done when the phase begins
};

/// One rank's part of a hierarchical operation: phases, one after the other. Buffers are those of
/// the caller, or `scratch`.
struct HierarchicalProgram {
  std::vector<Phase> phases;
  std::vector<Conversion> after;  ///< done when the last phase is over
};

/// Bytes of scratch memory that `plan_hierarchical` needs on this rank.
std::size_t hierarchical_scratch_bytes(const Operation& operation, const HostLayout& layout,
                                       bool in_rank_order);

/// What this rank does for `operation` (one buffer; `more` is not looked at) so that as few bytes
/// as possible cross between hosts:
///   all_reduce: slice j is reduced to the j-th rank of each host, all-reduced within column j, and
///   spread: 2 (h - 1) / h * count elements per host; broadcast: once to every other host, slice j
///   within column j; reduce: once from every host; all_gather, reduce_scatter (hosts that hold
///   equal blocks of ranks): every element once to (from) every other host; with one output a host,
///   each of its ranks writes there what it contributes and what its like on every other host does;
///   barrier: of each host, of the hosts, of each host; the rest: flat.
/// Types that must round once are widened where they are contributed; partial sums are fp32 in
/// memory and between hosts, and whoever has the whole sum of a slice rounds it, for all: ranks get
/// the same bits. `in_rank_order`: reductions add no partial sums: flat. May copy the rank's own
/// part of an all_gather to its place.
HierarchicalProgram plan_hierarchical(const Operation& operation, const HostLayout& layout,
                                      bool in_rank_order, std::byte* scratch);

/// The messages between ranks of this host of which an all_to_all, gather or scatter consists
/// there, as operations of kind send and receive on ranks of the host; the rank's own part is not
/// among them. `operation` still has its per-rank counts.
std::vector<Operation> messages_on_host(const Operation& operation, const HostLayout& layout);

}  // namespace shoal::collective
