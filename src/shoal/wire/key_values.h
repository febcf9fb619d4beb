#pragma once

#include <string>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// Keys and values that all ranks of a job see, through which they find each other: Shoal's own
/// store, or one that a host program has brought.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// The value of `key`, as soon as it has one. Throws Error(timeout).
  virtual std::string wait(const std::string& key, Deadline deadline) = 0;
  /// An address of this host at which those who share the keys can probably reach it. Throws
  /// Error(config) where that is not to be known.
  virtual std::string address() = 0;
};

}  // namespace shoal::wire
