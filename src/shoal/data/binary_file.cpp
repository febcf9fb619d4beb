#include "shoal/data/binary_file.h"

#include <algorithm>

#include "shoal/data/utf8.h"

namespace shoal::data {
namespace {

constexpr std::size_t kLookedAt = 8 << 10;

std::size_t bytes_outside_characters(std::string_view text) {
  std::size_t count = 0;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) ++count;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return count;
}

}  // namespace

std::string binary_reason(std::string_view content) {
  const std::string_view begin = content.substr(0, kLookedAt);
  if (begin.find('\0') != std::string_view::npos) return "NUL bytes";
  // The last character may be cut: three bytes are no tenth of 8 KiB, and a short file is whole.
  if (10 * bytes_outside_characters(begin) > begin.size()) return "not UTF-8";
  return "";
}

std::vector<BinaryFile> remove_binary_files(std::vector<Document>& documents) {
  std::vector<BinaryFile> removed;
  std::erase_if(documents, [&](const Document& document) {
    std::string reason = binary_reason(document.text);
    if (reason.empty()) return false;
    removed.push_back({document.name, std::move(reason), document.text.size()});
    return true;
  });
  return removed;
}

}  // namespace shoal::data
