#include "shoal/comm/work.h"

#include "shoal/base/error.h"

namespace shoal::comm {

struct Work::State {
  std::shared_ptr<collective::Communicator> communicator;
  collective::Handle handle;
  Clock::time_point started = Clock::now();
  Duration duration{};
  std::exception_ptr error;
  SpanRecorder::TransferId transfer = 0;

  /// Runs `step`, which returns whether the operation is complete, and keeps when and how it ended.
  template <class Step>
  bool record(const char* call, Step&& step) {
    SpanRecorder* recorder = transfer != 0 ? SpanRecorder::recording() : nullptr;
    const ScopedCommunication span(call, recorder ? recorder->name_of(transfer) : nullptr);
    const auto begin = recorder ? Clock::now() : Clock::time_point();
    try {
      const bool done = step();
      if (done && duration == Duration::zero()) duration = Clock::now() - started;
      if (recorder) recorder->add_blocked(transfer, Clock::now() - begin);
      if (recorder && done) recorder->end_transfer(transfer);
      return done;
    } catch (...) {
      error = std::current_exception();
      throw;
    }
  }
};

Work::Work(std::shared_ptr<collective::Communicator> communicator, collective::Handle handle,
           SpanRecorder::TransferId transfer)
    : state_(std::make_shared<State>(State{std::move(communicator), handle})) {
  state_->transfer = transfer;
}

void Work::order() {
  if (!state_) return;
  state_->record("wait", [&] {
    // On CPU there is no stream to order, so the host waits, as long as the operation's timeout
    // allows.
    state_->communicator->wait(state_->handle);
    return true;
  });
}

void Work::wait(Deadline deadline) {
  if (!state_) return;
  state_->record("wait", [&] {
    state_->communicator->wait(state_->handle, deadline);
    return true;
  });
}

bool Work::test() {
  if (!state_) return true;
  return state_->record("test", [&] { return state_->communicator->test(state_->handle); });
}

void Work::abort() {
  if (!state_) return;
  state_->communicator->abort(
      Error(ErrorKind::kAborted, "work", "the caller aborted it").in(state_->handle));
}

std::exception_ptr Work::error() const { return state_ ? state_->error : nullptr; }

Duration Work::duration() const { return state_ ? state_->duration : Duration::zero(); }

}  // namespace shoal::comm
