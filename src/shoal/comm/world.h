#pragma once

#include <functional>
#include <string>

#include "shoal/comm/group.h"

namespace shoal::comm {

/// How the ranks of a job on one host come together.
struct WorldOptions {
  std::string name;  ///< unique to the job on this host
  std::string key;   ///< what members must show; at most 64 bytes
  int rank = 0;
  int size = 1;
  bool arena = true;                   ///< memory that peers map, installed as LibTorch's CPU allocator; the same bits without, only slower
  std::size_t memory_limit_bytes = 0;  ///< of this rank; 0: its share of what the host has
  Duration meeting_timeout = std::chrono::minutes(2);
  Duration timeout = std::chrono::minutes(10);  ///< of collectives that bring none of their own
};

/// Ranks as processes: blocks until all have met. Installs the arena first, so call it before anything large is allocated.
/// A world of one meets nobody; it gets the arena and a group of one. Throws what wire::meet throws.
Group connect(const WorldOptions& options);

/// Ranks as threads of this process: runs `body(group)` on `options.size` threads that share memory, with the same bits as processes. `options.rank`,
/// `name` and `key` are not used. When a body throws, the others are stopped; rethrows the first cause.
void run_on_threads(const WorldOptions& options, const std::function<void(const Group&)>& body);

}  // namespace shoal::comm
