#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal {

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a`
/// into `b` (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate that `word` was most likely meant to be. Returns an empty text when none
/// is near, which means that more than a third of its letters (at least two) would change.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace shoal
