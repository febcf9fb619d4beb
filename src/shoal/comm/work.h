#pragma once

#include <exception>
#include <memory>

#include "shoal/base/clock.h"
#include "shoal/base/span_recorder.h"
#include "shoal/collective/communicator.h"

namespace shoal::comm {

/// A collective in flight. It is complete on a rank when its outputs are valid *and* every peer has
/// finished touching its inputs. A Work is a value over shared state; a default-constructed one is
/// complete. Dropping it does not cancel the operation.
class Work {
 public:
  Work() = default;
  /// `transfer` is the operation in the recording of this thread; 0: it is in none.
  Work(std::shared_ptr<collective::Communicator> communicator, collective::Handle handle,
       SpanRecorder::TransferId transfer = 0);

  /// Makes the caller's later operations see the result: a host wait on CPU, a stream wait on CUDA.
  /// Parallel techniques call this, not `wait`.
  void order();
  /// Blocks the host until complete. Throws the operation's Error, or Error(timeout) when
  /// `deadline` passes.
  void wait(Deadline deadline);
  /// Makes progress. Returns true when the operation is complete. Throws the operation's Error.
  bool test();
  /// Ends the operation, and with it the group it belongs to, on all ranks.
  void abort();
  std::exception_ptr error() const;
  /// Returns the time from start to completion; zero while the operation is in flight.
  Duration duration() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace shoal::comm
