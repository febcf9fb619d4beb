#pragma once

#include <exception>
#include <memory>

#include "shoal/base/clock.h"

namespace shoal::comm {

/// What an engine keeps of one operation in flight. Holds references to the tensors until every
/// rank has finished with them.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual void order() = 0;
  virtual void wait(Deadline deadline) = 0;
  virtual bool test() = 0;
  virtual void abort() = 0;
  virtual std::exception_ptr error() const = 0;
  virtual Duration duration() const = 0;
};

/// A collective in flight. Complete on a rank when its outputs are valid *and* every peer has
/// finished touching its inputs. A value over shared state; a default-constructed Work is complete.
/// Dropping it does not cancel the operation.
class Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  /// The caller's later operations see the result: a host wait on CPU, a stream wait on CUDA. What
  /// techniques use.
  void order() {
    if (state_) state_->order();
  }
  /// Blocks the host until complete. Throws the operation's Error, or Error(timeout) when
  /// `deadline` passes.
  void wait(Deadline deadline) {
    if (state_) state_->wait(deadline);
  }
  /// Makes progress; true when complete. Throws the operation's Error.
  bool test() { return !state_ || state_->test(); }
  /// Ends the operation, and with it the group it belongs to, on all ranks.
  void abort() {
    if (state_) state_->abort();
  }
  std::exception_ptr error() const { return state_ ? state_->error() : nullptr; }
  /// From start to completion; zero while in flight.
  Duration duration() const { return state_ ? state_->duration() : Duration::zero(); }

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace shoal::comm
