#include "shoal/data/added_tokens.h"

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::data {

void AddedTokens::add(std::string content, std::uint32_t id) {
  SHOAL_CHECK(!content.empty(), "token {} has no content", id);
  auto& same = by_first_byte_[static_cast<unsigned char>(content[0])];
  const auto longer = [&](const auto& other) { return other.first.size() >= content.size(); };
  const auto place = std::partition_point(same.begin(), same.end(), longer);
  same.emplace(place, std::move(content), id);
  ++count_;
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text) const {
  if (empty()) return {};
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const auto& [content, id] : by_first_byte_[static_cast<unsigned char>(text[i])])
      if (text.substr(i).starts_with(content)) return Found{i, content.size(), id};
  }
  return {};
}

}  // namespace shoal::data
