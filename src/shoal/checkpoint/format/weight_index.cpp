#include "shoal/checkpoint/format/weight_index.h"

#include <fmt/format.h>

#include "shoal/checkpoint/format/strict_json.h"

namespace shoal::checkpoint::format {

std::set<std::string> files_of_index(std::string_view text, const std::string& where) {
  const nlohmann::json root = parse_json(text, where);
  const nlohmann::json& map = field(root, "weight_map", where);
  if (!map.is_object()) throw broken(where, "weight_map: an object is expected");
  std::set<std::string> files;
  for (const auto& [tensor, name] : map.items()) {
    const std::string file = string_value(name, where);
    // The index may come from anywhere: its names must not lead out of the folder.
    const bool plain = !file.empty() && file != "." && file != ".." &&
                       file.find('/') == std::string::npos && file.find('\0') == std::string::npos;
    if (!plain) throw broken(where, fmt::format("'{}' is not the name of a file beside it", file));
    files.insert(file);
  }
  return files;
}

}  // namespace shoal::checkpoint::format
