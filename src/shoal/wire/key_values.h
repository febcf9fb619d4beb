#pragma once

#include <string>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Keys and values that all ranks of a job see and through which they find each other: Shoal's own
/// store, or that of the program which embeds Shoal.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// Waits until `key` has a value and returns it. Throws Error(timeout).
  virtual std::string wait(const std::string& key, Deadline deadline) = 0;
  /// Returns an address of this host at which the other ranks can probably reach it. Throws
  /// Error(config) where no such address is known.
  virtual std::string address() = 0;
};

}  // namespace shoal::wire
