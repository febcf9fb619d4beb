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

/// Ranks on several hosts, some of which share one: shared memory inside each host, TCP between
/// them, so that as few bytes as possible cross.
///
/// An operation is a program of phases (hierarchical_program.h). Any number may be under way; what
/// they do in one lane happens in their order, so a later one gathers while an earlier one is
/// between the hosts. Messages, and the parts of an all_to_all, gather or scatter, go through the
/// host's mailbox when both ranks are on it, else over TCP. All ranks end with the same bits, the
/// same run to run; they differ from those of another arrangement of hosts as partial sums do,
/// unless `in_rank_order` asks for the bits of one host.
class HierarchicalCommunicator final : public Communicator {
 public:
  struct Settings {
    Duration timeout = std::chrono::minutes(10);  ///< of operations that bring none of their own
    std::shared_ptr<wire::Arena> arena;  ///< where scratch memory comes from, so that the ranks of
                                         ///< the host see it; null: from the allocator
    std::vector<int> world_ranks;  ///< of those that share this host's memory, by which errors name
                                   ///< them; empty: as in the layout
    bool in_rank_order = false;  ///< reductions fold once, in the order of ranks, without regard to
                                 ///< hosts: as `all` must too
  };
  /// `host`: the ranks of `all` that share this rank's host, in their order there. `all` knows the
  /// hosts. Collective.
  HierarchicalCommunicator(std::unique_ptr<HostCommunicator> host,
                           std::unique_ptr<TcpCommunicator> all, Settings settings);
  ~HierarchicalCommunicator() override;

  int rank() const override { return all_->rank(); }
  int size() const override { return all_->size(); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override {
    return all_->supports(kind, type, reduction);
  }
  Handle start(const Operation& operation) override;
  bool test(Handle handle) override;
  bool complete(Handle handle) const override;
  void wait(Handle handle, Deadline deadline) override;
  bool wait_briefly(Handle handle, Duration longest) override;
  int take_source(Handle handle) override;
  void poll(Duration budget) override;
  bool idle() const override { return in_flight_.empty(); }
  std::uint64_t sequence() const override { return collectives_; }
  std::string report() const override;
  /// Ranks that all share one host get a HostCommunicator, ranks of which no two do a
  /// TcpCommunicator.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(const Error& cause) override;
  int node() const override { return layout_.host; }

  const HostLayout& layout() const { return layout_; }
  /// What this rank has sent to ranks of other hosts: headers included, heartbeats not.
  std::uint64_t bytes_between_hosts() const;
  /// The same of all groups of the world: heartbeats included.
  std::uint64_t bytes_between_hosts_of_all() const { return all_->bytes_between_hosts_of_all(); }

 private:
  struct Pending {
    Handle handle = 0;
    Operation operation;
    HierarchicalProgram program;
    std::shared_ptr<std::byte> scratch;
    std::size_t at = 0;           ///< the phase that is next, or under way
    std::vector<Handle> running;  ///< of its operations, in its lane
    bool unmatched = false;  ///< a receive whose message, or whose turn, has not come: where it
                             ///< goes is not known
    Clock::time_point give_up;
  };

  Communicator* in_lane(Lane lane) const;
  std::shared_ptr<std::byte> scratch(std::size_t bytes) const;
  void enqueue(Operation operation, Handle handle);
  Pending& add_pending(const Operation& operation, Handle handle);
  void start_now(Pending& pending, Lane lane, std::vector<Operation> operations);
  void enqueue_exchange(const Operation& operation, Handle handle);
  void start_message(Pending& pending);
  bool match(Pending& pending);
  void advance();
  bool advance(Pending& pending, bool (&taken)[kLanes]);
  bool has_room(const Phase& phase) const;
  void make_progress();
  bool approach(Handle handle, Duration longest, Deadline deadline);
  void block(const Pending& pending, Duration longest);
  void check_times(Handle handle, Deadline deadline);
  template <class Body>
  void guarded(Body&& body);
  [[noreturn]] void fail(const Error& error);
  Error seen_by_all(const Error& error) const;
  void work_on(const Pending& pending) {
    at_work_ = {pending.program.phases[pending.at].lane, pending.operation.kind, pending.handle};
  }
  void check();

  std::unique_ptr<HostCommunicator> gather_;
  std::unique_ptr<Communicator> spread_;
  std::unique_ptr<TcpCommunicator> all_;
  std::unique_ptr<Communicator> column_;  ///< null on ranks that belong to none
  Settings settings_;
  HostLayout layout_;
  Handle started_ = 0;
  std::uint64_t collectives_ = 0;
  std::list<Pending> in_flight_;
  std::map<Handle, int> sources_;  ///< of receives from any rank that have found their message
  /// On whose behalf a lane is called.
  struct {
    Lane lane = Lane::kFlat;
    Kind kind = Kind::kBarrier;
    Handle handle = 0;
  } at_work_;
};

}  // namespace shoal::collective
