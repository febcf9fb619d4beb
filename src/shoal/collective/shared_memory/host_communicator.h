#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/progress.h"
#include "shoal/collective/shared_memory/announcements.h"
#include "shoal/collective/shared_memory/direct_executor.h"
#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/host_mailbox.h"
#include "shoal/collective/shared_memory/host_shared_memory.h"
#include "shoal/collective/shared_memory/host_world.h"
#include "shoal/collective/shared_memory/inline_executor.h"
#include "shoal/collective/shared_memory/operation_queue.h"
#include "shoal/collective/shared_memory/priority_order.h"
#include "shoal/collective/shared_memory/staged_executor.h"
#include "shoal/wire/parking.h"

namespace shoal::collective {

/// Executes operations among the ranks of one node, processes or threads, over memory that they all
/// map.
///
/// A rank announces each operation by a descriptor in shared memory. When the ranks that it needs
/// have announced the operation too, it compares the calls, takes the inline, direct or staged
/// path, and executes its part. Reductions go in rank order on every path, so the bits do not
/// depend on the path. A rank that only sends in an inline operation (e.g. the root of a broadcast)
/// waits for no peer; its next call reports a mismatch. Messages (send, receive) go through a
/// HostMailbox and are not ordered with the collectives; their handles have the bit kMessage set.
/// docs/design/shared_memory.md draws the protocol, and the classes of the members below state its
/// invariants.
///
/// The descriptors are also the flight recorder: the last kSlots operations of every rank, with
/// times, readable by all.
class HostCommunicator final : public Communicator {
 public:
  struct Options {
    /// Applies to operations that bring no timeout of their own.
    Duration timeout = std::chrono::minutes(10);
    /// Keeps the records of this group and of its splits; null: they are not kept.
    std::shared_ptr<FlightBook> flight;
    /// Gives the rank in the job of each rank of this node's world; empty: 0, 1, ...
    std::vector<int> world_ranks;
    /// The memory that peers map, in which shared blocks are allocated. Null: only ranks that are
    /// threads share blocks.
    std::shared_ptr<wire::Arena> arena;
    /// Is shared with the rank's other communicators and with those that split off; null: a wait in
    /// this group advances no other.
    std::shared_ptr<Progress> progress;
  };
  /// Makes the group of all ranks of `world`.
  HostCommunicator(std::shared_ptr<HostWorld> world, const Options& options);
  /// Makes a group of `members` (ranks in the world, in the group's order) over control memory that
  /// one of them has taken: `block_bytes` zero bytes at `control_offset`. The caller passes the
  /// offset to the other members itself; `split` does both.
  static std::unique_ptr<HostCommunicator> on_block(std::shared_ptr<HostWorld> world,
                                                    const Options& options,
                                                    std::size_t control_offset,
                                                    std::vector<int> members);
  static std::size_t block_bytes(int ranks) { return HostBlock::bytes(ranks); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override;
  Handle start(const Operation& operation) override;
  bool test(Handle handle) override;
  void wait(Handle handle, Deadline deadline) override;
  void wait(Handle handle) override;
  bool wait_briefly(Handle handle, Duration longest) override;
  void poll(Duration budget) override;
  void advance_others() override { place_.advance_others(); }
  void look_for_failure() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(const Error& cause) override;
  int node() const override { return 0; }
  SharedMemory* shared_memory() override { return &shared_memory_; }

  bool complete(Handle handle) const override {
    return handle >= kMessage ? mailbox_.complete(handle - kMessage) : queue_.is_complete(handle);
  }
  bool idle() const override { return queue_.in_flight() == 0 && mailbox_.idle(); }
  bool has_room() const override { return in_flight() < kSlots; }
  /// Returns the number of collectives started since, and including, the first that is not
  /// complete. At kSlots the next `start` waits.
  std::size_t in_flight() const { return queue_.in_flight(); }
  std::uint64_t sequence() const override { return queue_.started(); }
  int take_source(Handle handle) override {
    return handle >= kMessage ? mailbox_.take_source(handle - kMessage) : -1;
  }
  /// Returns a rank from which a message with that tag has arrived and for which no receive is in
  /// flight; -1: there is none.
  int find_message(std::uint32_t tag) const { return mailbox_.find_message(tag); }
  HostWorld& world() const { return *world_; }
  /// Returns the place in the list of communicators that advance one another.
  Progress::Place& place() { return place_; }
  /// Describes the ranks that have not entered, or not left, an operation, and the messages that
  /// wait: for error messages.
  std::string report() const override;

 private:
  HostCommunicator(std::shared_ptr<HostWorld> world, const Options& options, HostBlock block,
                   std::vector<int> members, int rank);

  static constexpr Handle kMessage = Handle{1} << 63;

  void validate(const Operation& operation) const;
  void throw_cause();
  Handle start_message(const Operation& operation);
  Handle start_in_parts(const Operation& operation, std::size_t buffers_a_part);
  Handle start_coded(const Operation& operation);
  Handle enqueue(const Operation& operation, CodedRound round,
                 const std::shared_ptr<CodedExchange>& coded);

  void advance(Handle until, WorkLimit limit);
  bool may_publish_next() { return queue_.published() < queue_.started() && has_room_to_publish(); }
  bool has_room_to_publish();
  void publish_next();
  bool execute_most_urgent(WorkLimit limit);
  Outcome execute(std::uint64_t sequence, WorkLimit limit);
  Outcome execute_on_path(std::uint64_t sequence, PendingOperation& p, WorkLimit limit);
  bool choose_path(std::uint64_t sequence, PendingOperation& p);
  bool behind_a_staged_one(std::uint64_t sequence) const;
  bool settle(std::uint64_t sequence);
  void conclude();

  Error error_at(ErrorKind kind, Handle handle, std::string what) const;
  Error timeout_error(Handle handle, const std::string& what) const;
  /// Returns a rank of the world that holds up an operation; -1: none does.
  int awaited(Handle handle) const;
  void keep_in(FlightBook& book) const;
  [[noreturn]] void fail(const Error& error);
  template <class Check>
  void wait_until(Handle handle, Check&& check);
  void check_present(Handle handle);
  Duration timeout_of(Handle handle) const;

  std::shared_ptr<HostWorld> world_;
  Options options_;
  HostBlock block_;
  std::vector<int> members_;  ///< rank here -> rank in the world
  int rank_;
  wire::SpinPolicy spin_policy_;
  HostMailbox mailbox_;
  HostSharedMemory shared_memory_;
  OperationQueue queue_;
  PriorityOrder order_;
  Announcements announcements_;
  InlineExecutor inline_;
  DirectExecutor direct_;
  StagedExecutor staged_;
  std::exception_ptr failure_;
  Progress::Place place_;
};

}  // namespace shoal::collective
