#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::checkpoint::testing {

/// All-gather among threads over one shared table: all that save and load ask of a group.
class TableEngine : public comm::Engine {
 public:
  struct Table {
    explicit Table(int size) : inputs(size) {}
    std::mutex mutex;
    std::condition_variable turned;
    std::vector<at::Tensor> inputs;
    int arrived = 0;
    long turn = 0;

    void meet() {
      std::unique_lock lock(mutex);
      const long mine = turn;
      if (++arrived == static_cast<int>(inputs.size()))
        arrived = 0, ++turn, turned.notify_all();
      else
        turned.wait(lock, [&] { return turn != mine; });
    }
  };

  TableEngine(std::shared_ptr<Table> table, int rank) : table_(std::move(table)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(table_->inputs.size()); }
  bool supports(collective::Kind kind, ElementType, collective::Reduction) const override { return kind == collective::Kind::kAllGather; }
  std::shared_ptr<Engine> split(int, int) override { return nullptr; }
  void abort(const Error&) override {}

  comm::Work start(const comm::Call& call) override {
    table_->inputs[rank_] = call.inputs[0];
    table_->meet();
    auto* out = static_cast<char*>(call.outputs[0].data_ptr());
    for (const at::Tensor& input : table_->inputs) {
      std::memcpy(out, input.const_data_ptr(), input.nbytes());
      out += input.nbytes();
    }
    table_->meet();
    return {};
  }

 private:
  std::shared_ptr<Table> table_;
  int rank_;
};

/// Runs `body` once per rank, each in a thread; what the ranks threw comes back, null where nothing.
inline std::vector<std::exception_ptr> on_ranks(int ranks, const std::function<void(const comm::Group&)>& body) {
  auto table = std::make_shared<TableEngine::Table>(ranks);
  std::vector<std::exception_ptr> thrown(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(comm::Group(std::make_shared<TableEngine>(table, rank)));
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// The same for ranks that must not throw.
inline void run_ranks(int ranks, const std::function<void(const comm::Group&)>& body) {
  for (const std::exception_ptr& thrown : on_ranks(ranks, body))
    if (thrown) std::rethrow_exception(thrown);
}

}  // namespace shoal::checkpoint::testing
