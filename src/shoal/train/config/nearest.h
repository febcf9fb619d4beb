#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal::train {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment).
int edit_distance(std::string_view a, std::string_view b);

/// The candidate that `word` was most likely meant to be; empty when none is near: more than a
/// third of its letters (at least two) would change.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace shoal::train
