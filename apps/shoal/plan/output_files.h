#pragma once

#include <string>

namespace shoal::apps {

/// Writes `text` to the file. Throws Error(output) when it cannot.
void write_file(const std::string& path, const std::string& text);

/// Writes a picture into a folder, which is made when it does not exist.
void write_plot(const std::string& folder, const char* name, const std::string& picture);

}  // namespace shoal::apps
