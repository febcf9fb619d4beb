#pragma once

#include <string>
#include <utility>
#include <vector>

namespace shoal::data {

inline std::string varint(std::size_t value) {
  std::string bytes;
  for (; value >= 128; value /= 128) bytes += static_cast<char>(value % 128 + 128);
  return bytes + static_cast<char>(value);
}

/// An entry of a serialised SentencePiece model as a field of it: number 1, of which number 1 is
/// the text and number 2 the score, a float.
inline std::string entry(const std::string& text) {
  const std::string fields =
      "\x0a" + varint(text.size()) + text + "\x15" + std::string("\0\0\xc8\xc2", 4);
  return "\x0a" + varint(fields.size()) + fields;
}

/// `count` entries of five letters each, which no model has that was trained on code.
inline std::string made_up_entries(std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = "q";
    for (std::size_t rest = i, k = 0; k < 4; ++k, rest /= 26)
      text += static_cast<char>('a' + rest % 26);
    all += entry(text);
  }
  return all;
}

/// The fields of a serialised SentencePiece model, all of which have a length.
inline std::vector<std::string> fields_of_model(const std::string& model) {
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < model.size();) {
    const std::size_t begin = at++;
    std::size_t length = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(model[at++]);
      length += static_cast<std::size_t>(byte % 128) << shift;
      if (byte < 128) break;
    }
    at += length;
    fields.push_back(model.substr(begin, at - begin));
  }
  return fields;
}

}  // namespace shoal::data
