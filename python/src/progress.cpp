#include "python/src/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "python/src/signals.h"
#include "shoal/base/check.h"
#include "shoal/base/duration.h"

namespace shoal::python {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds;

/// A waiting thread looks at one operation for this long before it looks at everything else.
constexpr Duration kLongSlice = milliseconds(20);
/// The same while other groups have operations in flight, or other threads want the lock.
constexpr Duration kShortSlice = microseconds(100);
/// How long the thread that asks for a future tries itself, before it wakes the helper.
constexpr Duration kBackgroundTrial = milliseconds(1);
constexpr Duration kHelperPeriod = microseconds(200);
/// A thread that waits looks so often for signals: Ctrl-C ends a wait for a rank that never comes.
constexpr Duration kSignalPeriod = milliseconds(100);
/// The helper sleeps after so many periods without work.
constexpr int kHelperQuietPeriods = 100;
/// A group that closes gives its operations this long to complete.
constexpr Duration kCloseLimit = std::chrono::seconds(5);

bool is_usage_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    return found.kind() == ErrorKind::kUsage;
  } catch (...) {
    return false;
  }
}

}  // namespace

/// Holds Progress::mutex_. A waiting thread keeps it for most of its wait, and std::mutex is not
/// fair: the thread that unlocks and locks again at once would nearly always win. Therefore the
/// threads that block are counted, and the holder sleeps between unlocking and locking while there
/// are any.
class Progress::EngineLock {
 public:
  explicit EngineLock(Progress& progress) : progress_(progress) { take(); }
  ~EngineLock() { progress_.mutex_.unlock(); }
  void let_others_in() {
    if (progress_.contenders_.load() == 0) return;
    progress_.mutex_.unlock();
    std::this_thread::sleep_for(microseconds(20));
    take();
  }
  /// Calls `function` without the lock: threads may hold Python's global lock while they wait for
  /// this one.
  template <typename Function>
  void unlocked(const Function& function) {
    progress_.mutex_.unlock();
    try {
      function();
    } catch (...) {
      take();
      throw;
    }
    take();
  }

 private:
  void take() {
    if (progress_.mutex_.try_lock()) return;
    ++progress_.contenders_;
    progress_.mutex_.lock();
    --progress_.contenders_;
  }
  Progress& progress_;
};

Error Progress::failed(const Error& error) {
  Error seen = fabric_->with_job_ranks(error);
  fabric_->propagate(error);
  if (flight_.directory.empty()) return seen;
  // The first failure is the one to look into; those that follow from it are not recorded.
  const bool already_recorded = recorded_.exchange(true);
  if (already_recorded) return seen;
  try {
    collective::write_flight(flight_.directory, flight_.owner, *flight_.book, seen);
  } catch (const Error& unwritten) {
    fmt::print(stderr, "shoal: rank {} could not write what it was doing: {}\n", flight_.owner.rank,
               unwritten.what());
  }
  return seen;
}

void Progress::add(collective::Communicator* communicator) {
  const EngineLock lock(*this);
  communicators_.push_back(communicator);
}

void Progress::remove(collective::Communicator* communicator) {
  Works finished;
  {
    EngineLock lock(*this);
    // Peers may still read this rank's tensors: operations that were started but never waited for
    // are completed before the communicator goes.
    const Deadline deadline = Deadline::in(kCloseLimit);
    const auto busy = [&] {
      return std::any_of(open_.begin(), open_.end(), [&](const auto& work) {
        return work->channel_->communicator.get() == communicator;
      });
    };
    while (busy() && !deadline.passed()) {
      poll_all();
      auto settled = sweep();
      std::move(settled.begin(), settled.end(), std::back_inserter(finished));
      lock.let_others_in();
      std::this_thread::yield();
    }
    std::erase(communicators_, communicator);
    if (communicators_.empty()) {
      // The other ranks learn that this one leaves in good order, before its connections close.
      fabric_->leave();
      stop_ = true;
      wake_helper();
    }
  }
  deliver(finished);
}

void Progress::start(const c10::intrusive_ptr<HostWork>& work,
                     const std::vector<collective::Operation>& operations, bool blocking) {
  // Futures and hooks run code of the program, which may call Shoal again: works that have settled
  // are collected under the lock and delivered after it is released, here and in every function
  // below.
  Works finished;
  bool settled = false;
  std::exception_ptr error;
  {
    EngineLock lock(*this);
    SHOAL_USER_CHECK(work->channel_->open, "group", "the group has been shut down");
    try {
      begin(lock, *work, operations);
    } catch (...) {
      // Peers may still touch the tensors of what has started: earlier operations of this work, and
      // the one that failed, which may have been announced. A usage error comes before that.
      error = std::current_exception();
      const bool announced = !is_usage_error(error) && !work->channel_->communicator->idle();
      if (!work->handles_.empty() || announced) failed_.push_back(work);
      std::rethrow_exception(work->channel_->failed(error));
    }
    if (blocking) {
      try {
        wait_held(lock, *work, Duration::zero());
      } catch (...) {
        // A signal's handler has raised. The other ranks count on this one: the work goes on.
        if (!work->settled()) {
          open_.push_back(work);
          wake_helper();
        }
        throw;
      }
    } else {
      work->step(Duration::zero());
      if (!work->settled()) {
        open_.push_back(work);
        wake_helper();
      }
    }
    // Another thread may settle the work once the lock is released.
    settled = work->settled();
    error = work->error_;
    if (error) failed_.push_back(work);
    if (!open_.empty()) finished = sweep();
  }
  // A work that settled at once was never among the open ones.
  if (settled) work->deliver();
  deliver(finished);
  if (error) std::rethrow_exception(error);
}

void Progress::begin(EngineLock& lock, HostWork& work,
                     const std::vector<collective::Operation>& operations) {
  auto& communicator = *work.channel_->communicator;
  // Nothing begins once an operation of any group has failed on any rank. Inside one memory the
  // communicator itself checks that.
  if (!fabric_->in_one_memory()) fabric_->check();
  for (const auto& operation : operations) {
    // Room comes when older operations complete, which may need other groups and other threads of
    // this process to go on.
    while (!communicator.has_room()) {
      communicator.poll(Duration::zero());
      poll_all();
      fabric_->check();
      lock.let_others_in();
      std::this_thread::yield();
    }
    work.handles_.push_back(communicator.start(operation));
  }
  // HostWork::step takes handles from the back: the operation that was started first comes first.
  std::reverse(work.handles_.begin(), work.handles_.end());
  work.sequence_ = communicator.sequence();
  work.channel_->sequence = work.sequence_;
}

void Progress::wait(HostWork& work, Duration limit) {
  Works finished;
  bool settled = false;
  std::exception_ptr error;
  {
    EngineLock lock(*this);
    wait_held(lock, work, limit);
    // Read here: another thread may settle the work once the lock is released.
    settled = work.settled();
    error = work.error_;
    finished = sweep();
  }
  deliver(finished);
  if (error) std::rethrow_exception(error);
  SHOAL_USER_CHECK(settled, "wait", "not complete after {:.3f} s; it goes on", to_seconds(limit));
}

std::string Progress::report(const Channel& channel) {
  const EngineLock lock(*this);
  return channel.communicator->report();
}

bool Progress::test(HostWork& work) {
  Works finished;
  bool settled = false;
  {
    EngineLock lock(*this);
    if (!work.settled()) {
      work.step(Duration::zero());
      poll_all();
      finished = sweep();
    }
    settled = work.settled();
  }
  deliver(finished);
  return settled;
}

void Progress::complete_in_background(HostWork& work) {
  Works finished;
  bool settled = false;
  {
    EngineLock lock(*this);
    wait_held(lock, work, kBackgroundTrial);
    finished = sweep();
    settled = work.settled();
    if (!settled) wake_helper();
  }
  if (settled) work.deliver();
  deliver(finished);
}

void Progress::wait_held(EngineLock& lock, HostWork& work, Duration limit) {
  if (work.settled()) return;
  auto& communicator = *work.channel_->communicator;
  // `limit` is what the caller gives this wait, and its end is no failure. The work's own timeout
  // counts from its start, and its end fails the whole group.
  const auto begin = Clock::now();
  auto listened = begin;
  const bool listens = runs_signal_handlers();
  while (!work.settled()) {
    const bool share = others_busy(communicator) || contenders_.load() > 0;
    Duration slice = share ? kShortSlice : kLongSlice;
    if (limit > Duration::zero()) slice = std::min(slice, limit);
    work.step(slice);
    if (work.settled()) return;
    poll_all();
    const auto now = Clock::now();
    if (limit > Duration::zero() && now - begin >= limit) return;
    if (now - work.started_ >= work.timeout_) work.time_out();
    if (listens && !work.settled() && now - listened >= kSignalPeriod) {
      listened = now;
      listen(lock, work);
    }
    lock.let_others_in();
  }
}

// Somebody who interrupts a cell of a notebook wants to know why it did not end. Elsewhere the
// exception ends the program, and the launcher says why.
void Progress::listen(EngineLock& lock, const HostWork& work) {
  try {
    lock.unlocked(run_signal_handlers);
  } catch (...) {
    bool explain = false;
    lock.unlocked([&] { explain = at_a_prompt(); });
    if (explain && !work.settled()) {
      const std::string report = work.channel_->communicator->report();
      lock.unlocked([&] { print_error("shoal: the operation goes on; " + report); });
    }
    throw;
  }
}

void Progress::deliver(const Works& finished) {
  for (const auto& work : finished) work->deliver();
  // One thread at a time runs hooks, so that they come in the order in which operations ended. A
  // hook that is queued while another thread runs some is run by that thread, or by this one:
  // whoever clears running_hooks_ looks once more whether there are any.
  while (has_queued_hooks_.load()) {
    const bool others_run_them = running_hooks_.exchange(true);
    if (others_run_them) return;
    run_hooks();
    running_hooks_ = false;
  }
}

void Progress::run_hooks() {
  decltype(queued_hooks_) hooks;
  {
    const EngineLock lock(*this);
    hooks.swap(queued_hooks_);
    has_queued_hooks_ = false;
  }
  hooks_thread_ = std::this_thread::get_id();
  for (const auto& [hook, info] : hooks) {
    try {
      (*hook)(info);
    } catch (const std::exception& error) {
      fmt::print(stderr, "shoal: rank {}: a hook on completion failed: {}\n", flight_.owner.rank,
                 error.what());
    }
  }
  hooks_thread_ = std::thread::id();
}

void Progress::set_hook(Channel& channel, std::shared_ptr<const CompletionHook> hook) {
  const EngineLock lock(*this);
  channel.hook = std::move(hook);
}

void Progress::queue_hook(std::shared_ptr<const CompletionHook> hook,
                          std::shared_ptr<c10d::WorkInfo> info) {
  queued_hooks_.emplace_back(std::move(hook), std::move(info));
  has_queued_hooks_ = true;
}

void Progress::drain(const Channel& channel) {
  Works open;
  {
    const EngineLock lock(*this);
    std::copy_if(open_.begin(), open_.end(), std::back_inserter(open),
                 [&](const auto& work) { return work->channel_.get() == &channel; });
  }
  for (const auto& work : open) {
    try {
      wait(*work, Duration::zero());
    } catch (const Error&) {
      // The thread that waits for this work throws the error.
    }
  }
  if (hooks_thread_.load() == std::this_thread::get_id()) return;
  while (has_queued_hooks_ || running_hooks_) {
    deliver({});
    std::this_thread::sleep_for(kHelperPeriod);
  }
}

bool Progress::others_busy(const collective::Communicator& but) const {
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [&](const auto* c) { return c != &but && !c->idle(); });
}

// A failure here belongs to the works of that group, which throw it when they are tested.
void Progress::poll_all() {
  for (auto* communicator : communicators_) {
    try {
      communicator->poll(Duration::zero());
    } catch (const Error&) {
      // The communicator keeps its first cause, and throws it again for each of its handles.
    }
  }
  if (fabric_->in_one_memory()) return;
  try {
    fabric_->check();
  } catch (const Error&) {
    // `check` has passed the failure on to the groups that could not see it.
  }
}

Progress::Works Progress::sweep() {
  Works finished;
  for (auto it = open_.begin(); it != open_.end();) {
    if (!(*it)->settled()) (*it)->step(Duration::zero());
    if (!(*it)->settled() && Clock::now() - (*it)->started_ >= (*it)->timeout_) (*it)->time_out();
    if (!(*it)->settled()) {
      ++it;
      continue;
    }
    if ((*it)->error_) failed_.push_back(*it);
    finished.push_back(std::move(*it));
    it = open_.erase(it);
  }
  return finished;
}

// The helper keeps this object alive until stop_ is set, so it is started only when it is first
// needed: a program that waits for every operation has no helper.
void Progress::wake_helper() {
  const bool was_started = started_.exchange(true);
  if (!was_started) std::thread([self = shared_from_this()] { self->help(); }).detach();
  // The caller holds the engine's lock, under which it has added its work or set stop_. The helper
  // decides to sleep under that lock too: either it sees the work, or helper_asleep_ is true here.
  if (!helper_asleep_.load()) return;
  const std::lock_guard lock(helper_mutex_);
  helper_asleep_ = false;
  helper_wakeup_.notify_one();
}

void Progress::help() {
  int quiet = 0;
  while (!stop_.load()) {
    std::this_thread::sleep_for(kHelperPeriod);
    Works finished;
    {
      const EngineLock lock(*this);
      poll_all();
      finished = sweep();
      quiet = open_.empty() ? quiet + 1 : 0;
      if (quiet >= kHelperQuietPeriods) helper_asleep_ = true;
    }
    deliver(finished);
    // What was delivered is not kept through a long sleep.
    finished.clear();
    if (quiet < kHelperQuietPeriods) continue;
    std::unique_lock lock(helper_mutex_);
    helper_wakeup_.wait(lock, [&] { return !helper_asleep_.load() || stop_.load(); });
    quiet = 0;
  }
}

}  // namespace shoal::python
