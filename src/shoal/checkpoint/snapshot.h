#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "shoal/base/clock.h"

namespace shoal::checkpoint {

/// Memory as it was at one instant, for a writer that reads it while its owner goes on:
/// copy-on-write in software.
///
/// The owner calls `detach` before it changes any of it. `detach` copies the blocks that the writer
/// has not read by then, as many as staging holds, the last first. The owner waits while the writer
/// reads the others.
///
/// Threads: one writer calls `read` and `rest`; one owner calls `detach`; `hurry` and `cancel` come
/// from any.
class Snapshot {
 public:
  /// A stretch of memory that is read block by block; each block but the last has `block_bytes`.
  struct Range {
    const char* data = nullptr;
    std::size_t bytes = 0, block_bytes = 0;
  };
  /// Returns memory of `bytes` bytes that outlives the snapshot. It is called once, by `detach`.
  using Staging = std::function<char*(std::size_t bytes)>;
  /// The memory of the ranges outlives this. At most `staging_bytes` are asked of `staging`.
  Snapshot(const std::vector<Range>& ranges, std::size_t staging_bytes, Staging staging);

  /// Returns block `block` of range `range` as it was; valid until the next call. Each block is
  /// read once. Throws Error(aborted) after `cancel`.
  const void* read(std::size_t range, std::size_t block);
  /// Pauses the writer, but not while somebody waits for it.
  void rest(Duration duration);

  /// Returns true when the writer no longer needs the memory, so that it may change; false when
  /// `limit` passed first, and the caller must call again. Throws what `staging` throws; the writer
  /// then reads all of the owner's memory, and later calls wait for it.
  [[nodiscard]] bool detach(Duration limit);
  /// Ends pauses: from here on the writer does not rest.
  void hurry();
  /// Cancels the writing: `read` throws, `detach` returns at once.
  void cancel();

 private:
  enum class State : std::uint8_t { kLive, kReading, kCopying, kStaged, kRead };
  struct Block {
    const char* data;
    std::size_t bytes;
    State state = State::kLive;
  };

  std::vector<Block*> choose_staged();
  void stage();
  std::vector<const char*> copy_to_staging(const std::vector<Block*>& chosen);

  std::vector<Block> blocks_;
  std::vector<std::size_t> first_;  ///< by range: its first block
  std::unique_ptr<char[]> bounce_;  ///< the writer's copy of a block that lies in the owner's
                                    ///< memory, so that the owner never waits for a disk
  std::size_t staging_bytes_;
  Staging staging_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t live_;  ///< blocks that the writer still reads in the owner's memory
  int waiting_ = 0;   ///< callers that wait for the writer
  bool staged_ = false, cancelled_ = false;
};

}  // namespace shoal::checkpoint
