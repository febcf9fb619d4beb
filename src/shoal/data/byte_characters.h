#pragma once

#include <array>
#include <string>
#include <string_view>

namespace shoal::data {

/// Bytes written as characters that no text tool gives a meaning, one character a byte (the table
/// of GPT-2): printable ASCII and Latin-1 stand for themselves, the other bytes, blanks and control
/// signs among them, are U+0100 and up in order.
class ByteCharacters {
 public:
  ByteCharacters();

  std::string_view operator[](unsigned char byte) const { return characters_[byte]; }
  std::string write(std::string_view bytes) const;
  /// Stores the bytes that `text` stands for. Returns false when it holds a character that stands
  /// for none.
  bool read(std::string_view text, std::string& bytes) const;

 private:
  std::array<std::string, 256> characters_;
  std::array<int, 512> byte_of_;  // by code point; -1: none
};

}  // namespace shoal::data
