#include "python/src/host_work.h"

#include <c10/core/InferenceMode.h>

#include "python/src/progress.h"

namespace shoal::python {

Channel::Channel(std::shared_ptr<Progress> engine, std::unique_ptr<collective::Communicator> group)
    : progress(std::move(engine)), communicator(std::move(group)) {
  progress->add(communicator.get());
}

Channel::~Channel() { close(); }

void Channel::close() {
  if (!open) return;
  // Removed before it is destroyed: other threads poll every communicator that Progress knows.
  open = false;
  progress->remove(communicator.get());
}

std::exception_ptr Channel::failed(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& cause) {
    if (cause.kind() == ErrorKind::kUsage) return failure;
    error = cause.kind() == ErrorKind::kTimeout ? c10d::ErrorType::TIMEOUT
                                                : c10d::ErrorType::COMM_ERROR;
    return std::make_exception_ptr(progress->failed(cause));
  } catch (...) {
    // Another library threw it, such as LibTorch in a copy: the group itself has not failed.
    return failure;
  }
}

void Channel::abort(const char* operation, const char* why) {
  auto& fabric = *progress->fabric();
  fabric.abort(
      Error(ErrorKind::kAborted, operation, why).at(fabric.options().rank, fabric.options().size));
}

c10d::WorkResult work_result(const std::exception_ptr& failure) {
  if (!failure) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& cause) {
    return cause.kind() == ErrorKind::kTimeout ? c10d::WorkResult::TIMEOUT
                                               : c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::UNKNOWN;
  }
}

c10::intrusive_ptr<c10::ivalue::Future> result_when_done(c10::ivalue::Future& done) {
  const auto result = [](c10::ivalue::Future& future) {
    return c10::IValue(static_cast<int64_t>(work_result(future.exception_ptr())));
  };
  return done.then(result, c10::IntType::get());
}

HostWork::HostWork(std::shared_ptr<Channel> channel, c10d::OpType type, const char* title,
                   KeptTensors kept, Duration timeout)
    : c10d::Work(channel->communicator->rank(), type, title, kept.tensors),
      channel_(std::move(channel)),
      kept_tensors_(std::move(kept)),
      timeout_(timeout) {}

bool HostWork::isCompleted() { return channel_->progress->test(*this); }

bool HostWork::wait(std::chrono::milliseconds timeout) {
  channel_->progress->wait(*this, timeout);
  return true;
}

void HostWork::abort() { channel_->abort("work", "the program aborted it"); }

float HostWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(duration_).count();
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::getFuture() {
  {
    const std::lock_guard lock(future_mutex_);
    if (!future_)
      future_ =
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }
  channel_->progress->complete_in_background(*this);
  return future_;
}

void HostWork::step(Duration longest) {
  try {
    while (!handles_.empty()) {
      auto& communicator = *channel_->communicator;
      const auto handle = handles_.back();
      if (!(longest == Duration::zero() ? communicator.test(handle)
                                        : communicator.wait_briefly(handle, longest)))
        return;
      if (retrieveOpType() == c10d::OpType::RECVANYSOURCE)
        source_ = communicator.take_source(handle);
      handles_.pop_back();
    }
    if (!kept_tensors_.copies.empty()) {
      // Inference mode allows copies into leaves that require gradients and into inference tensors.
      const c10::InferenceMode inference_mode;
      for (const auto& [to, from] : kept_tensors_.copies) to.copy_(from);
    }
    settle(nullptr);
  } catch (...) {
    settle(std::current_exception());
  }
}

// The communicator decides: its wait with a deadline that has passed throws Error(timeout) and
// aborts the group, unless the operation has completed at the last moment.
void HostWork::time_out() {
  try {
    channel_->communicator->wait(handles_.back(), Deadline::in(Duration::zero()));
  } catch (...) {
    settle(std::current_exception());
  }
}

void HostWork::settle(std::exception_ptr error) {
  if (error) error = channel_->failed(error);
  error_ = error;
  duration_ = Clock::now() - started_;
  if (channel_->hook)
    channel_->progress->queue_hook(
        channel_->hook, std::make_shared<c10d::WorkInfo>(retrieveOpType(), sequence_, started_,
                                                         started_ + duration_,
                                                         std::chrono::duration<float>(duration_)));
  settled_ = true;
  finish(std::move(error));
}

// Any number of threads may deliver the same work; the future is completed once, outside every
// lock, because its callbacks may call Shoal.
//
// Tensors are let go of here and not where the work settles. The last reference to a tensor that
// Python has seen needs Python's global lock to go, which another thread may hold while it waits
// for the engine's lock.
void HostWork::deliver() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<at::Tensor> tensors;
  decltype(kept_tensors_.copies) copies;
  {
    const std::lock_guard lock(future_mutex_);
    copies.swap(kept_tensors_.copies);
    // After a failure peers may still be reading or writing these tensors: Progress keeps the work.
    if (!error_) tensors.swap(kept_tensors_.tensors);
    if (!future_ || delivered_) return;
    delivered_ = true;
    future = future_;
  }
  if (error_)
    future->setErrorIfNeeded(error_);
  else
    future->markCompleted(c10::IValue(kept_tensors_.outputs));
}

}  // namespace shoal::python
