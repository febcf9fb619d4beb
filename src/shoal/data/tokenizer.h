#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::data {

/// Turns bytes into tokens and back without loss: `decode(encode(text)) == text` for any bytes,
/// valid UTF-8 or not. A token stands for a fixed string of bytes, so decoding is joining. One id,
/// `end_of_document()`, is no text; encode never returns it. Immutable after construction: any
/// number of threads may encode and decode.
///
/// Tokenizers of Hugging Face promise less where their own rules do: some normalize the text, and a
/// text that spells a special token, the end of a document among them, has that token.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;  ///< "byte", "bpe" or "hugging_face"
  virtual std::uint32_t vocab_size() const = 0;
  virtual std::uint32_t end_of_document() const = 0;
  /// Appends the tokens of `text` to `ids`.
  virtual void encode(std::string_view text, std::vector<std::uint32_t>& ids) const = 0;
  /// Returns the bytes of one token; empty for end_of_document() and for those of prefix(). Throws
  /// Error(usage) when `id` >= vocab_size().
  virtual std::string_view bytes_of(std::uint32_t id) const = 0;
  /// Returns the tokens that stand before every document and prompt, such as Llama's begin of text.
  virtual std::vector<std::uint32_t> prefix() const { return {}; }
  /// Returns the files of a Hugging Face folder that describe it, name -> content; nothing for a
  /// tokenizer that has no such files.
  virtual std::map<std::string, std::string> hugging_face_files() const { return {}; }
  /// Returns the tokenizer as the text of a file: a line `shoal-tokenizer 1 <name>`, then the data
  /// of its kind.
  virtual std::string serialize() const = 0;

  std::vector<std::uint32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::uint32_t>& ids) const;
  std::uint32_t checksum() const;  ///< CRC-32 of serialize()
  void save(const std::string& path) const;
};

/// Tells whether every token stands for the same bytes in both.
bool same_vocabulary(const Tokenizer& first, const Tokenizer& second);

/// Reads what `serialize` wrote; `origin` (a path) goes into errors. Throws Error(data) for text
/// that is no tokenizer or a damaged one.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view serialized,
                                                 const std::string& origin);

/// Reads a file that `save` wrote. Throws Error(input missing) when it is not there, Error(data) as
/// parse_tokenizer does.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

/// Returns the tokenizer with one token a byte, in which 256 is the end of a document. It needs no
/// training.
std::shared_ptr<const Tokenizer> byte_tokenizer();

}  // namespace shoal::data
