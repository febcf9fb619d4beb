#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/data/file.h"

namespace shoal::data {

/// The first 64 bytes of a token shard, little-endian. After it come, without gaps:
///
///     (documents + 1) x u64   the first token of each document; the last entry is `tokens`
///     (documents + 1) x u64   the first byte of each document's text; the last is `text_bytes`
///     tokens x u16 or u32     the documents one after another, each with an end-of-document token
///                             behind it
///
/// and nothing else. A document never crosses from one shard into the next.
struct ShardHeader {
  char magic[8];                  ///< "SHOALTOK"
  std::uint32_t version;          ///< 1
  std::uint32_t token_bytes;      ///< bytes of a token: 2 or 4
  std::uint64_t tokens;           ///< with the end-of-document tokens
  std::uint64_t documents;        ///< at least 1
  std::uint64_t text_bytes;       ///< bytes of the text that the tokens stand for
  std::uint64_t fingerprint;      ///< fingerprint of its dataset
  std::uint32_t tokenizer_crc32;  ///< checksum of the tokenizer's file
  std::uint32_t body_crc32;       ///< checksum of everything behind the header
  std::uint32_t reserved;         ///< 0
  std::uint32_t header_crc32;     ///< checksum of the bytes before this field
};
static_assert(sizeof(ShardHeader) == 64);

/// Gathers whole documents and writes them as one shard.
class ShardWriter {
 public:
  void add(std::span<const std::uint32_t> tokens, std::uint64_t text_bytes);
  std::uint64_t tokens() const { return tokens_.size(); }
  bool empty() const { return document_tokens_.size() == 1; }

  /// Writes the shard to `path`, whole or not at all, and starts an empty one. `token_bytes` is 2
  /// or 4. Throws Error(output).
  ShardHeader write(const std::string& path, std::uint32_t token_bytes, std::uint64_t fingerprint,
                    std::uint32_t tokenizer_crc32);

 private:
  std::vector<std::uint32_t> tokens_;
  std::vector<std::uint64_t> document_tokens_{0}, document_bytes_{0};
};

/// A shard mapped into memory.
class TokenShard {
 public:
  /// Throws Error(input missing) without the file and Error(data), which names the file and what is
  /// wrong, when it is cut short, damaged or of another version. The checksum of the body is
  /// compared only if `check_body`: it takes about a second per gigabyte.
  TokenShard(const std::string& path, bool check_body);

  const ShardHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  std::span<const std::uint64_t> document_tokens() const {
    return document_tokens_;
  }  // [documents + 1]
  std::span<const std::uint64_t> document_bytes() const {
    return document_bytes_;
  }  // [documents + 1]

  /// Writes tokens [start, start + out.size()), which must exist, to `out`.
  void copy(std::uint64_t start, std::span<std::int64_t> out) const;
  void copy(std::uint64_t start, std::span<std::uint32_t> out) const;

 private:
  void check_header() const;
  void check_documents() const;
  [[noreturn]] void damaged(const std::string& what) const;

  std::string path_;
  MappedFile file_;
  ShardHeader header_{};
  std::span<const std::uint64_t> document_tokens_, document_bytes_;
  const char* tokens_ = nullptr;
};

}  // namespace shoal::data
