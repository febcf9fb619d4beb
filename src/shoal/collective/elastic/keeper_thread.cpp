#include "shoal/collective/elastic/keeper_thread.h"

#include <exception>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::collective::elastic {

using membership::ChainAnswered;
using membership::ChainQuestion;
using membership::ChainSilent;

KeeperThread::KeeperThread(std::unique_ptr<EtcdKeeper> keeper,
                           std::function<void(membership::Event)> tell)
    : keeper_(std::move(keeper)), tell_(std::move(tell)), thread_([this] { run(); }) {}

KeeperThread::~KeeperThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  keeper_->stop();
  changed_.notify_all();
  thread_.join();
}

void KeeperThread::ask(ChainQuestion question) {
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(question);
  }
  changed_.notify_all();
}

void KeeperThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || next_; });
    if (stop_) return;
    const ChainQuestion question = *std::exchange(next_, std::nullopt);
    lock.unlock();
    membership::Event event;
    try {
      event = keeper_->answer(question);
    } catch (const Error& error) {
      event = ChainSilent{.why = error.message(), .is_foreign = error.kind() == ErrorKind::kData};
    } catch (const std::exception& error) {
      event = ChainSilent{.why = error.what()};
    }
    const bool is_answer = std::holds_alternative<ChainAnswered>(event);
    lock.lock();
    if (stop_) return;
    // A question that was repeated meanwhile has its answer.
    if (is_answer && next_ && next_->slot == question.slot) next_.reset();
    lock.unlock();
    tell_(std::move(event));
    lock.lock();
  }
}

}  // namespace shoal::collective::elastic
