#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/span_recorder.h"

namespace shoal {

/// A recording that has left its recorder, of this rank or of another, with its own texts.
class SpanLog {
 public:
  SpanLog() = default;
  // Spans point to the texts, whose places a move keeps and a copy would not.
  SpanLog(const SpanLog&) = delete;
  SpanLog& operator=(const SpanLog&) = delete;
  SpanLog(SpanLog&&) = default;
  SpanLog& operator=(SpanLog&&) = default;

  /// Reads what `pack` wrote. Throws Error(internal) for bytes of any other kind.
  static SpanLog unpack(std::span<const std::byte> bytes);

  std::vector<Span> spans;          ///< in the order of their begin
  std::vector<Transfer> transfers;  ///< likewise
  std::uint64_t dropped = 0;

 private:
  std::vector<std::string> texts_;
};

/// Returns the recording as bytes that another process of the same program reads.
std::vector<std::byte> pack(const SpanRecorder& recorder);

}  // namespace shoal
