#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/collective/elastic/letter_carrier.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"

namespace shoal::collective::elastic {

/// The connections and the communicator of one view: the rank of a member is its place in the view.
/// Its members find each other through their carriers, and know each other by a key that is made of
/// the cluster's key and of the view, so that nobody of another view can be among them.
///
/// A failure ends this world on all its members, and nothing else: every call of its communicator
/// throws the cause from then on. It also ends when another view begins. Threads: as Communicator;
/// any thread may call `abort` and `check`.
class ViewWorld {
 public:
  struct Options {
    Duration timeout = std::chrono::minutes(10);  ///< of an operation that brings none of its own
    Duration silence = std::chrono::seconds(15);  ///< as in wire::TcpTransport
    int rails = 0;
    /// Every reduction folds in the order of ranks, so that a replay has the same bits.
    bool in_rank_order = true;
    std::shared_ptr<FlightBook> flight;
  };
  /// Connects this member to the others of `view`, which the carrier acts in. Throws Error(timeout)
  /// where some do not come by `deadline`, Error(aborted) where another view begins before.
  ViewWorld(LetterCarrier& carrier, const View& view, const Options& options, Deadline deadline);
  /// Leaves. Waits for peers as ~TcpTransport does.
  ~ViewWorld();
  ViewWorld(const ViewWorld&) = delete;
  ViewWorld& operator=(const ViewWorld&) = delete;

  const View& view() const { return view_; }
  int rank() const { return rank_; }
  /// Returns the communicator of all members; null after `close`.
  const std::shared_ptr<TcpCommunicator>& group() const { return group_; }
  /// Returns why it has ended; nothing where it has not.
  std::optional<Error> failure() const;
  /// Ends it on all members with `cause`.
  void abort(const Error& cause);
  /// Ends all use of the callers' memory, on this member.
  void close() { group_.reset(); }

 private:
  /// What the carrier keeps of this world, for which it must not live on.
  struct Switch {
    std::mutex mutex;
    wire::TcpTransport* transport = nullptr;
  };

  const View view_;
  int rank_ = 0;
  std::shared_ptr<wire::TcpTransport> transport_;
  std::shared_ptr<TcpCommunicator> group_;
  std::shared_ptr<Switch> switch_ = std::make_shared<Switch>();
};

/// The connections of a rank that is not the first of its member: to the ranks at the same place in
/// the other members of a view. They are as those of ViewWorld, but that no carrier ends them: the
/// first rank of the member says when the view is over. Threads: as Communicator.
class ColumnWorld {
 public:
  struct Place {
    Digest view{};   ///< of the view
    int column = 1;  ///< the rank in its member
    int rank = 0;    ///< the member's place in the view
    int size = 1;    ///< members
  };
  /// Gets the address of this rank, and returns those of all ranks of the column, in their order.
  using Meeting = std::function<std::vector<std::string>(const std::string& own)>;
  /// Throws what `meeting` throws, and as wire::TcpTransport, which asks `may_go_on`.
  ColumnWorld(const LetterCarrier::Options& network, const ViewWorld::Options& options,
              const Place& place, Meeting meeting, std::function<void()> may_go_on,
              Deadline deadline);
  /// Leaves. Waits for peers as ~TcpTransport does.
  ~ColumnWorld() = default;
  ColumnWorld(const ColumnWorld&) = delete;
  ColumnWorld& operator=(const ColumnWorld&) = delete;

  /// Returns the communicator of the column; null after `close`.
  const std::shared_ptr<TcpCommunicator>& group() const { return group_; }
  /// Ends it on all its ranks with `cause`.
  void abort(const Error& cause);
  /// Ends all use of the callers' memory, on this rank.
  void close() { group_.reset(); }

 private:
  std::shared_ptr<wire::TcpTransport> transport_;
  std::shared_ptr<TcpCommunicator> group_;  ///< goes first
};

/// Returns how the two ends of a stream of a state connect, beside a member that computes: `name`
/// names the stream, and nobody gets into it who has not the cluster's key.
wire::TcpTransport::Options stream_options(const LetterCarrier& carrier, const Digest& name,
                                           const ViewWorld::Options& options,
                                           std::function<void()> may_go_on);

}  // namespace shoal::collective::elastic
