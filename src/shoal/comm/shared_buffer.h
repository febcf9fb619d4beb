#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shoal/collective/communicator.h"

namespace shoal::comm {

/// Memory that exists once per host and that every rank of the host maps: a sharded unit's
/// parameters, read in place by all, written by each rank only in its own range.
///
/// Made collectively by Group::shared_buffer. Each rank makes its own leaf tensors over it, with
/// version counters of their own: autograd's check does not see a peer's write, so epochs order
/// them: an owner writes only after `end_reading` of every rank, readers start only after `publish`
/// of every owner. Zero-filled at first. Lives until the last tensor over it is gone.
class SharedBuffer {
 public:
  /// The ranks of `communicator` share `memory`.
  SharedBuffer(std::shared_ptr<collective::Communicator> communicator,
               std::shared_ptr<std::byte> memory, std::size_t bytes)
      : communicator_(std::move(communicator)), memory_(std::move(memory)), bytes_(bytes) {}
  /// The buffer of a group of one: memory of LibTorch's allocator, and nobody to wait for.
  explicit SharedBuffer(std::size_t bytes);

  std::size_t bytes() const { return bytes_; }
  void* data() const { return memory_.get(); }

  /// A tensor over `[offset, offset + count * element size)`, not a leaf of anything yet. `offset`
  /// is a multiple of 64.
  at::Tensor tensor(std::size_t offset_bytes, at::IntArrayRef shape, at::ScalarType type) const;

  /// This rank has written its ranges for the epoch that begins now. Blocks until every rank of the
  /// host has: what all wrote is then visible.
  void publish();
  /// This rank reads no more in this epoch. Blocks until every rank of the host has said so: owners
  /// may write then.
  void end_reading();
  /// Counts the calls of `publish`: saved tensors record it and compare it when they are unpacked
  /// in debug builds.
  std::uint64_t epoch() const { return epoch_; }

 private:
  std::shared_ptr<collective::Communicator> communicator_;  ///< null in a group of one
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
  std::uint64_t epoch_ = 0;
};

}  // namespace shoal::comm
