#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "python/src/options.h"
#include "shoal/collective/fabric.h"
#include "shoal/collective/flight/flight_files.h"

namespace shoal::python {

/// What a rank remembers of its groups' operations, and where it goes when one fails.
struct Flight {
  std::string directory;  ///< empty: nowhere
  collective::FlightOwner owner;
  std::shared_ptr<collective::FlightBook> book;
};

/// How ranks have met: what they need to meet again.
struct Origin {
  c10::intrusive_ptr<c10d::Store> store;
  NetworkOptions network;
};

/// Moves everything that this process has in flight on one set of ranks.
///
/// Every wait advances all groups, so ranks may wait for their groups' operations in any order. A
/// helper thread looks after operations that nobody waits for (their futures, or a program that
/// does something else first); it sleeps for as long as there are none. Threads: any; one lock
/// guards the communicators, and futures are completed outside it.
class Progress : public std::enable_shared_from_this<Progress> {
 public:
  Progress(std::shared_ptr<collective::Fabric> fabric, Origin origin, Flight flight)
      : fabric_(std::move(fabric)), origin_(std::move(origin)), flight_(std::move(flight)) {}

  const std::shared_ptr<collective::Fabric>& fabric() const { return fabric_; }
  const Origin& origin() const { return origin_; }
  const Flight& flight() const { return flight_; }
  /// An operation has failed: all ranks are told, and the first time the flight record is written.
  /// Returns the error in words for all ranks.
  Error failed(const Error& error);
  void add(collective::Communicator* communicator);
  /// Lets what is in flight on it end, for a few seconds; the last one to go makes this rank leave
  /// its job.
  void remove(collective::Communicator* communicator);

  /// Starts `operations` as `work`. Blocking: returns when they are complete, and throws what went
  /// wrong.
  void start(const c10::intrusive_ptr<HostWork>& work,
             const std::vector<collective::Operation>& operations, bool blocking);
  /// Throws the work's error, or Error(timeout) after `limit` (zero: the work's own timeout, which
  /// ends the whole group).
  void wait(HostWork& work, Duration limit);
  /// Makes progress; true when the work has settled, well or badly.
  bool test(HostWork& work);
  /// The work has a future now: tries for a moment, then leaves it to the helper.
  void attend(HostWork& work);

  /// Every operation of `channel` that ends is told to `hook`, outside the engine's lock, by the
  /// thread that notices.
  void report_to(Channel& channel, std::shared_ptr<const CompletionHook> hook);
  /// Under the engine's lock.
  void tell_later(std::shared_ptr<const CompletionHook> hook, std::shared_ptr<c10d::WorkInfo> info);
  /// Returns when all that was started on `channel` has ended, well or badly, and its hook has been
  /// told.
  void drain(const Channel& channel);

 private:
  using Works = std::vector<c10::intrusive_ptr<HostWork>>;
  class Hold;

  void begin(Hold& hold, HostWork& work, const std::vector<collective::Operation>& operations);
  void wait_held(Hold& hold, HostWork& work, Duration limit);
  void poll_all();
  bool others_busy(const collective::Communicator& but) const;
  Works sweep();
  void wake_helper();
  void help();
  void deliver(const Works& finished);
  void tell_hooks();

  const std::shared_ptr<collective::Fabric> fabric_;
  const Origin origin_;
  const Flight flight_;
  std::atomic<bool> recorded_{false};
  std::mutex mutex_;
  std::atomic<int> contenders_{0};
  std::vector<collective::Communicator*> communicators_;
  std::list<c10::intrusive_ptr<HostWork>>
      open_;  ///< keeps tensors alive until every rank has finished with them
  std::vector<std::pair<std::shared_ptr<const CompletionHook>, std::shared_ptr<c10d::WorkInfo>>>
      untold_;
  std::atomic<bool> something_untold_{false};
  std::atomic<bool> telling_{
      false};     ///< by one thread at a time; what comes up meanwhile it tells too
  Works failed_;  ///< peers may still touch their tensors

  std::mutex helper_mutex_;
  std::condition_variable helper_bell_;
  std::atomic<bool> helper_asleep_{true}, stop_{false}, started_{false};
};

}  // namespace shoal::python
