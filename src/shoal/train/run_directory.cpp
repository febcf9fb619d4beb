#include "shoal/train/run_directory.h"

#include <cstdio>
#include <memory>

#include "shoal/base/system_error.h"

namespace shoal::train {

void write_whole(const std::string& path, const std::string& text) {
  const std::string aside = path + ".writing";
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(aside.c_str(), "wbe"),
                                                      &std::fclose);
  if (!out || std::fwrite(text.data(), 1, text.size(), out.get()) != text.size() ||
      std::fflush(out.get()) != 0)
    throw system_error(ErrorKind::kOutput, "run directory", "cannot write " + aside);
  if (std::rename(aside.c_str(), path.c_str()) != 0)
    throw system_error(ErrorKind::kOutput, "run directory", "cannot write " + path);
}

}  // namespace shoal::train
