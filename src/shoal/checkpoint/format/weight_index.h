#pragma once

#include <set>
#include <string>
#include <string_view>

namespace shoal::checkpoint::format {

/// The files that a model.safetensors.index.json names, each a plain name beside it. Throws
/// Error(data) that begins with `where` for what is no such index, and for a name that leads
/// anywhere else.
std::set<std::string> files_of_index(std::string_view text, const std::string& where);

}  // namespace shoal::checkpoint::format
