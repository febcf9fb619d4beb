#pragma once

#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/descriptor.h"
#include "shoal/wire/shared_segment.h"

namespace shoal::wire {

/// One rank's part in the rendezvous of the ranks of its host.
struct LocalRendezvousOptions {
  std::string name;  ///< unique to the job on this host; letters, digits, '.', '_', '-'
  std::string key;   ///< every member must show it; at most 64 bytes
  int rank = 0;      ///< among the ranks of this host
  int size = 1;
  std::size_t control_bytes = 0;  ///< size of the segment that all share
  /// This rank's memory, which its peers map; null: it shares none.
  const SharedSegment* arena = nullptr;
};

/// The memory and processes of the other ranks, as this rank holds them after the rendezvous.
struct LocalRendezvousResult {
  /// One segment, mapped by all ranks; zero but for its first 64 bytes, which hold the token.
  SharedSegment control;
  /// By rank; empty for this rank and for those that share no memory.
  std::vector<SharedSegment> arenas;
  std::vector<bool> shares;  ///< by rank: it has an arena
  /// By rank: a pidfd, readable once that process has ended; none for this rank.
  std::vector<Descriptor> processes;
};

/// Returns the directory below `runtime_directory` that holds the sockets of one user's jobs. Makes
/// it if need be, with mode 0700. Throws Error(resource) when another user could write to it.
std::string rendezvous_directory(const std::string& runtime_directory = "/tmp");

/// Brings the ranks of one host together over a path socket in a 0700 directory below
/// `runtime_directory` and passes descriptors around: rank 0, the leader, listens; the others
/// connect to it. A caller must be of the same user (SO_PEERCRED) and show the key; anything else
/// is turned away without disturbing the members. A token that each rank reads from the shared
/// segment proves that all are on one host. Throws Error(timeout) that names the ranks that did
/// not come, Error(peer_lost) that names a rank whose process ended meanwhile, Error(usage) when
/// two come as the same rank.
LocalRendezvousResult local_rendezvous(const LocalRendezvousOptions& options, Deadline deadline,
                                       const std::string& runtime_directory = "/tmp");

}  // namespace shoal::wire
