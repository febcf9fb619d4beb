#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shoal/comm/engine.h"

namespace shoal::comm {

/// Memory that exists once per host and that every rank of the host maps: a sharded unit's
/// parameters, read in place by all, written by each rank only in its own range.
///
/// Made collectively by Group::shared_buffer, and zero at first. Each rank makes its own leaf
/// tensors over it. Their version counters do not see a peer's writes, so autograd cannot detect a
/// race: epochs order the ranks instead. An owner writes only after every rank has called
/// `end_reading`; readers start only after every owner has called `publish`. The memory lives until
/// the last tensor over it is gone.
class SharedBuffer {
 public:
  /// The ranks of `engine` share `memory`.
  SharedBuffer(std::shared_ptr<Engine> engine, std::shared_ptr<std::byte> memory, std::size_t bytes)
      : engine_(std::move(engine)), memory_(std::move(memory)), bytes_(bytes) {}
  /// Makes the buffer of a group of one: it takes memory of LibTorch's allocator and waits for
  /// nobody.
  explicit SharedBuffer(std::size_t bytes);

  std::size_t bytes() const { return bytes_; }
  void* data() const { return memory_.get(); }

  /// Returns a tensor over the bytes from `offset_bytes` on, without a graph. `offset_bytes` is a
  /// multiple of 64.
  at::Tensor tensor(std::size_t offset_bytes, at::IntArrayRef shape, at::ScalarType type) const;

  /// Begins an epoch: this rank has written its ranges. Blocks until every rank of the host has
  /// written its own; all writes are then visible.
  void publish();
  /// Ends this rank's reading in the epoch. Blocks until every rank of the host has ended its own:
  /// owners may write then.
  void end_reading();
  /// Counts the calls of `publish`: saved tensors record it and compare it when they are unpacked
  /// in debug builds.
  std::uint64_t epoch() const { return epoch_; }

 private:
  std::shared_ptr<Engine> engine_;  ///< null in a group of one
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
  std::uint64_t epoch_ = 0;
};

}  // namespace shoal::comm
