#include "shoal/data/binary_file.h"

#include <algorithm>

namespace shoal::data {
namespace {

constexpr std::size_t kLookedAt = 8 << 10;

/// Returns the length of the UTF-8 character at the start of `text`; 0: it does not begin with one.
/// Overlong forms and surrogates count as characters: they are rare and no sign of a binary file.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  std::size_t length = 1;
  if (first >= 0x80) {
    if (first < 0xc2 || first > 0xf4) return 0;
    length = 2 + static_cast<std::size_t>(first >= 0xe0) + static_cast<std::size_t>(first >= 0xf0);
  }
  if (length > text.size()) return 0;
  const auto goes_on = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; };
  return std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(length), goes_on)
             ? length
             : 0;
}

std::size_t bytes_outside_characters(std::string_view text) {
  std::size_t count = 0;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
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
