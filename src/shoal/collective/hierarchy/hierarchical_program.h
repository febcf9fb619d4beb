#pragma once

#include <array>
#include <vector>

#include "shoal/collective/operation.h"
#include "shoal/collective/shared_memory/host_layout.h"

namespace shoal::collective {

/// The set of ranks among which a phase of a hierarchical operation runs. Each stage has a
/// communicator of its own, in which every rank starts the phases of several operations in the
/// order of the operations.
enum class Stage : std::uint8_t {
  kLocalIn,   ///< the ranks of this node, before data crosses to other nodes
  kAcross,    ///< one column: the j-th rank of every node
  kLocalOut,  ///< the ranks of this node, after data has crossed
  kFlat,      ///< all ranks, wherever they are
};
inline constexpr int kStages = 4;

/// Writes elements of a type narrower than fp32 as fp32 (`widens`), or rounds them back.
struct Conversion {
  bool widens;
  ElementType type;  ///< the narrow one
  const void* from;
  void* to;
  std::size_t count;

  void run() const;
};

/// Operations of one stage that are started together, in order.
struct Phase {
  Stage stage;
  std::vector<Operation> operations;
  Buffer copy{};  ///< `count` bytes in this rank's memory, copied when the phase begins
  std::vector<Conversion> before;  ///< conversions that run when the phase begins
};

/// One rank's part of a hierarchical operation: phases that run one after the other. Their buffers
/// lie in those of the caller or in `scratch`.
struct HierarchicalProgram {
  std::vector<Phase> phases;
  std::vector<Conversion> after;  ///< conversions that run when the last phase is over
};

/// Returns the bytes of scratch memory that `plan_hierarchical` needs on this rank.
std::size_t hierarchical_scratch_bytes(const Operation& operation, const HostLayout& layout,
                                       bool in_rank_order);

/// Returns the program of this rank for `operation` (one buffer; `more` is not read), in which as
/// few bytes as possible cross between the h nodes:
///   all_reduce: each node reduces slice j to its j-th rank, column j all-reduces the slice, each
///     node shares the results; every node sends 2 (h - 1) / h of the bytes;
///   broadcast: each slice crosses once to every other node, within its column;
///   reduce: the leader of each node sends the node's sum once;
///   all_gather, reduce_scatter (where nodes hold equal blocks of ranks): every element crosses
///     once to, or from, every other node; with one output a node, each rank writes there its own
///     part and those of its column;
///   barrier: within each node, among the leaders, within each node again;
///   all others: flat.
/// Types that must round once become fp32 where they are contributed. Partial sums are fp32 in
/// memory and between nodes, and the one rank that has the whole sum of a slice rounds it for all,
/// so ranks get the same bits. An all_reduce with a codec is flat. `in_rank_order`: reductions must
/// not add partial sums, so they are flat. The call may copy the rank's own part of an all_gather
/// to its place.
HierarchicalProgram plan_hierarchical(const Operation& operation, const HostLayout& layout,
                                      bool in_rank_order, std::byte* scratch);

/// Returns the sends and receives between ranks of this node that an all_to_all, gather or scatter
/// consists of there, with local ranks as peers and without the rank's own part. `operation` still
/// has its per-rank counts.
std::vector<Operation> messages_on_host(const Operation& operation, const HostLayout& layout);

}  // namespace shoal::collective
