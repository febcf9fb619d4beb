#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/pending_operation.h"

namespace shoal::collective {

/// Bytes of the contribution that stands beside the descriptor of an inline operation.
inline std::size_t inline_payload_bytes(const Descriptor& d, int ranks) {
  return d.count * size_of(d.type) * (for_each_rank(d.kind) ? static_cast<std::size_t>(ranks) : 1);
}

/// Executes operations whose contributions travelled beside the descriptors: every rank computes
/// its own result from them, and peers need nothing more of it. Threads: only the thread of the
/// rank, after all payloads that the rank needs were published.
class InlineExecutor {
 public:
  InlineExecutor(HostBlock block, int rank, int ranks)
      : block_(block),
        rank_(rank),
        ranks_(ranks),
        contributions_(static_cast<std::size_t>(ranks)) {}

  void run(std::uint64_t sequence, const PendingOperation& p);

 private:
  HostBlock block_;
  int rank_;
  int ranks_;
  std::vector<const std::byte*> contributions_;  ///< by rank; kept, so that `run` allocates nothing
};

}  // namespace shoal::collective
