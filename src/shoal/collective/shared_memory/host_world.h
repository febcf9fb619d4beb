#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/shared_memory/memory_map.h"
#include "shoal/wire/local_rendezvous.h"
#include "shoal/wire/shared_segment.h"

namespace shoal::collective {

/// What the ranks of one host share besides their arenas: the control segment with the record of
/// the first failure, and the means to notice that a peer has ended. One per rank; all groups of
/// the rank stand on it. Threads: any, but for `check`, which belongs to the rank's own thread.
class HostWorld {
 public:
  /// Ranks as processes that have met.
  HostWorld(int rank, wire::Acquaintance acquaintance, const wire::SharedSegment* own_arena);
  /// Ranks as threads of this process: `control` is zeroed memory that they all use.
  HostWorld(int rank, int size, std::shared_ptr<wire::SharedSegment> control);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// True when the ranks are threads of this process.
  bool of_threads() const { return own_control_ != nullptr; }
  const MemoryMap& memory() const { return memory_; }
  std::byte* control() const { return control_; }

  /// Takes `bytes` of the control segment, 4096-aligned and zero; for one rank to take and to tell
  /// the others. Throws Error(resource) when it is full.
  std::size_t take_control(std::size_t bytes);
  std::byte* at(std::size_t control_offset, std::size_t bytes) const;
  /// Where the first group of all ranks lies, in every control segment.
  static std::size_t first_block();
  static std::size_t control_bytes();

  /// Records why everything ends; only the first call on any rank counts.
  void abort(const Error& cause);
  /// Throws the recorded cause as this rank's error, if there is one; notices peers that have ended
  /// (a peer that dies without words is recorded as the cause after a short grace in which its own
  /// words may still arrive).
  void check();
  /// Has any rank recorded why everything ends?
  bool ended() const;
  /// The rank that recorded it; -1: none has.
  int cause_rank() const;
  /// This rank is done and about to go: its end is no failure. A group that still waits for it says
  /// so.
  void leave();
  bool has_left(int rank) const;

 private:
  struct Header;
  Header& header() const;
  [[noreturn]] void throw_cause() const;
  int ended_peer() const;

  int rank_, size_;
  wire::Acquaintance acquaintance_;
  std::shared_ptr<wire::SharedSegment> own_control_;
  std::byte* control_;
  MemoryMap memory_;
  Clock::time_point next_look_{}, suspected_at_{};
  int suspect_ = -1;
};

}  // namespace shoal::collective
