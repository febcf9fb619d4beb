#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collective/hierarchy/hierarchical_program.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/arena.h"

namespace shoal::collective {

/// Collectives among ranks on several nodes of which some hold several ranks: through shared memory
/// within each node and over TCP between nodes, so that as few bytes as possible cross.
///
/// An operation is a program of phases (hierarchical_program.h). Any number may be in flight. In
/// each stage they run in the order of the calls, so a later one may reduce within the node while
/// an earlier one crosses between nodes. Messages, and the parts of an all_to_all, gather or
/// scatter, go through the node's mailbox where both ranks are on it, else over TCP. All ranks end
/// with the same bits in every run. Another placement of ranks on nodes adds other partial sums and
/// so gives other last bits, unless `in_rank_order` asks for the bits of one node.
///
/// Invariants:
///   1. A rank starts phases of one stage in the order of the operations, so all ranks of the stage
///      match them by their order.
///   2. A rank never blocks in the `start` of a local stage: a peer may wait for it in another one.
/// Threads: one at a time, except `abort`.
class HierarchicalCommunicator final : public Communicator {
 public:
  struct Options {
    /// Applies to operations that bring no timeout of their own.
    Duration timeout = std::chrono::minutes(10);
    /// Provides scratch memory that the ranks of the node can address; null: the allocator does,
    /// and what lies there is staged.
    std::shared_ptr<wire::Arena> arena;
    /// The names in error messages of the ranks that share this node's memory; empty: as in the
    /// layout.
    std::vector<int> world_ranks;
    /// Reductions fold once, in rank order, wherever the ranks are. `world` must have it set too.
    bool in_rank_order = false;
    /// As in the Options of `local` and `world`, which name the same.
    std::shared_ptr<Progress> progress;
  };
  /// `local`: the ranks of `world` on this rank's node, in their order there. `world` knows which
  /// rank is on which node. Collective.
  HierarchicalCommunicator(std::unique_ptr<HostCommunicator> local,
                           std::unique_ptr<TcpCommunicator> world, Options options);
  ~HierarchicalCommunicator() override;

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override {
    return world_->supports(kind, type, reduction);
  }
  Handle start(const Operation& operation) override;
  bool test(Handle handle) override;
  bool complete(Handle handle) const override;
  void wait(Handle handle, Deadline deadline) override;
  bool wait_briefly(Handle handle, Duration longest) override;
  int take_source(Handle handle) override;
  void poll(Duration budget) override;
  void advance_others() override { place_.advance_others(); }
  void look_for_failure() override;
  bool idle() const override { return in_flight_.empty(); }
  std::uint64_t sequence() const override { return collectives_; }
  std::string report() const override;
  /// Returns a HostCommunicator for ranks that are all on one node, and a TcpCommunicator for ranks
  /// of which no two are.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(const Error& cause) override;
  int node() const override { return layout_.host; }

  const HostLayout& layout() const { return layout_; }
  /// Returns the bytes that this rank has sent to ranks of other nodes: headers included,
  /// heartbeats not.
  std::uint64_t bytes_between_hosts() const;
  /// As above, over all groups of the world and with heartbeats.
  std::uint64_t bytes_between_hosts_of_all() const { return world_->bytes_between_hosts_of_all(); }

 private:
  struct Pending {
    Handle handle = 0;
    Operation operation;
    HierarchicalProgram program;
    std::shared_ptr<std::byte> scratch;
    std::size_t phase = 0;        ///< the phase that is in flight, or next
    std::vector<Handle> running;  ///< handles of its operations, in the communicator of its stage
    /// Set for a receive that waits for its message, or for an earlier receive: the stage that it
    /// runs in is not known yet.
    bool unmatched = false;
    Clock::time_point deadline;
  };

  Communicator* communicator_of(Stage stage) const;
  std::shared_ptr<std::byte> scratch(std::size_t bytes) const;
  void enqueue(Operation operation, Handle handle);
  Pending& add_pending(const Operation& operation, Handle handle);
  void start_now(Pending& pending, Stage stage, std::vector<Operation> operations);
  void enqueue_exchange(const Operation& operation, Handle handle);
  void start_message(Pending& pending);
  bool match(Pending& pending);
  void advance();
  bool advance(Pending& pending, bool (&claimed)[kStages]);
  bool has_room(const Phase& phase) const;
  void make_progress();
  bool wait_in_stage(Handle handle, Duration longest, Deadline deadline);
  void block_in_stage(const Pending& pending, Duration longest);
  std::string on_own_host(const Communicator& local) const;
  std::string awaited_by(const Pending& pending) const;
  void check_times(Handle handle, Deadline deadline);
  template <class Body>
  void guarded(Body&& body);
  [[noreturn]] void fail(const Error& error);
  Error in_world_ranks(const Error& error) const;
  void set_current(const Pending& pending) {
    current_ = {pending.program.phases[pending.phase].stage, pending.operation.kind,
                pending.handle};
  }
  void check();

  // One communicator a stage, so that operations of one stage cannot hold up those of another.
  std::unique_ptr<HostCommunicator> local_in_;
  std::unique_ptr<Communicator> local_out_;
  std::unique_ptr<TcpCommunicator> world_;
  std::unique_ptr<Communicator> across_;  ///< null on ranks that belong to no column
  Options options_;
  HostLayout layout_;
  Handle started_ = 0;
  std::uint64_t collectives_ = 0;
  std::list<Pending> in_flight_;
  std::map<Handle, int> sources_;  ///< the sources of matched receives from any rank
  /// The operation on whose behalf a stage is called: errors that the stage throws are its errors.
  struct {
    Stage stage = Stage::kFlat;
    Kind kind = Kind::kBarrier;
    Handle handle = 0;
  } current_;
  Progress::Place place_;
};

}  // namespace shoal::collective
