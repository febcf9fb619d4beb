#include "shoal/data/pretoken.h"

#include <array>
#include <cstdint>

namespace shoal::data {
namespace {

enum Class : std::uint8_t { kControl, kSpace, kWord, kSign };

constexpr std::array<Class, 256> classes() {
  std::array<Class, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                        (byte >= '0' && byte <= '9') || byte == '_';
    if (letter || byte >= 0x80) {
      table[byte] = kWord;
    } else if (byte == ' ' || (byte >= '\t' && byte <= '\r')) {
      table[byte] = kSpace;
    } else {
      table[byte] = byte < 0x20 || byte == 0x7f ? kControl : kSign;
    }
  }
  return table;
}

constexpr auto kClasses = classes();

Class class_of(char c) { return kClasses[static_cast<unsigned char>(c)]; }

}  // namespace

std::string_view next_pretoken(std::string_view& bytes) {
  if (bytes.empty()) return {};
  const std::size_t limit = bytes.size() < kLongestPretoken ? bytes.size() : kLongestPretoken;
  // A pre-token is a run of bytes of one class; the two rules about blanks below are the exception.
  std::size_t end = 1;
  Class kind = class_of(bytes[0]);
  // A blank joins the word or sign behind it, so that "the" within a line is one token.
  if (bytes[0] == ' ' && limit > 1 && (class_of(bytes[1]) == kWord || class_of(bytes[1]) == kSign))
    kind = class_of(bytes[end++]);
  while (end < limit && class_of(bytes[end]) == kind) ++end;
  const bool word_follows =
      end < bytes.size() && (class_of(bytes[end]) == kWord || class_of(bytes[end]) == kSign);
  // A run of blanks leaves its last one to the word behind it: words look the same at any
  // indentation. A blank alone before a word belongs to it already, so that something is left.
  if (kind == kSpace && bytes[end - 1] == ' ' && word_follows) --end;
  const auto token = bytes.substr(0, end);
  bytes.remove_prefix(end);
  return token;
}

}  // namespace shoal::data
