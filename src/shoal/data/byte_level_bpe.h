#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shoal::data {

/// Two tokens that become one.
struct BpeMerge {
  std::uint32_t left, right, result;
};

struct BpeSymbol;

/// Byte-pair encoding by a list of merges (Sennrich et al., 2016; over bytes as in GPT-2), with the
/// tie-breaks of Hugging Face's tokenizers. Immutable: any number of threads may encode.
class ByteLevelBpe {
 public:
  struct Options {
    /// A word that is a token is that token whatever the merges make of it (`ignore_merges`).
    bool whole_words = false;
    /// Stands for a byte that has no token (`unk_token`); one for a run of them with
    /// `fuse_unknown`.
    std::optional<std::uint32_t> unknown;
    bool fuse_unknown = false;
  };

  /// `pieces` has the bytes that each token stands for, by id, and nothing where an id is no token
  /// of the merges. Earlier merges come first.
  ByteLevelBpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges,
               const Options& options);

  /// Appends the tokens of one pre-token. O(n log n) in its bytes. Throws Error(data) for a byte
  /// without a token where there is no token for the unknown.
  void encode(std::string_view word, std::vector<std::uint32_t>& ids) const;

 private:
  std::vector<BpeSymbol> symbols_of(std::string_view word) const;

  struct RankedMerge {
    std::uint32_t rank, result;
  };
  const RankedMerge* merge_of(std::uint32_t left, std::uint32_t right) const {
    const auto found = merges_.find(std::uint64_t{left} << 32 | right);
    return found == merges_.end() ? nullptr : &found->second;
  }

  Options options_;
  std::array<std::int64_t, 256> token_of_byte_;            // -1: none
  std::unordered_map<std::uint64_t, RankedMerge> merges_;  // by both ids
  std::unordered_map<std::string, std::uint32_t> words_;
};

}  // namespace shoal::data
