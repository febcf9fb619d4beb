#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/flight/host_flight.h"
#include "shoal/collective/shared_memory/contribution.h"
#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/host_mailbox.h"
#include "shoal/collective/shared_memory/host_shared_memory.h"
#include "shoal/collective/shared_memory/host_world.h"
#include "shoal/wire/parking.h"

namespace shoal::collective {

/// Collectives among the ranks of one host, processes or threads, over memory that they all see.
///
/// A rank announces an operation by a descriptor in shared memory: what it calls, how much, and
/// where its buffers lie. When all have announced it, the descriptors are compared (a disagreement
/// is an Error(mismatch) on every rank that names both calls) and one of three ways is taken, the
/// same everywhere:
///   inline: contributions of at most kPayloadBytes travelled beside the descriptor; each rank
///   computes its own result; no second meeting, and
///     who only gives (the root of a broadcast or scatter, the others in a reduce or gather) waits
///     for nobody: it is compared with the rest later, and meets a disagreement at its next call;
///   direct: all buffers lie in arenas; each rank reads its share of every peer's buffer and writes
///   the result where it belongs: nothing is copied; staged: some buffer is private memory;
///   contributions pass through shared memory in chunks that fit the second-level cache. A rank is
///   done when
///     it has its result: nobody else touches its buffers.
/// Reductions go in rank order in all three, so the bits are the same, whichever is taken.
///
/// Operations of one priority are carried out, and complete, in the order of the calls. One of
/// higher priority overtakes those of lower priority that are before it, also one that has begun: a
/// large one is left after each piece for what is more urgent and can be carried out. Every rank
/// decides that for itself, and priorities need not agree. Among staged operations there is one
/// order for all ranks, that of the calls: what must be staged overtakes what need not be, and is
/// overtaken. `start` carries out nothing large, so that what is started next may still overtake; a
/// wait while there are several priorities ends with its own operation, and leaves the less urgent
/// ones to later calls.
///
/// Messages between two ranks (send, receive) go through a HostMailbox, beside the collectives and
/// in no order with them; their handles are above kMessage, and each completes by itself.
///
/// The descriptors are also the flight recorder: the last kSlots operations of every rank, with
/// times, readable by all.
class HostCommunicator final : public Communicator {
 public:
  struct Settings {
    Duration timeout = std::chrono::minutes(10);  ///< of operations that bring none of their own
    std::shared_ptr<FlightBook>
        flight;  ///< where this group and its splits leave what they remember; null: nowhere
    std::vector<int>
        world_ranks;  ///< what the job calls the ranks of this host's world; empty: 0, 1, ...
    /// Memory that peers map, of which shared blocks are made; null: only threads share blocks.
    std::shared_ptr<wire::Arena> arena;
  };
  /// The group of all ranks of `world`.
  HostCommunicator(std::shared_ptr<HostWorld> world, const Settings& settings);
  /// A group of `members` (ranks in the world, in the group's order) over control memory that one
  /// of them has taken: `block_bytes` zero bytes at `control_offset`. For callers that tell the
  /// others by means of their own; `split` does all of it.
  static std::unique_ptr<HostCommunicator> on_block(std::shared_ptr<HostWorld> world,
                                                    const Settings& settings,
                                                    std::size_t control_offset,
                                                    std::vector<int> members);
  static std::size_t block_bytes(int ranks) { return HostBlock::bytes(ranks); }
  /// Does an operation whose Buffer::count is `bytes` take the inline way?
  static bool travels_inline(Kind kind, std::size_t bytes, int ranks);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override;
  Handle start(const Operation& operation) override;
  bool test(Handle handle) override;
  void wait(Handle handle, Deadline deadline) override;
  void wait(Handle handle) override;
  bool wait_briefly(Handle handle, Duration longest) override;
  void poll(Duration budget) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(const Error& cause) override;
  int node() const override { return 0; }
  SharedMemory* shared_memory() override { return &shared_memory_; }

  bool complete(Handle handle) const override {
    return handle >= kMessage ? mailbox_.complete(handle - kMessage) : collective_complete(handle);
  }
  bool idle() const override { return completed_ == started_ && mailbox_.idle(); }
  bool has_room() const override { return in_flight() < kSlots; }
  /// Collectives started, from the first that is not complete on; at kSlots the next `start` waits.
  std::size_t in_flight() const { return started_ - completed_; }
  std::uint64_t sequence() const override { return started_; }
  int take_source(Handle handle) override {
    return handle >= kMessage ? mailbox_.take_source(handle - kMessage) : -1;
  }
  /// A rank from which a message with that tag has arrived that no receive under way asks for; -1:
  /// none.
  int find_message(std::uint32_t tag) const { return mailbox_.find_message(tag); }
  HostWorld& world() const { return *world_; }
  /// The last operations of every rank, a line each, with who has not entered or not finished what:
  /// for people, when something failed.
  std::string report() const override;

 private:
  enum class Awaited : std::uint8_t {
    kNobody,
    kRoot,
    kAll
  };  ///< whose announcement an operation needs before it can be carried out
  enum class Way : std::uint8_t { kUndecided, kInline, kDirect, kStaged };
  enum class Amount : std::uint8_t {
    kQuick,
    kPiece,
    kAll
  };  ///< of what can be carried out: only what is quick; of the rest a piece; all
  enum class Outcome : std::uint8_t { kWaits, kGoesOn, kDone };
  enum class Chunk : std::uint8_t {
    kNothing,
    kOffered,
    kKept
  };  ///< what this rank has done of a staged chunk: others may read it; `keep`
  /// An operation of this rank that is not complete, or not settled.
  struct Pending {
    Operation operation;
    std::vector<Buffer> buffers;
    std::vector<std::size_t> send_counts, receive_counts;
    bool small = false;  ///< it takes the inline way
    bool quick = false;  ///< `start` may carry it out: kQuickBytes at most
    Awaited awaited = Awaited::kAll;
    Way way = Way::kUndecided;
    bool executed = false, complete = false;  ///< noted while there are several priorities; else
                                              ///< what `executed_` and `completed_` say
    std::size_t done = 0;   ///< direct: elements of this rank's share that it has carried out
    std::size_t chunk = 0;  ///< staged: the next chunk to consume
    Chunk progress = Chunk::kNothing;
  };
  /// How a staged operation is cut.
  struct Cut {
    Call call;
    std::size_t count, step;  ///< elements, of all and of a chunk
  };

  HostCommunicator(std::shared_ptr<HostWorld> world, const Settings& settings, HostBlock block,
                   std::vector<int> members, int rank);

  static constexpr Handle kMessage = Handle{1} << 63;

  void validate(const Operation& operation) const;
  void refuse();
  Handle start_message(const Operation& operation);
  Handle enqueue(const Operation& operation);
  void advance(Handle until, Amount amount);
  bool advance_most_urgent(Amount amount);
  void conclude();
  void conclude_by_priority();
  void note_executed(std::uint64_t sequence);
  bool collective_complete(std::uint64_t sequence) const {
    return completed_ >= sequence || (sequence <= started_ && pending(sequence).complete);
  }
  std::uint64_t awaited_by(std::uint64_t sequence) const;
  bool may_publish(std::uint64_t sequence);
  void publish(std::uint64_t sequence);
  Awaited awaited(const Pending& pending) const;
  Outcome execute(std::uint64_t sequence, Amount amount);
  bool decide(std::uint64_t sequence, Pending& pending);
  bool behind_a_staged_one(std::uint64_t sequence) const;
  bool settle(std::uint64_t sequence);
  bool published(int rank, std::uint64_t sequence) const {
    return descriptor(rank, sequence).sequence.load(std::memory_order_acquire) >= sequence;
  }
  bool all_published(std::uint64_t sequence) const;
  bool all_finished(std::uint64_t sequence) const;
  bool done_by(int rank, std::uint64_t sequence) const;
  bool done_by_others(std::uint64_t sequence) const;
  void compare(std::uint64_t sequence, int rank) const;
  Way choose(std::uint64_t sequence, const Pending& pending) const;
  void run_inline(std::uint64_t sequence, Pending& pending);
  Outcome run_direct(std::uint64_t sequence, Pending& pending, Amount amount);
  Outcome run_staged(std::uint64_t sequence, Pending& pending, Amount amount);
  Cut cut(std::uint64_t sequence, const Pending& pending) const;
  void offer_chunk(const Cut& cut, Pending& pending);
  void offer_early(std::uint64_t sequence, Pending& pending);
  /// Of an operation that travels inline.
  std::size_t payload_bytes(const Descriptor& d) const {
    return d.count * size_of(d.type) *
           (for_each_rank(d.kind) ? static_cast<std::size_t>(size()) : 1);
  }
  const Pending& pending(std::uint64_t sequence) const {
    return pending_[(sequence - 1) % pending_.size()];
  }
  Pending& pending(std::uint64_t sequence) { return pending_[(sequence - 1) % pending_.size()]; }
  const Descriptor& descriptor(int rank, std::uint64_t sequence) const {
    return block_.descriptor(rank, sequence);
  }
  Error error_at(ErrorKind kind, Handle handle, std::string what) const;
  std::string describe_call(int rank, std::uint64_t sequence) const {
    return describe(descriptor(rank, sequence));
  }
  void keep_in(FlightBook& book) const;
  [[noreturn]] void fail(const Error& error);
  template <class Check>
  void wait_until(Handle handle, Check&& check);
  void check_present(Handle handle);
  Duration timeout_of(Handle handle) const;

  std::shared_ptr<HostWorld> world_;
  Settings settings_;
  HostBlock block_;
  std::vector<int> members_;  ///< rank here -> rank in the world
  int rank_;
  wire::Patience patience_;
  HostMailbox mailbox_;
  HostSharedMemory shared_memory_;
  // At most kSlots are not complete, and of those that are complete kPayloads are not settled.
  static_assert(kPayloads <= kSlots);
  std::array<Pending, 2 * kSlots> pending_;
  // started >= published >= executed >= settled (compared with every rank, and peers told so),
  // completed. All operations up to there, that is: what has overtaken one that is not says so in
  // its Pending.
  std::uint64_t started_ = 0, published_ = 0, executed_ = 0, settled_ = 0, completed_ = 0;
  std::uint64_t mixed_ =
      0;  ///< while `completed_` is less, those in flight may differ in priority; else they do not
  int last_priority_ = 0;    ///< of the last that was started
  std::uint64_t freed_ = 0;  ///< every rank has finished with operations up to here, as last seen
  std::uint64_t offered_chunks_ = 0;  ///< staged chunks of all operations so far
  std::exception_ptr failure_;
  // Scratch, an entry a rank: so that no operation takes memory.
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
  std::vector<const std::byte*> offered_;
};

}  // namespace shoal::collective
