#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "shoal/wire/assembler.h"

namespace shoal::wire {

/// Streams that wait for their turn: those of higher priority first, among equals the one that has
/// waited longest. A stream waits once at a time.
class Turns {
 public:
  bool empty() const { return size_ == 0; }

  void push(Stream stream, int priority) {
    lines_[priority].push_back(stream);
    ++size_;
  }
  /// Removes the next stream; empty: there is none.
  std::optional<Stream> pop() {
    if (size_ == 0) return std::nullopt;
    for (auto line = lines_.begin(); line != lines_.end();) {
      if (line->second.empty()) {
        // A few empty lines are kept, so that a steady flow of messages allocates nothing.
        line = lines_.size() > kLinesKept ? lines_.erase(line) : std::next(line);
        continue;
      }
      const Stream stream = line->second.front();
      line->second.pop_front();
      --size_;
      return stream;
    }
    return std::nullopt;
  }
  /// Returns the next stream; empty: there is none.
  std::optional<Stream> next() const {
    for (const auto& [priority, line] : lines_)
      if (!line.empty()) return line.front();
    return std::nullopt;
  }
  /// Removes a stream that was pushed with `priority`. Returns false where it does not wait.
  bool erase(Stream stream, int priority) {
    const auto line = lines_.find(priority);
    const bool found = line != lines_.end() && std::erase(line->second, stream) > 0;
    if (found) --size_;
    return found;
  }
  template <class Unwanted>
  void erase_if(Unwanted&& unwanted) {
    for (auto& [priority, line] : lines_) size_ -= std::erase_if(line, unwanted);
  }

 private:
  static constexpr std::size_t kLinesKept = 8;
  std::map<int, std::deque<Stream>, std::greater<>> lines_;
  std::size_t size_ = 0;
};

}  // namespace shoal::wire
