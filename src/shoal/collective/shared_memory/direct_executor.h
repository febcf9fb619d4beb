#pragma once

#include <cstdint>
#include <vector>

#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/memory_map.h"
#include "shoal/collective/shared_memory/pending_operation.h"

namespace shoal::collective {

/// Executes operations whose buffers every rank of the group can address: each rank reads its share
/// of every peer's input and writes the result where it belongs, without an intermediate copy.
/// Reductions fold in rank order. Threads: only the thread of the rank, after all ranks have
/// published the operation and were compared.
class DirectExecutor {
 public:
  /// `memory` must outlive the executor.
  DirectExecutor(HostBlock block, const MemoryMap& memory, int rank, int ranks)
      : block_(block),
        memory_(memory),
        rank_(rank),
        ranks_(ranks),
        sources_(static_cast<std::size_t>(ranks)),
        targets_(static_cast<std::size_t>(ranks)) {}

  Outcome run(std::uint64_t sequence, PendingOperation& p, WorkLimit limit);

 private:
  std::byte* input(std::uint64_t sequence, int rank, std::size_t bytes) const {
    return memory_.resolve(block_.descriptor(rank, sequence).input, bytes);
  }
  void all_reduce(std::uint64_t sequence, const PendingOperation& p, Range range);
  void reduce_to(void* target, const PendingOperation& p, std::size_t count);
  void execute(std::uint64_t sequence, const PendingOperation& p, Range range);

  HostBlock block_;
  const MemoryMap& memory_;
  int rank_;
  int ranks_;
  // By rank; kept, so that `run` allocates nothing.
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
};

}  // namespace shoal::collective
