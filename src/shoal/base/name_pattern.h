#pragma once

#include <string_view>

namespace shoal {

/// Returns whether `name` matches `pattern`, in which * stands for any text: "blocks.*.mlp".
inline bool fits_pattern(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (std::size_t i = star; i <= name.size(); ++i)
    if (fits_pattern(pattern.substr(star + 1), name.substr(i))) return true;
  return false;
}

}  // namespace shoal
