#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace shoal::wire {

/// Memory for chunks of one size that wait to be used. What is given back is kept and given out
/// again, a few at most, so that a steady flow touches no fresh pages. Thread-safe.
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
class Piece {
 public:
  Piece() = default;
  /// A piece whose bytes have gone where they belong: it has none.
  Piece(std::uint64_t total, std::uint64_t offset) : total_(total), offset_(offset) {}
  Piece(const std::shared_ptr<ChunkPool>& pool, std::uint64_t total, std::uint64_t offset,
        std::size_t bytes);
  Piece(Piece&& other) noexcept;
  Piece& operator=(Piece&& other) noexcept;
  ~Piece();

  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t total() const { return total_; }
  std::uint64_t offset() const { return offset_; }

 private:
  ChunkPool::Memory memory_;
  std::shared_ptr<ChunkPool> home_;  ///< where the memory goes; null: it is freed
  std::uint64_t total_ = 0, offset_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::wire
