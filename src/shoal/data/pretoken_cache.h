#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shoal::data {

/// Remembers the tokens of pre-tokens, of which a text has few different ones. Shared by the
/// threads that encode; bounded.
class PretokenCache {
 public:
  using Ids = std::vector<std::uint32_t>;

  /// Appends the remembered tokens; false when there are none.
  bool find(std::string_view word, Ids& ids) const {
    const Part& part = part_of(word);
    // Readers do not block one another; a word is written once and found often.
    const std::shared_lock lock(part.mutex);
    const auto found = part.map.find(word);
    if (found == part.map.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }

  void remember(std::string_view word, const Ids& ids) {
    // A long word seldom comes again, and a file may be a single one.
    if (word.size() > kLongest) return;
    Part& part = part_of(word);
    const std::unique_lock lock(part.mutex);
    if (part.map.size() < kEntries / kParts) part.map.emplace(word, ids);
  }

 private:
  // Parts with a lock each, so that threads seldom meet. When a part is full it learns nothing
  // more: frequent words come early, and nothing need be evicted.
  static constexpr std::size_t kParts = 64, kEntries = std::size_t{1} << 19, kLongest = 256;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  struct Part {
    mutable std::shared_mutex mutex;
    std::unordered_map<std::string, Ids, Hash, std::equal_to<>> map;
  };
  Part& part_of(std::string_view word) { return parts_[Hash()(word) % kParts]; }
  const Part& part_of(std::string_view word) const { return parts_[Hash()(word) % kParts]; }

  std::array<Part, kParts> parts_;
};

}  // namespace shoal::data
