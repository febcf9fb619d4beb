#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "shoal/collective/communicator.h"

namespace shoal::python {

class Progress;

/// c10d calls this with the record of every operation that has ended.
using CompletionHook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

/// Returns the WorkResult of an operation that ended with `error`, or with success when that is
/// null.
c10d::WorkResult work_result(const std::exception_ptr& error);

/// Returns a future that completes with the WorkResult, as an integer, of the work whose future is
/// `done`.
c10::intrusive_ptr<c10::ivalue::Future> result_when_done(c10::ivalue::Future& done);

/// One group of ranks: its communicator, and the engine that moves it.
struct Channel {
  Channel(std::shared_ptr<Progress> progress,
          std::unique_ptr<collective::Communicator> communicator);
  ~Channel();
  void close();
  /// Records that an operation of this group has failed, and returns the error that its caller
  /// gets. A call that made no sense (Error(usage)) fails nothing but itself.
  std::exception_ptr failed(const std::exception_ptr& error);
  /// Ends everything on all ranks on behalf of the program.
  void abort(const char* operation, const char* why);

  std::shared_ptr<Progress> progress;
  std::unique_ptr<collective::Communicator> communicator;
  bool open = true;
  /// The number of operations started: PyTorch asks for it while others are being started.
  std::atomic<std::uint64_t> sequence{0};
  /// Guarded by the engine's lock; null: no hook is registered.
  std::shared_ptr<const CompletionHook> hook;
  std::atomic<c10d::ErrorType> error{c10d::ErrorType::SUCCESS};
};

/// The tensors that a call keeps alive until it is complete.
struct KeptTensors {
  /// All memory that ranks read or write.
  std::vector<at::Tensor> tensors;
  /// Destination and source of each copy that is made when the operations are complete.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  /// The result of the work and of its future.
  std::vector<at::Tensor> outputs;
};

/// A c10d::Work over operations of one communicator. It settles when all are complete or one fails;
/// the thread that notices makes the copies into tensors that are not contiguous, and completes the
/// future.
class HostWork final : public c10d::Work {
 public:
  HostWork(std::shared_ptr<Channel> channel, c10d::OpType type, const char* title, KeptTensors kept,
           Duration timeout);

  bool isCompleted() override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return kept_tensors_.outputs; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Waits, because CPU tensors have no stream on which a later operation could be ordered.
  void blockCurrentStream() override { wait(); }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return result_when_done(*getFuture());
  }
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override;

 private:
  friend class Progress;
  // Under the engine's lock:
  bool settled() const { return settled_; }
  void step(Duration longest);
  void time_out();
  void settle(std::exception_ptr error);
  // Outside it:
  void deliver();

  std::shared_ptr<Channel> channel_;
  KeptTensors kept_tensors_;
  Duration timeout_;
  Duration duration_{};
  Clock::time_point started_ = Clock::now();
  std::vector<collective::Handle> handles_;  ///< not complete yet; the last is looked at first
  bool settled_ = false;
  int source_ = -1;
  uint64_t sequence_ = 0;
  std::exception_ptr error_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool delivered_ = false;
};

}  // namespace shoal::python
