#include "shoal/data/byte_characters.h"

namespace shoal::data {
namespace {

bool stands_for_itself(int byte) {
  return (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad && byte <= 0xff);
}

std::string utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

}  // namespace

ByteCharacters::ByteCharacters() {
  byte_of_.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = stands_for_itself(byte) ? byte : next++;
    characters_[byte] = utf8(code_point);
    byte_of_[code_point] = byte;
  }
}

std::string ByteCharacters::write(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) text += characters_[static_cast<unsigned char>(byte)];
  return text;
}

bool ByteCharacters::read(std::string_view text, std::string& bytes) const {
  bytes.clear();
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = first < 0x80 ? 1 : 2;
    if (length > text.size()) return false;
    // All code points are below U+0200, so two bytes of UTF-8 suffice; what is encoded otherwise is
    // found by writing it again.
    const int code_point = length == 1 ? first : (first & 0x1f) << 6 | (text[1] & 0x3f);
    if (code_point >= 512 || byte_of_[code_point] < 0 || utf8(code_point) != text.substr(0, length))
      return false;
    bytes += static_cast<char>(byte_of_[code_point]);
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace shoal::data
