#pragma once

#include <set>
#include <string>
#include <string_view>

namespace shoal::checkpoint::format {

/// Returns the names of the files that a model.safetensors.index.json lists; they lie beside it.
/// Throws Error(data) that begins with `where` for a text that is no such index, and for a name
/// that leads out of the folder.
std::set<std::string> files_of_index(std::string_view text, const std::string& where);

}  // namespace shoal::checkpoint::format
