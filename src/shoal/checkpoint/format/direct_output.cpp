#include "shoal/checkpoint/format/direct_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace shoal::checkpoint::format {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;  // a multiple of what any disk wants
constexpr std::size_t kAlignment = 4096;

bool set_direct(int descriptor, bool direct) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 &&
         ::fcntl(descriptor, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/// 0, or what went wrong.
int write_all(int descriptor, const char* data, std::size_t count, std::int64_t offset) {
  while (count > 0) {
    const ssize_t put = ::pwrite(descriptor, data, count, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    data += put;
    offset += put;
    count -= static_cast<std::size_t>(put);
  }
  return 0;
}

/// Direct where it goes; some file systems refuse only when it comes to writing.
int write_buffer(int descriptor, const char* data, std::int64_t offset) {
  int error = write_all(descriptor, data, kBufferBytes, offset);
  if (error == EINVAL && set_direct(descriptor, false))
    error = write_all(descriptor, data, kBufferBytes, offset);
  return error;
}

}  // namespace

bool DirectOutput::append(const void* data, std::size_t count) {
  const auto* from = static_cast<const char*>(data);
  while (count > 0) {
    auto& buffer = buffers_[current_];
    if (!buffer) buffer.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kBufferBytes)));
    if (!buffer) throw std::bad_alloc();
    const std::size_t part = std::min(count, kBufferBytes - filled_);
    std::memcpy(buffer.get() + filled_, from, part);
    from += part;
    count -= part;
    filled_ += part;
    if (filled_ == kBufferBytes && !flush()) return false;
  }
  return true;
}

bool DirectOutput::flush() {
  // The other buffer must be free before this one leaves: two are enough to keep the disk busy. Its
  // error, if any, shows here.
  if (!wait()) return false;
  if (begin_ == 0) set_direct(descriptor_, true);
  flight_ =
      std::async(std::launch::async, write_buffer, descriptor_, buffers_[current_].get(), begin_);
  begin_ += static_cast<std::int64_t>(kBufferBytes);
  filled_ = 0;
  current_ ^= 1;
  return true;
}

bool DirectOutput::wait() {
  const int error = flight_.valid() ? flight_.get() : 0;
  errno = error;
  return error == 0;
}

bool DirectOutput::finish() {
  // The flag belongs to the descriptor, so no write may be under way when it changes.
  if (!wait()) return false;
  set_direct(descriptor_, false);  // the last bytes are no whole block
  const int error = write_all(descriptor_, buffers_[current_].get(), filled_, begin_);
  begin_ += static_cast<std::int64_t>(filled_);
  filled_ = 0;
  errno = error;
  return error == 0;
}

}  // namespace shoal::checkpoint::format
