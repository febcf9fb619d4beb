#pragma once

#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/wire/descriptor.h"
#include "shoal/wire/shared_segment.h"

namespace shoal::wire {

/// How the ranks of one host find each other.
struct Meeting {
  std::string name;  ///< unique to the job on this host; letters, digits, '.', '_', '-'
  std::string key;   ///< what every member must show; at most 64 bytes
  int rank = 0;      ///< among the ranks of this host
  int size = 1;
  std::size_t control_bytes = 0;  ///< of the segment that all share
  const SharedSegment* arena =
      nullptr;  ///< this rank's memory for its peers to map; null: it shares none
};

/// What a rank knows when all have met.
struct Acquaintance {
  SharedSegment
      control;  ///< one, mapped by all, zero-filled but for its first 64 bytes (the token)
  std::vector<SharedSegment>
      arenas;                ///< by rank; empty for this rank and for those that share none
  std::vector<bool> shares;  ///< by rank: has an arena
  std::vector<Descriptor>
      processes;  ///< by rank: a pidfd, readable once that process has ended; none for this rank
};

/// The directory below `runtime_directory` in which one user's ranks meet: made if need be, mode
/// 0700. Throws Error(resource) when somebody else could write to it.
std::string meeting_directory(const std::string& runtime_directory = "/tmp");

/// Brings the ranks of one host together over a path socket in a 0700 directory below
/// `runtime_directory`, and passes descriptors around: rank 0 listens, the others come to it. A
/// caller must be of the same user (SO_PEERCRED) and show the key; anything else is turned away
/// without stopping the meeting. That all are on one host is proven by reading a token back from
/// the shared segment. Throws Error(timeout) that names the ranks that did not come, Error(usage)
/// when two come as the same rank.
Acquaintance meet(const Meeting& meeting, Deadline deadline,
                  const std::string& runtime_directory = "/tmp");

}  // namespace shoal::wire
