#include "shoal/train/run_directory.h"

#include "shoal/base/file.h"

namespace shoal::train {

void write_whole(const std::string& path, const std::string& text) {
  replace_text(path, text, "run directory");
}

}  // namespace shoal::train
