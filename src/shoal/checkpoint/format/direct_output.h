#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>

namespace shoal::checkpoint::format {

/// Appends to a file past the page cache (O_DIRECT) where the file system allows it, else through
/// the page cache. One buffer is on its way to the disk while the next is filled. A checkpoint
/// written so displaces nothing that is cached, and costs a tenth of the processor time.
///
/// Threads: one at a time. A call that fails returns false and leaves the system's reason in errno.
/// Buffers are written in the background, so a failure may show in a later call.
class DirectOutput {
 public:
  /// Writes from the beginning of an empty file. The descriptor stays the caller's, who closes it
  /// after this is gone.
  explicit DirectOutput(int descriptor) : descriptor_(descriptor) {}

  bool append(const void* data, std::size_t count);
  /// Hands the rest to the system and waits until all is written.
  bool finish();

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  bool flush();
  bool wait();

  int descriptor_;
  std::unique_ptr<char, Free> buffers_[2];
  int current_ = 0;          ///< the buffer that is being filled
  std::size_t filled_ = 0;   ///< bytes in it
  std::int64_t begin_ = 0;   ///< its place in the file
  std::future<int> flight_;  ///< writes the other buffer: 0 or errno. Its destructor waits
};

}  // namespace shoal::checkpoint::format
