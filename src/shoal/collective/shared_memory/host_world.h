#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/shared_memory/memory_map.h"
#include "shoal/wire/local_rendezvous.h"
#include "shoal/wire/shared_segment.h"

namespace shoal::collective {

/// One rank's view of what the ranks of a node share besides their arenas: the control segment, in
/// which the groups have their blocks and the first failure is recorded, and the means to notice
/// that a peer has ended. All groups of the rank use the same HostWorld.
///
/// Invariants:
///   1. The record of a failure is written once, by the rank that wins the change of its state from
///      none to writing, and read by others only in the state recorded (release and acquire).
///   2. A rank writes to memory of its peers only within a Touch, and a rank that has seen the end
///      waits until no peer is within one: after its error nobody writes to its memory any more.
///   3. A rank that leaves in good order says so after its last store to shared memory, so a peer
///      that has read it finds everything that the rank ever did.
/// Threads: any, except `check`, which only the thread of the rank may call.
class HostWorld {
 public:
  /// The control segment has room for the state of so many; more are refused with Error(usage).
  static constexpr std::size_t kMostRanks = 1024;
  /// For ranks that are processes and have completed the rendezvous.
  HostWorld(int rank, wire::LocalRendezvousResult rendezvous, const wire::SharedSegment* own_arena);
  /// For ranks that are threads of this process: `control` is zeroed memory that they all use.
  HostWorld(int rank, int size, std::shared_ptr<wire::SharedSegment> control);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns true when the ranks are threads of this process.
  bool of_threads() const { return own_control_ != nullptr; }
  const MemoryMap& memory() const { return memory_; }
  std::byte* control() const { return control_; }

  /// Takes `bytes` of the control segment, aligned to 4096 and zero. One rank of a new group takes
  /// them and passes the offset to the others. Throws Error(resource) when the segment is full.
  std::size_t take_control(std::size_t bytes);
  std::byte* at(std::size_t control_offset, std::size_t bytes) const;
  /// Returns the offset of the first group of all ranks, the same in every control segment.
  static std::size_t first_block();
  static std::size_t control_bytes();

  /// Records the cause of a failure; only the first call on any rank counts.
  void abort(const Error& cause);
  /// Begins the record of a failure. Returns true for the one rank that is to write it. `abort`
  /// does this and the rest.
  bool claim_record();
  /// Throws the recorded cause, if there is one, as this rank's error. Also notices peers that have
  /// ended: one that left no error of its own is recorded as the cause, after a short grace in
  /// which its error may still arrive. So is one that ended while it wrote the record.
  void check();
  /// Waits until no other rank is within a Touch. A rank that is stopped in the middle of one is
  /// given up after 5 seconds.
  void await_untouched() const;
  /// Marks this rank as writing to memory of its peers while the object lives. Once a rank has
  /// begun to record a failure it is not `allowed`, and the rank must not write.
  class Touch {
   public:
    explicit Touch(const HostWorld& world);
    ~Touch();
    Touch(const Touch&) = delete;
    Touch& operator=(const Touch&) = delete;
    bool allowed() const { return allowed_; }

   private:
    std::atomic<std::uint32_t>& mark_;
    bool allowed_;
  };

  /// Tells whether any rank has recorded a cause.
  bool ended() const;
  /// Returns the rank that recorded the cause; -1: none has.
  int cause_rank() const;
  /// Announces that this rank is about to end in good order, which is no failure. A group that
  /// still waits for it fails with an error that says so.
  void leave();
  bool has_left(int rank) const;
  /// Returns true when the process of `rank`, not a thread of this one, has ended.
  bool process_ended(int rank) const;
  /// Says for which rank of the node this one waits, for the reports of others; -1: for none.
  void set_awaited(int rank);
  /// Describes who waits for whom, from this rank on: "rank 2 waits for rank 1, and rank 1 for
  /// nobody". `blamed` becomes the last of them. Empty when this rank waits for nobody.
  std::string chain_of_waits(int& blamed) const;

 private:
  struct Header;
  Header& header() const;
  static void check_size(int size);
  [[noreturn]] void throw_cause() const;
  void write_record(const Error& cause);
  void check_writer(Clock::time_point now);
  int awaited(int rank) const;
  int ended_peer() const;

  int rank_;
  int size_;
  wire::LocalRendezvousResult rendezvous_;
  std::shared_ptr<wire::SharedSegment> own_control_;
  std::byte* control_;
  MemoryMap memory_;
  Clock::time_point next_look_{};
  /// A peer that has ended, whose error may still arrive; -1: none.
  int suspect_ = -1;
  Clock::time_point suspected_at_{};
  /// When the record was first seen to be in the making.
  std::optional<Clock::time_point> writing_since_;
};

}  // namespace shoal::collective
