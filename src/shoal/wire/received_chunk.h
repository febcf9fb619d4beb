#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace shoal::wire {

/// Memory of one size for received chunks that wait to be used. A few blocks that are given back
/// are kept and given out again, so that a steady flow touches no fresh pages. Thread-safe.
class ChunkPool : public std::enable_shared_from_this<ChunkPool> {
 public:
  explicit ChunkPool(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  using Memory = std::unique_ptr<std::byte[]>;
  std::size_t chunk_bytes() const { return chunk_bytes_; }
  Memory take();
  void give_back(Memory memory);

 private:
  static constexpr std::size_t kMostKept = 32;
  const std::size_t chunk_bytes_;
  std::mutex mutex_;
  std::vector<Memory> kept_;
};

/// A part of a message, as it has arrived: bytes `[offset, offset + bytes)` of `total`. Move-only.
class ReceivedChunk {
 public:
  ReceivedChunk() = default;
  /// A chunk without memory: its bytes went straight into a posted receive.
  ReceivedChunk(std::uint64_t total, std::uint64_t offset) : total_(total), offset_(offset) {}
  /// A chunk with memory for `bytes`, from `pool` where that is worth it.
  ReceivedChunk(const std::shared_ptr<ChunkPool>& pool, std::uint64_t total, std::uint64_t offset,
                std::size_t bytes);
  ReceivedChunk(ReceivedChunk&& other) noexcept;
  ReceivedChunk& operator=(ReceivedChunk&& other) noexcept;
  ~ReceivedChunk();

  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t total() const { return total_; }
  std::uint64_t offset() const { return offset_; }

 private:
  ChunkPool::Memory memory_;
  std::shared_ptr<ChunkPool> home_;  ///< takes the memory back; null: it is freed
  std::uint64_t total_ = 0;
  std::uint64_t offset_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::wire
