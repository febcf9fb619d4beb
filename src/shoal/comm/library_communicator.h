#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/communicator.h"
#include "shoal/comm/carrier.h"

namespace shoal::comm {

/// One call of the library. Its reductions are those of a Carrier; everything else moves bytes
/// (type u8).
struct Request {
  collective::Kind kind = collective::Kind::kBarrier;
  ElementType type = ElementType::kU8;
  collective::Reduction reduction = collective::Reduction::kSum;
  /// Equals `output` where a reduction is in place. A broadcast does not read it: the root's values
  /// are in `output`.
  const void* input = nullptr;
  void* output = nullptr;                ///< reduce: null where this rank is not the root
  std::size_t count = 0;                 ///< elements of `type`, as collective::Buffer counts them
  std::vector<std::size_t> send_counts;  ///< all_to_all with per-rank sizes; else empty
  std::vector<std::size_t> receive_counts;
  int peer = -1;
  std::uint32_t tag = 0;
  Duration timeout{};
};

/// A request that a library carries out. Calls throw shoal::Error when it has failed, and none is
/// made after that.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Makes progress. Returns true when the request is complete.
  virtual bool done() = 0;
  /// Blocks until the request is complete or for about `longest`; returns whether it is complete.
  virtual bool wait_briefly(Duration longest) = 0;
};

/// A communicator over a library that has collectives of its own: MPI, c10d. It expresses every
/// operation in terms that the library shares with Shoal (see Carrier), enforces deadlines, and
/// keeps the first cause of a failure.
///
/// The library chooses algorithms and the order of sums: bits are equal on all ranks and from run
/// to run as far as the library promises that. Calls of the ranks are not compared: when ranks
/// disagree each of their waits ends with the library's error or a timeout. Libraries have no
/// priorities, so Operation::priority is ignored.
class LibraryCommunicator : public collective::Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  bool supports(collective::Kind kind, ElementType type,
                collective::Reduction reduction) const override;
  collective::Handle start(const collective::Operation& operation) final;
  bool test(collective::Handle handle) final;
  bool complete(collective::Handle handle) const final;
  void wait(collective::Handle handle, Deadline deadline) final;
  void poll(Duration budget) final;
  void look_for_failure() final { check(); }
  bool idle() const final { return in_flight_.empty(); }
  std::uint64_t sequence() const final { return started_; }
  /// Returns nothing: a library does not know the progress of other ranks.
  std::string report() const final { return {}; }
  std::unique_ptr<collective::Communicator> split(int color, int key) final;
  void abort(const Error& cause) final;

 protected:
  struct Abilities {
    Integers integers = Integers::kBasic;
    bool reduce_scatter = true;  ///< false: an all-to-all and a fold on each rank stand in for it
  };
  LibraryCommunicator(const char* library, int rank, int size, Duration timeout,
                      Abilities abilities);

  virtual std::unique_ptr<Transfer> post(const Request& request) = 0;
  /// Makes this rank's part of a split. `members` are ranks of this group, in the order of the new
  /// one. Returns null for a negative color, which has no members. Every rank of the group is known
  /// to have reached the call.
  virtual std::unique_ptr<collective::Communicator> part(int color, int key,
                                                         const std::vector<int>& members) = 0;
  /// Lets the other ranks know why this one stops. Called by any thread, once.
  virtual void publish_failure(const Error& cause) = 0;
  /// Returns why another rank has stopped, if one has. Every wait calls it, so a costly look may be
  /// skipped unless `at_once`.
  virtual std::optional<Error> poll_failure(bool at_once) = 0;

  Duration timeout() const { return timeout_; }

 private:
  struct InFlight;
  bool advance(InFlight& operation);
  void check();
  void check_time(const InFlight& operation, Deadline deadline);
  [[noreturn]] void fail(const Error& error);

  const char* library_;
  int rank_;
  int size_;
  Duration timeout_;
  Abilities abilities_;
  collective::Handle started_ = 0;
  /// Kept after a failure: the library may still write to the memory that they hold.
  std::list<std::shared_ptr<InFlight>> in_flight_;

  mutable std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::optional<Error> cause_;  ///< guarded by mutex_
};

}  // namespace shoal::comm
