#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "python/src/host_work.h"
#include "python/src/options.h"
#include "shoal/collective/fabric.h"
#include "shoal/collective/flight/flight_files.h"

namespace shoal::python {

/// The record of a rank's operations, and the directory into which it is written when one fails.
struct Flight {
  std::string directory;  ///< empty: nowhere
  collective::FlightOwner owner;
  std::shared_ptr<collective::FlightBook> book;
};

/// The store and the options of the first rendezvous, which a later one needs again.
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
  /// Passes the failure of an operation on to all ranks, and writes the flight record the first
  /// time. Returns the error as it reads on every rank.
  Error failed(const Error& error);
  void add(collective::Communicator* communicator);
  /// Waits a few seconds for the operations in flight on `communicator` to complete. With the last
  /// communicator this rank leaves its job.
  void remove(collective::Communicator* communicator);

  /// Starts `operations` as `work`. With `blocking` it returns when they are complete, and throws
  /// the error of one that fails. Where the handler of a signal raises meanwhile (Ctrl-C), it
  /// throws that, and the operations go on.
  void start(const c10::intrusive_ptr<HostWork>& work,
             const std::vector<collective::Operation>& operations, bool blocking);
  /// Throws the work's error, or Error(timeout) after `limit` (zero: the work's own timeout, which
  /// ends the whole group). Signals as for `start`.
  void wait(HostWork& work, Duration limit);
  /// Makes progress. Returns true when the work has settled, with success or not.
  bool test(HostWork& work);
  /// Tries to complete `work`, of which the program wants a future, for a moment; then leaves it to
  /// the helper thread.
  void complete_in_background(HostWork& work);

  /// Describes how far each rank of the channel has come. Nothing of this rank moves meanwhile,
  /// which is a second where a rank does not answer.
  std::string report(const Channel& channel);

  /// Calls `hook` for every operation of `channel` that ends, outside the engine's lock, in the
  /// thread that notices the end.
  void set_hook(Channel& channel, std::shared_ptr<const CompletionHook> hook);
  /// Calls `hook` with `info` once the engine's lock is released. The caller holds the lock.
  void queue_hook(std::shared_ptr<const CompletionHook> hook, std::shared_ptr<c10d::WorkInfo> info);
  /// Returns when every operation that was started on `channel` has ended, with success or not, and
  /// its hook has been called. Called by a hook, it waits for no hooks: its own has not returned.
  void drain(const Channel& channel);

 private:
  using Works = std::vector<c10::intrusive_ptr<HostWork>>;
  class EngineLock;

  void begin(EngineLock& lock, HostWork& work,
             const std::vector<collective::Operation>& operations);
  void wait_held(EngineLock& lock, HostWork& work, Duration limit);
  void listen(EngineLock& lock, const HostWork& work);
  void poll_all();
  bool others_busy(const collective::Communicator& but) const;
  Works sweep();
  void wake_helper();
  void help();
  void deliver(const Works& finished);
  void run_hooks();

  const std::shared_ptr<collective::Fabric> fabric_;
  const Origin origin_;
  const Flight flight_;
  std::atomic<bool> recorded_{false};
  std::mutex mutex_;
  std::atomic<int> contenders_{0};
  std::vector<collective::Communicator*> communicators_;
  /// Works that have not settled. They keep their tensors alive until every rank has finished with
  /// them.
  std::list<c10::intrusive_ptr<HostWork>> open_;
  std::vector<std::pair<std::shared_ptr<const CompletionHook>, std::shared_ptr<c10d::WorkInfo>>>
      queued_hooks_;
  std::atomic<bool> has_queued_hooks_{false};
  /// True while a thread runs hooks: one thread at a time, which also runs those that are queued
  /// meanwhile.
  std::atomic<bool> running_hooks_{false};
  std::atomic<std::thread::id> hooks_thread_{};  ///< the thread that runs them
  /// Works that have failed. They stay, because peers may still touch their tensors.
  Works failed_;

  std::mutex helper_mutex_;
  std::condition_variable helper_wakeup_;
  /// Set to true under the engine's lock, together with the look at open_.
  std::atomic<bool> helper_asleep_{true};
  std::atomic<bool> stop_{false};
  std::atomic<bool> started_{false};
};

}  // namespace shoal::python
