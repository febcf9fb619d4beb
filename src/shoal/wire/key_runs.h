#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::wire {

/// Keys of a store that end in numbers which follow each other, as those of ranks do: prefix "7",
/// prefix "8", ... A list of the keys of all ranks takes no more room than that of two.
struct KeyRun {
  std::string prefix;
  std::uint32_t first = 0;
  std::uint32_t count = 0;  ///< 0: the prefix itself is the key, and the only one

  std::size_t keys() const { return count == 0 ? 1 : count; }
  /// Returns the key at a place below keys().
  std::string key(std::size_t place) const;
  bool operator==(const KeyRun&) const = default;
};

/// Returns these keys, in their order, as few runs as can be.
std::vector<KeyRun> runs_of(const std::vector<std::string>& keys);

/// The runs as bytes that travel, and back: nothing where they make no sense, where a prefix has
/// more than `longest` bytes, and where there are more than `most` keys.
std::string encode(const std::vector<KeyRun>& runs);
std::optional<std::vector<KeyRun>> decode_runs(std::string_view bytes, std::size_t longest,
                                               std::size_t most);

}  // namespace shoal::wire
