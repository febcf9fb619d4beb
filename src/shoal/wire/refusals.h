#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Counts the callers that a listener has turned away because they did not prove that they know the
/// key. Thread-safe.
class Refusals {
 public:
  /// `address` is that of the caller, without its port.
  void add(const std::string& address);
  std::uint64_t count() const;
  /// Returns a sentence for an error message, in lower case; empty where nobody was refused.
  std::string text() const;
  /// Prints a line to stderr where callers were refused a second ago or earlier that no line has
  /// counted yet, at most once in ten seconds. Whoever adds calls it at short intervals.
  void report(Clock::time_point now);

 private:
  std::string text_locked() const;

  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::uint64_t reported_ = 0;
  std::string last_;              ///< the address
  Clock::time_point not_before_;  ///< when the next line may be printed
};

}  // namespace shoal::wire
