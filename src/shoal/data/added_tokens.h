#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::data {

/// Finds strings that are one token each in a text: the leftmost, and of those the longest.
class AddedTokens {
 public:
  void add(std::string content, std::uint32_t id);
  bool empty() const { return count_ == 0; }

  struct Found {
    std::size_t begin, size;
    std::uint32_t id;
  };
  /// Returns the first one in `text`.
  std::optional<Found> find(std::string_view text) const;

 private:
  // By their first byte, longer ones first.
  std::array<std::vector<std::pair<std::string, std::uint32_t>>, 256> by_first_byte_;
  std::size_t count_ = 0;
};

}  // namespace shoal::data
