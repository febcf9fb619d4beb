#include "python/src/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"

namespace shoal::python {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds;

constexpr Duration kLongSlice = milliseconds(20), kShortSlice = microseconds(100),
                   kFutureMoment = milliseconds(1);
constexpr Duration kHelperPeriod = microseconds(200), kLastWork = std::chrono::seconds(5);
constexpr int kHelperPatience = 100;  ///< periods without work before it sleeps

}  // namespace

/// The engine's lock, with a way to let others in: a waiting thread holds it for long.
class Progress::Hold {
 public:
  explicit Hold(Progress& progress) : progress_(progress) { take(); }
  ~Hold() { progress_.mutex_.unlock(); }
  void give_way() {
    if (progress_.contenders_.load() == 0) return;
    progress_.mutex_.unlock();
    std::this_thread::sleep_for(microseconds(20));
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
  if (flight_.directory.empty() || recorded_.exchange(true)) return seen;
  try {
    collective::write_flight(flight_.directory, flight_.owner, *flight_.book, seen);
  } catch (const Error& unwritten) {
    fmt::print(stderr, "shoal: rank {} could not write what it was doing: {}\n", flight_.owner.rank,
               unwritten.what());
  }
  return seen;
}

void Progress::add(collective::Communicator* communicator) {
  const Hold hold(*this);
  communicators_.push_back(communicator);
}

void Progress::remove(collective::Communicator* communicator) {
  Works finished;
  {
    Hold hold(*this);
    const Deadline deadline = Deadline::in(kLastWork);
    const auto busy = [&] {
      return std::any_of(open_.begin(), open_.end(), [&](const auto& work) {
        return work->channel_->communicator.get() == communicator;
      });
    };
    while (busy() && !deadline.passed()) {
      poll_all();
      auto settled = sweep();
      std::move(settled.begin(), settled.end(), std::back_inserter(finished));
      hold.give_way();
      std::this_thread::yield();
    }
    std::erase(communicators_, communicator);
    if (communicators_.empty()) {
      fabric_->leave();
      stop_ = true;
      wake_helper();
    }
  }
  deliver(finished);
}

void Progress::start(const c10::intrusive_ptr<HostWork>& work,
                     const std::vector<collective::Operation>& operations, bool blocking) {
  Works finished;
  {
    Hold hold(*this);
    SHOAL_USER_CHECK(work->channel_->open, "group", "the group has been shut down");
    try {
      begin(hold, *work, operations);
    } catch (...) {
      if (!work->handles_.empty()) failed_.push_back(work);
      std::rethrow_exception(work->channel_->failed(std::current_exception()));
    }
    if (blocking) {
      wait_held(hold, *work, Duration::zero());
      if (work->error_) failed_.push_back(work);
    } else {
      work->step(Duration::zero());
      if (!work->settled()) open_.push_back(work), wake_helper();
    }
    if (!open_.empty()) finished = sweep();
  }
  deliver(finished);
  if (work->error_) std::rethrow_exception(work->error_);
}

void Progress::begin(Hold& hold, HostWork& work,
                     const std::vector<collective::Operation>& operations) {
  auto& communicator = *work.channel_->communicator;
  // Nothing begins once something has failed, wherever it was.
  if (!fabric_->in_one_memory()) fabric_->check();
  for (const auto& operation : operations) {
    while (!communicator.has_room()) {
      communicator.poll(Duration::zero());
      poll_all();
      fabric_->check();
      hold.give_way();
      std::this_thread::yield();
    }
    work.handles_.push_back(communicator.start(operation));
  }
  std::reverse(work.handles_.begin(), work.handles_.end());
  work.sequence_ = communicator.sequence();
}

void Progress::wait(HostWork& work, Duration limit) {
  Works finished;
  {
    Hold hold(*this);
    wait_held(hold, work, limit);
    finished = sweep();
  }
  deliver(finished);
  if (work.error_) std::rethrow_exception(work.error_);
  SHOAL_USER_CHECK(work.settled_, "wait", "not complete after {:.3f} s; it goes on",
                   to_seconds(limit));
}

bool Progress::test(HostWork& work) {
  Works finished;
  bool settled;
  {
    Hold hold(*this);
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

void Progress::attend(HostWork& work) {
  Works finished;
  bool settled;
  {
    Hold hold(*this);
    wait_held(hold, work, kFutureMoment);
    finished = sweep();
    settled = work.settled();
    if (!settled) wake_helper();
  }
  if (settled) work.deliver();
  deliver(finished);
}

void Progress::wait_held(Hold& hold, HostWork& work, Duration limit) {
  if (work.settled()) return;
  auto& communicator = *work.channel_->communicator;
  const auto begin = Clock::now();
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
    hold.give_way();
  }
}

void Progress::deliver(const Works& finished) {
  for (const auto& work : finished) work->deliver();
  while (something_untold_.load(std::memory_order_relaxed) && !telling_.exchange(true)) {
    tell_hooks();
    telling_ = false;
  }
}

void Progress::tell_hooks() {
  decltype(untold_) tell;
  {
    const Hold hold(*this);
    tell.swap(untold_);
    something_untold_ = false;
  }
  for (const auto& [hook, info] : tell) {
    try {
      (*hook)(info);
    } catch (const std::exception& error) {
      fmt::print(stderr, "shoal: rank {}: a hook on completion failed: {}\n", flight_.owner.rank,
                 error.what());
    }
  }
}

void Progress::report_to(Channel& channel, std::shared_ptr<const CompletionHook> hook) {
  const Hold hold(*this);
  channel.hook = std::move(hook);
}

void Progress::tell_later(std::shared_ptr<const CompletionHook> hook,
                          std::shared_ptr<c10d::WorkInfo> info) {
  untold_.emplace_back(std::move(hook), std::move(info));
  something_untold_ = true;
}

void Progress::drain(const Channel& channel) {
  Works open;
  {
    const Hold hold(*this);
    std::copy_if(open_.begin(), open_.end(), std::back_inserter(open),
                 [&](const auto& work) { return work->channel_.get() == &channel; });
  }
  for (const auto& work : open) {
    try {
      wait(*work, Duration::zero());
    } catch (const Error&) {  // told to whoever waits for it
    }
  }
  while (something_untold_ || telling_) {
    deliver({});
    std::this_thread::sleep_for(kHelperPeriod);
  }
}

bool Progress::others_busy(const collective::Communicator& but) const {
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [&](const auto* c) { return c != &but && !c->idle(); });
}

// What fails here is told to the works of that group when they are looked at.
void Progress::poll_all() {
  for (auto* communicator : communicators_) {
    try {
      communicator->poll(Duration::zero());
    } catch (const Error&) {
    }
  }
  if (fabric_->in_one_memory()) return;
  try {
    fabric_->check();
  } catch (const Error&) {
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

void Progress::wake_helper() {
  if (!started_.exchange(true)) std::thread([self = shared_from_this()] { self->help(); }).detach();
  if (!helper_asleep_.load()) return;
  const std::lock_guard lock(helper_mutex_);
  helper_asleep_ = false;
  helper_bell_.notify_one();
}

void Progress::help() {
  for (int quiet = 0; !stop_.load();) {
    std::this_thread::sleep_for(kHelperPeriod);
    Works finished;
    {
      const Hold hold(*this);
      poll_all();
      finished = sweep();
      quiet = open_.empty() ? quiet + 1 : 0;
    }
    deliver(finished);
    finished.clear();
    if (quiet < kHelperPatience) continue;
    std::unique_lock lock(helper_mutex_);
    helper_asleep_ = true;
    helper_bell_.wait(lock, [&] { return !helper_asleep_.load() || stop_.load(); });
    quiet = 0;
  }
}

}  // namespace shoal::python
