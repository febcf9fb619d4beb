#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/communicator.h"

namespace shoal::collective {

/// An operation that a FakeCommunicator was asked for.
struct RecordedCall {
  Kind kind;
  ElementType type;
  std::size_t count;  ///< elements, over all buffers
  int peer;
  std::uint32_t tag = 0;
  int priority = 0;
  double scale = 1;
  Duration timeout{};
};

/// A group of `size` ranks of which only this one exists: every peer is taken to contribute exactly
/// what this rank does, so results are defined and can be tested (a sum is `size` times the input).
/// Records every call; each is complete when `start` returns.
class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool supports(Kind kind, ElementType type, Reduction reduction) const override;
  Handle start(const Operation& operation) override;
  bool test(Handle) override { return true; }
  bool complete(Handle) const override { return true; }
  using Communicator::wait;
  void wait(Handle, Deadline) override {}
  void poll(Duration) override {}
  bool idle() const override { return true; }
  std::uint64_t sequence() const override { return calls_.size(); }
  std::string report() const override { return {}; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(const Error& cause) override { cause_ = cause; }

  const std::vector<RecordedCall>& calls() const { return calls_; }

 private:
  int rank_;
  int size_;
  std::vector<RecordedCall> calls_;
  std::optional<Error> cause_;
};

}  // namespace shoal::collective
