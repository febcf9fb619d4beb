#include "shoal/wire/received_chunk.h"

#include <utility>

namespace shoal::wire {

ChunkPool::Memory ChunkPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!kept_.empty()) {
      Memory memory = std::move(kept_.back());
      kept_.pop_back();
      return memory;
    }
  }
  // Memory is allocated outside the lock, because its first use may fault in many pages.
  return std::make_unique_for_overwrite<std::byte[]>(chunk_bytes_);
}

void ChunkPool::give_back(Memory memory) {
  const std::lock_guard lock(mutex_);
  if (kept_.size() < kMostKept) kept_.push_back(std::move(memory));
}

ReceivedChunk::ReceivedChunk(const std::shared_ptr<ChunkPool>& pool, std::uint64_t total,
                             std::uint64_t offset, std::size_t bytes)
    : total_(total), offset_(offset), bytes_(bytes) {
  // A small chunk would waste a whole block, and the allocator is quick with small sizes.
  const bool whole = bytes > pool->chunk_bytes() / 4;
  memory_ = whole ? pool->take() : std::make_unique_for_overwrite<std::byte[]>(bytes);
  if (whole) home_ = pool;
}

ReceivedChunk::ReceivedChunk(ReceivedChunk&& other) noexcept { *this = std::move(other); }

ReceivedChunk& ReceivedChunk::operator=(ReceivedChunk&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(home_, other.home_);
  std::swap(total_, other.total_);
  std::swap(offset_, other.offset_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ReceivedChunk::~ReceivedChunk() {
  // The chunk holds the pool, which therefore outlives the connection that received the bytes.
  if (home_) home_->give_back(std::move(memory_));
}

}  // namespace shoal::wire
