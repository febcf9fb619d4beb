#include "shoal/base/file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "shoal/base/system_error.h"

namespace shoal {

std::optional<std::string> read_text(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 64 << 10> part;
  for (;;) {
    const std::size_t bytes = std::fread(part.data(), 1, part.size(), file);
    if (bytes == 0) break;
    text.append(part.data(), bytes);
  }
  // A folder can be opened and not read.
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return std::nullopt;
  return text;
}

void replace_text(const std::string& path, std::string_view text, const std::string& operation) {
  // The process number keeps writers of different processes apart.
  const std::string aside = fmt::format("{}.{}.new", path, ::getpid());
  std::FILE* const file = std::fopen(aside.c_str(), "wbe");
  bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  // fclose writes what is still buffered, so its result counts too.
  if (file) written = std::fclose(file) == 0 && written;
  // rename() replaces the file at once: a reader sees the old text or the new one. Nothing is
  // flushed to the disk here; data and checkpoints, which must survive a power failure, have
  // writers that do.
  if (written && std::rename(aside.c_str(), path.c_str()) == 0) return;
  const Error error = system_error(ErrorKind::kOutput, operation, "cannot write " + path);
  ::unlink(aside.c_str());
  throw error;
}

}  // namespace shoal
