#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/data/byte_level_bpe.h"

namespace shoal::data {

/// A string that is cut out of a text before anything else and is one token.
struct AddedToken {
  std::uint32_t id = 0;
  std::string content;
  bool special = false;     ///< a sign of the format, such as the end of a text, and no text
  bool normalized = false;  ///< looked for in the normalized text, not in the text itself
};

/// The part of a Hugging Face tokenizer.json that Shoal carries out: byte-level BPE.
struct TokenizerJson {
  bool nfc = false;  ///< text is brought into Unicode's normalization form C
  /// Regular expressions that cut a text, one after the other: each cuts the pieces of those before
  /// it at the borders of its matches.
  std::vector<std::string> patterns;
  /// By id: the bytes that a token of the merges stands for; nothing for any other id.
  std::vector<std::string> pieces;
  /// Entries of the vocabulary that are not written as bytes, so that no merge makes them, and
  /// their text.
  std::map<std::uint32_t, std::string> other_entries;
  std::vector<BpeMerge> merges;  ///< by rank
  ByteLevelBpe::Options bpe;
  std::vector<AddedToken> added;
  std::vector<std::uint32_t> prefix;  ///< tokens that stand before every text
};

/// Reads the text of a tokenizer.json. Throws Error(data), which begins with `origin`, for text
/// that is no such file, and for every part that Shoal does not carry out, by its name: another
/// model than BPE, another normalizer than NFC, other pre-tokenizers than ByteLevel, Digits, Split
/// (isolated) and sequences of them, tokens behind a text, truncation, padding.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& origin);

}  // namespace shoal::data
