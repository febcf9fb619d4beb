#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

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
  virtual ~SharedBuffer() = default;

  virtual std::size_t bytes() const = 0;
  virtual void* data() const = 0;

  /// A tensor over `[offset, offset + count * element size)`, not a leaf of anything yet. `offset`
  /// is a multiple of 64.
  virtual at::Tensor tensor(std::size_t offset_bytes, at::IntArrayRef shape,
                            at::ScalarType type) const = 0;

  /// This rank has written its ranges for the epoch that begins now. Blocks until every rank of the
  /// host has: what all wrote is then visible.
  virtual void publish() = 0;
  /// This rank reads no more in this epoch. Blocks until every rank of the host has said so: owners
  /// may write then.
  virtual void end_reading() = 0;
  /// Counts the calls of `publish`: saved tensors record it and compare it when they are unpacked
  /// in debug builds.
  virtual std::uint64_t epoch() const = 0;
};

}  // namespace shoal::comm
