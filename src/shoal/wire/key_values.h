#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"

namespace shoal::wire {

/// Keys and values that all ranks of a job see and through which they find each other: Shoal's own
/// store, or that of the program which embeds Shoal.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  /// Waits until `key` has a value and returns it. Throws Error(timeout).
  virtual std::string wait(const std::string& key, Deadline deadline) = 0;
  /// Waits until all `keys` have values and returns these; nothing for each key that has none at
  /// the deadline. Calls `check` now and then meanwhile, which may throw to give up. This default
  /// asks for one after the other.
  virtual std::vector<std::optional<std::string>> wait_all(const std::vector<std::string>& keys,
                                                           Deadline deadline,
                                                           const std::function<void()>& check) {
    std::vector<std::optional<std::string>> values;
    for (const std::string& key : keys) {
      check();
      try {
        values.push_back(wait(key, deadline));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kTimeout) throw;
        values.push_back(std::nullopt);
      }
    }
    return values;
  }
  /// Returns an address of this host at which the other ranks can probably reach it. Throws
  /// Error(config) where no such address is known.
  virtual std::string address() = 0;
};

}  // namespace shoal::wire
