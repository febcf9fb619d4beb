#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/data/shard.h"
#include "shoal/data/tokenizer.h"

namespace shoal::data {

/// Says how much of a dataset is checked when it is opened.
enum class Check {
  kHeaders,  ///< sizes and header checksums: instant
  kBodies,   ///< every checksum: about a second per gigabyte
};

/// One split of a prepared dataset: a sequence of tokens, mapped from its shards. Reading is
/// thread-safe. Movable.
class TokenDataset {
 public:
  /// Opens `split` ("train" or "validation") of the dataset in `folder`. Throws Error(input
  /// missing) when the folder or a file of it is not there, and Error(data), which names the file
  /// and what is wrong, when one is damaged, does not belong to the manifest, or the split is
  /// unknown or empty.
  static TokenDataset open(const std::string& folder, const std::string& split,
                           Check check = Check::kBodies);

  const std::string& name() const { return name_; }        ///< folder and split, for messages
  std::uint64_t tokens() const { return begins_.back(); }  ///< with the end-of-document tokens
  std::uint64_t bytes() const {
    return bytes_;
  }  ///< bytes of text that the tokens stand for, for bits per byte
  std::uint32_t vocab_size() const { return tokenizer_->vocab_size(); }
  std::uint64_t fingerprint() const {
    return fingerprint_;
  }  ///< the same for the same data, whatever the folder is called
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  /// Writes tokens [start, start + out.size()) to `out`. Throws Error(usage) when they do not
  /// exist.
  void copy(std::uint64_t start, std::span<std::int64_t> out) const;
  void copy(std::uint64_t start, std::span<std::uint32_t> out) const;

  /// Returns the number of text bytes that tokens [start, start + count) stand for.
  std::uint64_t bytes_of(std::uint64_t start, std::uint64_t count) const;

  std::uint64_t documents() const { return document_begins_.size() - 1; }
  /// Returns the first token of each document; the last entry is tokens(). Each document ends with
  /// an end-of-document token.
  std::span<const std::uint64_t> document_begins() const {
    return document_begins_;
  }                                                                 // [documents + 1]
  const std::vector<std::string>& files() const { return files_; }  // [documents]

 private:
  TokenDataset() = default;
  template <class T>
  void copy_across(std::uint64_t start, std::span<T> out) const;

  std::string name_;
  std::vector<TokenShard> shards_;
  std::vector<std::uint64_t> begins_{0};           // of each shard, in tokens, and the end
  std::vector<std::uint64_t> document_begins_{0};  // of each document, in tokens, and the end
  std::vector<std::string> files_;
  std::uint64_t bytes_ = 0, fingerprint_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace shoal::data
