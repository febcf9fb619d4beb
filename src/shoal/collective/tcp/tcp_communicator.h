#pragma once

#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/communicator.h"
#include "shoal/collective/flight/flight_recorder.h"
#include "shoal/collective/tcp/tcp_operation.h"
#include "shoal/wire/transport.h"

namespace shoal::collective {

/// Collectives among ranks on any hosts, over messages (TCP): each operation is a rank's column of
/// a step table, taken up again whenever a message has arrived.
///
/// Any number of operations may be in flight, messages are matched by group and sequence number,
/// and those of higher priority overtake. Every message says which call it belongs to, and at the
/// start of an operation each rank tells its successor what it calls: a disagreement is an
/// Error(mismatch) on all ranks that names both calls. What is sent is read where it lies, until
/// the operation is complete. All ranks end with the same bits; types narrower than fp32, kAverage
/// and kPremulSum are folded once, in the order of ranks.
class TcpCommunicator final : public Communicator {
 public:
  struct Settings {
    Duration timeout = std::chrono::minutes(10);  ///< of operations that bring none of their own
    std::vector<int>
        hosts;  ///< of each rank, for the choice of algorithms; empty: all ranks have equal links
    CostModel model;
    std::string algorithms;  ///< overrides, as Choice reads them
    std::shared_ptr<FlightBook>
        flight;  ///< where this group and its splits leave what they remember; null: nowhere
    bool in_rank_order =
        false;  ///< every reduction folds once, in the order of ranks: the bits of shared memory
  };
  TcpCommunicator(std::shared_ptr<wire::Transport> peers, Settings settings);
  /// A group of `members` (ranks in the world, of which this is one, in the group's order) that
  /// they agree to call `group`: no number that another group has, above 1. For callers that tell
  /// the others by means of their own; `split` does all of it.
  static std::unique_ptr<TcpCommunicator> of_members(std::shared_ptr<wire::Transport> peers,
                                                     Settings settings, std::vector<int> members,
                                                     std::uint64_t group);
  ~TcpCommunicator() override;

  int rank() const override { return members_.rank; }
  int size() const override { return members_.size(); }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override;
  /// Throws Error(usage) for an operation that makes no sense here.
  void validate(const Operation& operation) const;
  Handle start(const Operation& operation) override;
  /// The same without what travels between ranks of one host, as `hosts` names them: somebody else
  /// brings it. For kinds that reduce nothing.
  Handle start_between_hosts(const Operation& operation);
  /// A rank from which a message with that tag has arrived that no receive under way may take; -1:
  /// none.
  int find_message(std::uint32_t tag) const;
  bool test(Handle handle) override;
  bool complete(Handle handle) const override;
  void wait(Handle handle, Deadline deadline) override;
  bool wait_briefly(Handle handle, Duration longest) override;
  int take_source(Handle handle) override;
  void poll(Duration budget) override;
  bool idle() const override { return in_flight_.empty(); }
  std::uint64_t sequence() const override { return sequence_; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  /// Ends everything on all ranks, other groups included.
  void abort(const Error& cause) override;

  /// As the connections count ranks, which may be more than are in this group.
  int world_rank() const { return peers_->rank(); }
  int world_size() const { return peers_->size(); }
  /// Throws the first cause once something has failed on any rank.
  void check() const { peers_->check(); }
  const Choice& choice() const { return choice_; }
  /// Where every rank of the group stands, as seen from this rank's oldest collective that is not
  /// complete.
  std::string report() const override;
  /// The last collectives of this rank in this group.
  const FlightRecorder& recorder() const { return *recorder_; }
  /// What this rank has sent to ranks of other hosts, as `hosts` names them: headers included,
  /// heartbeats not.
  std::uint64_t bytes_between_hosts() const { return members_.bytes_between_hosts; }
  /// The same of all groups on these connections: heartbeats included.
  std::uint64_t bytes_between_hosts_of_all() const;

 private:
  TcpCommunicator(std::shared_ptr<wire::Transport> peers, Settings settings, std::vector<int> ranks,
                  int rank, std::uint64_t group);
  Handle enqueue_all(const Operation& operation, bool between_hosts);
  void enqueue(const Operation& operation, Handle handle, bool between_hosts);
  std::shared_ptr<const std::vector<Step>> steps_for(const Operation& operation,
                                                     Algorithm algorithm, bool between_hosts);
  std::vector<Step> make_steps(const Operation& operation, Algorithm algorithm,
                               bool between_hosts) const;
  wire::Stream stream_of_messages(std::uint32_t tag) const;
  void advance_operations();
  void advance_all();  ///< and sends what they have queued
  void check_times(Handle handle, Deadline deadline, std::uint64_t seen);

  std::shared_ptr<wire::Transport> peers_;
  Settings settings_;
  TcpMembers members_;
  std::uint64_t group_;
  Choice choice_;
  Handle started_ = 0;
  std::uint64_t sequence_ = 0;  ///< of collectives; coalesced buffers have one each
  std::list<TcpOperation> in_flight_;
  std::map<Handle, int> sources_;  ///< of completed receives from any rank
  std::shared_ptr<FlightRecorder> recorder_ = std::make_shared<FlightRecorder>();
  /// This rank's columns, by algorithm, kind, count, root, and whether only between hosts.
  std::map<std::tuple<Algorithm, Kind, std::size_t, int, bool>,
           std::shared_ptr<const std::vector<Step>>>
      tables_;
};

}  // namespace shoal::collective
