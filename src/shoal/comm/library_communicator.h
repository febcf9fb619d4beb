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

/// What a library is asked to do. Reductions are those of a Carrier; everything else moves bytes
/// (type u8).
struct Request {
  collective::Kind kind = collective::Kind::kBarrier;
  ElementType type = ElementType::kU8;
  collective::Reduction reduction = collective::Reduction::kSum;
  const void* input = nullptr;  ///< may be `output` where a reduction is in place; broadcast:
                                ///< nothing, the root's values are in `output`
  void* output = nullptr;       ///< reduce: null where this rank is not the root
  std::size_t count = 0;        ///< elements of `type`, as collective::Buffer counts them
  std::vector<std::size_t> send_counts, receive_counts;  ///< all_to_all with per-rank sizes
  int peer = -1;
  std::uint32_t tag = 0;
  Duration timeout{};
};

/// A request that a library carries out. Calls throw shoal::Error when it has failed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Makes progress; true when complete.
  virtual bool done() = 0;
  /// Blocks until complete, which is what it returns, or for about `longest`.
  virtual bool wait_briefly(Duration longest) = 0;
};

/// A communicator over a library that has collectives of its own: MPI, c10d. Puts every operation
/// in terms that the library shares with Shoal (see Carrier), holds each to its deadline, and keeps
/// the first cause.
///
/// What the library decides: algorithms, the order of sums (the same bits on all ranks and run to
/// run as far as it promises them), and what happens when ranks disagree on a call: nothing is
/// compared beforehand, but every wait ends. Priorities are not passed on: libraries have none.
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
  bool idle() const final { return in_flight_.empty(); }
  std::uint64_t sequence() const final { return started_; }
  std::string report() const final { return {}; }  // of other ranks a library says nothing
  std::unique_ptr<collective::Communicator> split(int color, int key) final;
  void abort(const Error& cause) final;

 protected:
  struct Abilities {
    Integers integers = Integers::kBasic;
    bool reduce_scatter = true;  ///< without it: all-to-all, and a fold here
  };
  LibraryCommunicator(const char* library, int rank, int size, Duration timeout,
                      Abilities abilities);

  virtual std::unique_ptr<Transfer> post(const Request& request) = 0;
  /// This rank's part of a split: `members` are ranks here, in the order of the new group; for a
  /// negative color there are none and null is the answer. All ranks have come this far.
  virtual std::unique_ptr<collective::Communicator> part(int color, int key,
                                                         const std::vector<int>& members) = 0;
  /// Lets the other ranks know why this one stops. Called by any thread, once.
  virtual void tell(const Error& cause) = 0;
  /// Why another rank has stopped, if it has. Cheap, or seldom in earnest, unless `at_once`.
  virtual std::optional<Error> heard(bool at_once) = 0;

  Duration timeout() const { return timeout_; }

 private:
  struct InFlight;
  bool advance(InFlight& operation);
  void check();
  void check_time(const InFlight& operation, Deadline deadline);
  [[noreturn]] void fail(const Error& error);

  const char* library_;
  int rank_, size_;
  Duration timeout_;
  Abilities abilities_;
  collective::Handle started_ = 0;
  std::list<std::shared_ptr<InFlight>>
      in_flight_;  ///< kept after a failure: the library may still write to what they hold

  mutable std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::optional<Error> cause_;  ///< guarded by mutex_
};

}  // namespace shoal::comm
