#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/engine.h"

namespace shoal::comm {

/// What a fake engine was asked to do.
struct RecordedCall {
  collective::Kind kind;
  ElementType type;
  std::size_t count;  ///< elements, over all buffers
  int peer;
};

/// A group of `size` ranks of which only this one exists: every peer is taken to contribute exactly
/// what this rank does, so results are defined and can be tested (a sum is `size` times the input).
/// For tests of techniques and for measuring one rank's memory; records every call.
class FakeEngine final : public Engine {
 public:
  FakeEngine(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool supports(collective::Kind kind, ElementType type,
                collective::Reduction reduction) const override;
  Work start(const Call& call) override;
  std::shared_ptr<Engine> split(int color, int key) override;
  void abort(const Error& cause) override { cause_ = std::make_unique<Error>(cause); }

  const std::vector<RecordedCall>& calls() const { return calls_; }

 private:
  int rank_, size_;
  std::vector<RecordedCall> calls_;
  std::unique_ptr<Error> cause_;
};

}  // namespace shoal::comm
