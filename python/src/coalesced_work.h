#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "python/src/host_work.h"

namespace shoal::python {

/// Combines several works into one, which is complete when all of them are.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : c10d::Work(rank, c10d::OpType::COALESCED, "shoal:coalesced"), works_(std::move(works)) {}

  bool isCompleted() override {
    bool all = true;
    for (const auto& work : works_) all = work->isCompleted() && all;
    if (all) finish_once();
    return all;
  }
  bool isSuccess() const override {
    for (const auto& work : works_)
      if (!work->isSuccess()) return false;
    return true;
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_)
      if (auto error = work->exception()) return error;
    return nullptr;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_)
      for (const auto& tensor : work->result()) all.push_back(tensor);
    return all;
  }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    for (const auto& work : works_) work->wait(timeout);
    finish_once();
    return true;
  }
  void blockCurrentStream() override { wait(); }
  void abort() override {
    for (const auto& work : works_) work->abort();
  }
  /// Waits for all works, so the future that it returns is complete.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    try {
      wait();
      future->markCompleted(c10::IValue(result()));
    } catch (...) {
      future->setError(std::current_exception());
    }
    return future;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return result_when_done(*getFuture());
  }

 private:
  void finish_once() {
    const bool was_finished = std::exchange(finished_, true);
    if (!was_finished) finish();
  }

  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  bool finished_ = false;
};

}  // namespace shoal::python
