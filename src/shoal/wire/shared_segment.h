#pragma once

#include <cstddef>
#include <string>

namespace shoal::wire {

/// Anonymous memory that other processes can map: a sealed memfd and its mapping here.
/// Sparse: pages exist once they are touched. /dev/shm plays no part, so its size does not matter.
/// Move-only; unmaps and closes when destroyed.
class SharedSegment {
 public:
  SharedSegment() = default;
  /// A new segment of `bytes`, sealed against shrinking and growing so that no peer can pull the
  /// memory away. Throws Error(resource).
  static SharedSegment create(const std::string& name, std::size_t bytes);
  /// Maps what a peer created; takes over `fd`. The size is read from the descriptor. Throws
  /// Error(data) unless it is sealed against shrinking.
  static SharedSegment adopt(int fd);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  explicit operator bool() const { return data_ != nullptr; }

  /// Gives the whole pages inside `[offset, offset + bytes)` back to the kernel; they read as zero
  /// afterwards.
  void punch(std::size_t offset, std::size_t bytes) const;
  /// In a forked child: replaces the mapping by a private copy, so that the child can neither see
  /// nor disturb its parent's peers.
  void make_private() const;

 private:
  SharedSegment(int fd, std::size_t bytes);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::wire
