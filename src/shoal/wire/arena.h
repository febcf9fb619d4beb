#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/base/memory_category.h"
#include "shoal/wire/shared_segment.h"

namespace shoal::wire {

/// Bytes that are allocated for one purpose.
struct Usage {
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::size_t at_peak = 0;  ///< in use when the sum over all purposes was at its peak
};

/// Memory in use by category, over all ranks that live in this process.
struct Ledger {
  std::array<Usage, kMemoryCategories> categories;
  Usage total;           ///< blocks in use
  std::size_t held = 0;  ///< free blocks whose pages are kept for reuse
  /// Bytes by which blocks are larger than what was asked for; not in `total`.
  std::size_t rounding = 0;
  std::size_t limit = 0;  ///< `total` and `rounding` together may not exceed it

  std::string text() const;  ///< "parameters 512 MiB, gradients ..., of a limit of ..."
};

/// Memory of one process that its peers can map: a sparse segment of fixed virtual size with
/// size-class reuse.
///
/// Blocks are aligned to 64 bytes, preceded by a header of 64. A freed block goes to the free list
/// of its size class (eight classes a power of two, so at most 12.5 % is wasted) and keeps its
/// pages: a steady training step meets no page fault. When a new block would pass the limit, pages
/// of free blocks are given back first, then `allocate` throws Error(resource) with the ledger: the
/// kernel never has to kill. Thread-safe. In a forked child the arena allocates from the C library
/// and ignores frees of blocks it inherited.
class Arena {
 public:
  struct Options {
    /// Size of the segment. 0: four times the memory of this machine, at most 512 GiB, less under
    /// RLIMIT_AS.
    std::size_t virtual_bytes = 0;
    /// 0: what cgroup and MemAvailable allow, less a margin of 5 %, divided by `ranks_on_host`.
    std::size_t limit_bytes = 0;
    int ranks_on_host = 1;
    bool poison = false;  ///< fill freed blocks with 0xcb, so that tests see a use after free
  };
  static constexpr std::size_t kAlignment = 64;

  explicit Arena(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns `bytes` > 0 of uninitialised memory, tagged with this thread's category. Throws
  /// Error(resource). When `sharers` ranks of the host use the block together, the ledger counts
  /// this rank's part; the others count theirs by `charge`.
  void* allocate(std::size_t bytes, std::size_t sharers = 1);
  /// Frees a block. Null is ignored; a pointer outside the arena goes to the C library's free.
  void free(void* block);

  /// Frees `block`, which peers may still read, once `holders` has fallen to zero. A later
  /// allocation looks at the count.
  void free_when_unheld(void* block, const std::atomic<int>* holders);

  /// Counts `bytes` of a block that lies in a peer's arena towards this rank's limit, in this
  /// thread's category. Throws Error(resource).
  void charge(std::size_t bytes);
  /// Subtracts what `charge` has counted in `category`.
  void discharge(std::size_t bytes, MemoryCategory category);

  /// Moves `block` from one category to another. Null, a pointer outside the arena and a block of
  /// another category than `from` are ignored.
  void retag(void* block, MemoryCategory from, MemoryCategory to);

  bool contains(const void* p, std::size_t bytes = 1) const;
  std::size_t offset(const void* p) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(p) - segment_.data());
  }
  const SharedSegment& segment() const { return segment_; }
  Ledger ledger() const;
  /// Sets all peaks to what is in use now.
  void reset_peaks();
  /// To be called once in a forked child, from its atfork handler.
  void enter_child();

 private:
  struct Header;
  static std::size_t class_of(std::size_t bytes);
  static std::size_t class_bytes(std::size_t size_class);
  void* carve(std::size_t size_class);
  void require_room(std::size_t bytes, MemoryCategory category) const;
  void trim_locked();  ///< gives the pages of free blocks back to the kernel
  void free_locked(void* block);
  void sweep_locked();
  void count(MemoryCategory category, std::size_t bytes);
  void take(MemoryCategory category, std::size_t asked, std::size_t size);
  void give_back(MemoryCategory category, std::size_t asked, std::size_t size);
  void note_peak();

  SharedSegment segment_;
  std::size_t limit_;
  bool poison_;
  std::atomic<bool> child_{false};
  mutable std::mutex mutex_;
  std::size_t next_ = kAlignment;  ///< first byte never handed out
  /// By size class: offsets of the headers of free blocks, the last freed at the back.
  std::vector<std::vector<std::uint64_t>> free_;
  std::vector<std::vector<std::uint64_t>> dry_;  ///< free blocks whose pages were given back
  std::vector<std::pair<void*, const std::atomic<int>*>> retired_;  ///< block, holders
  std::array<Usage, kMemoryCategories> usage_{};
  Usage total_{};
  std::size_t held_ = 0;
  std::size_t taken_ = 0;  ///< bytes of blocks in use, with what their size classes round up
};

}  // namespace shoal::wire
