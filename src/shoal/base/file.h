#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shoal {

/// Returns the whole content of a file; nothing when it cannot be opened, for which errno gives the
/// reason, or not be read.
std::optional<std::string> read_text(const std::string& path);

/// Writes `text` to a file beside `path` and renames it over `path`: a reader sees the old file or
/// the whole new one. Without fsync: after a crash of the machine it may see neither. Throws
/// Error(output) of `operation`, and leaves no file beside `path`.
void replace_text(const std::string& path, std::string_view text, const std::string& operation);

}  // namespace shoal
