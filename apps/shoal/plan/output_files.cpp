#include "apps/shoal/plan/output_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "shoal/base/error.h"

namespace shoal::apps {

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(ErrorKind::kOutput, "plan", fmt::format("{}: cannot be written", path));
}

void write_plot(const std::string& folder, const char* name, const std::string& picture) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  write_file(folder + "/" + name, picture);
}

}  // namespace shoal::apps
