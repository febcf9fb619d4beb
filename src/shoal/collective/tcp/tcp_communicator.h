#pragma once

#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/flight/flight_recorder.h"
#include "shoal/collective/progress.h"
#include "shoal/collective/route/link_matrix.h"
#include "shoal/collective/tcp/tcp_operation.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Collectives among ranks on any hosts, over messages (TCP). Each operation executes the rank's
/// column of a step table and resumes whenever a message has arrived.
///
/// Any number of operations may be in flight. Messages are matched by group and sequence number;
/// those of higher priority overtake. Every message says which call it belongs to, and at the start
/// of an operation each rank sends its call to its successor: a disagreement is an Error(mismatch)
/// on all ranks that names both calls. Buffers are sent from where they lie, until the operation is
/// complete. All ranks end with the same bits; types narrower than fp32, kAverage and kPremulSum
/// are folded once, in the order of ranks.
class TcpCommunicator final : public Communicator {
 public:
  struct Options {
    /// Applies to operations that bring no timeout of their own.
    Duration timeout = std::chrono::minutes(10);
    /// The host of each rank, for the choice of algorithms; empty: all ranks have equal links.
    std::vector<int> hosts;
    CostModel model;
    std::string algorithms;  ///< overrides, as Choice reads them
    /// The measured links between the ranks of the world, by which algorithms and the order of
    /// rings are chosen; the same on all ranks. Null: nothing was measured.
    std::shared_ptr<const LinkMatrix> links;
    /// Records the operations of this group and its splits; null: nothing does.
    std::shared_ptr<FlightBook> flight;
    /// Every reduction folds once, in the order of ranks, and so gives the bits of shared memory.
    bool in_rank_order = false;
    /// Bytes that the operations of this group may take from the connections before they can fold
    /// them, because those of another rank have not come.
    std::uint64_t most_held_bytes = std::uint64_t{32} << 20;
    /// Is shared with the rank's other communicators and with those that split off; null: a wait in
    /// this group advances no other.
    std::shared_ptr<Progress> progress;
  };
  TcpCommunicator(std::shared_ptr<wire::Transport> peers, Options options);
  /// Makes a group of `members`: ranks in the world, this one among them, in the group's order. All
  /// of them pass the same `group`, a number above 1 that no other group has and on which the
  /// callers have agreed by other means. `split` does all of this.
  static std::unique_ptr<TcpCommunicator> of_members(std::shared_ptr<wire::Transport> peers,
                                                     Options options, std::vector<int> members,
                                                     std::uint64_t group);
  ~TcpCommunicator() override;

  int rank() const override { return members_.rank; }
  int size() const override { return members_.size(); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override;
  /// Throws Error(usage) for an operation that makes no sense here.
  void validate(const Operation& operation) const;
  Handle start(const Operation& operation) override;
  /// Starts an operation without the messages between ranks of one host, as `hosts` names them: the
  /// caller moves those itself. For kinds that reduce nothing.
  Handle start_between_hosts(const Operation& operation);
  /// Returns a rank from which a message with that tag has arrived that no receive in flight may
  /// take; -1: there is none.
  int find_message(std::uint32_t tag) const;
  bool test(Handle handle) override;
  bool complete(Handle handle) const override;
  void wait(Handle handle, Deadline deadline) override;
  bool wait_briefly(Handle handle, Duration longest) override;
  int take_source(Handle handle) override;
  void poll(Duration budget) override;
  void advance_others() override { place_.advance_others(); }
  void look_for_failure() override;
  bool idle() const override { return in_flight_.empty(); }
  std::uint64_t sequence() const override { return sequence_; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  /// Ends everything on all ranks, other groups included.
  void abort(const Error& cause) override;

  /// Return this rank's number in the world and the number of ranks there, which may be more than
  /// are in this group.
  int world_rank() const { return peers_->rank(); }
  int world_size() const { return peers_->size(); }
  /// Throws the first cause once something has failed on any rank.
  void check() const { peers_->check(); }
  const Choice& choice() const { return choice_; }
  /// Returns the place in the list of communicators that advance one another.
  Progress::Place& place() { return place_; }
  /// Describes how far every rank of the group has come, relative to this rank's oldest collective
  /// that is not complete.
  std::string report() const override;
  /// As `report`. `blamed`, a rank of the job or -1, becomes one that does not answer, as a process
  /// that is stopped, unless `blamed` itself does not.
  std::string report(int& blamed) const;
  /// Returns the record of the last collectives of this rank in this group.
  const FlightRecorder& recorder() const { return *recorder_; }
  /// Returns the bytes that this rank has sent in this group to ranks of other hosts, as `hosts`
  /// names them: headers included, as one connection carries them, heartbeats not.
  std::uint64_t bytes_between_hosts() const { return members_.bytes_between_hosts; }
  /// As above, over all groups on these connections and with heartbeats.
  std::uint64_t bytes_between_hosts_of_all() const;
  /// Returns the bytes that wait to be folded, see Options.
  std::uint64_t held_bytes() const { return members_.held_bytes; }

 private:
  TcpCommunicator(std::shared_ptr<wire::Transport> peers, Options options, std::vector<int> ranks,
                  int rank, std::uint64_t group);
  Handle enqueue_all(const Operation& operation, bool between_hosts);
  void enqueue(const Operation& operation, Handle handle, bool between_hosts);
  void enqueue_coded(const Operation& operation, Handle handle);
  std::shared_ptr<const std::vector<Step>> steps_for(const Operation& operation,
                                                     Algorithm algorithm, bool between_hosts);
  std::vector<Step> make_steps(const Operation& operation, Algorithm algorithm, bool between_hosts,
                               int segments) const;
  int segments_of(const Operation& operation) const;
  wire::Stream stream_of_messages(std::uint32_t tag) const;
  void advance_operations();
  void advance_all();  ///< advances all operations, and sends what they have queued
  void check_times(Handle handle, Deadline deadline, std::uint64_t seen);

  std::shared_ptr<wire::Transport> peers_;
  Options options_;
  TcpMembers members_;
  std::uint64_t group_;
  Choice choice_;
  Handle started_ = 0;
  std::uint64_t sequence_ = 0;  ///< counts collectives; coalesced buffers count one each
  std::list<TcpOperation> in_flight_;
  std::map<Handle, int> sources_;  ///< for completed receives from any rank
  std::shared_ptr<FlightRecorder> recorder_ = std::make_shared<FlightRecorder>();
  /// A cache of this rank's columns, by algorithm, kind, count, root, whether only between hosts,
  /// and segments.
  std::map<std::tuple<Algorithm, Kind, std::size_t, int, bool, int>,
           std::shared_ptr<const std::vector<Step>>>
      tables_;
  Progress::Place place_;
};

}  // namespace shoal::collective
