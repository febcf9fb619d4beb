#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/data/tokenizer.h"

namespace shoal::data {

/// Counts how often each pre-token occurs in a text. The map is ordered, so that a tokenizer that
/// is trained on it does not depend on a hash function.
using PretokenCounts = std::map<std::string, std::uint64_t, std::less<>>;

/// Adds the pre-tokens of `text` to `counts`.
void count_pretokens(std::string_view text, PretokenCounts& counts);

/// Trains byte-level BPE (Sennrich et al., 2016; over bytes as in GPT-2) of `vocab_size` entries
/// with SentencePiece.
///
/// SentencePiece by itself is not lossless: it rewrites blanks to U+2581 and back, drops what is
/// not UTF-8, reserves strings such as `<unk>` and treats tabs and line ends specially. So it never
/// sees the text: each byte is written as one harmless character, pre-tokens are cut before it, and
/// every one of the 256 bytes is in the vocabulary, to which anything falls back. Nothing is
/// unknown, so the id that SentencePiece reserves for unknown pieces, 0, is the end of a document.
///
/// Equal counts give equal tokenizers. `vocab_size` is an upper bound: a small text may not
/// hold enough pairs. Throws Error(usage) when it is below 257 + 1 or above 1,000,000 and
/// Error(data) when there is no text.
std::shared_ptr<const Tokenizer> train_bpe(const PretokenCounts& counts, std::uint32_t vocab_size);

/// Returns the tokenizer in a serialised SentencePiece model. Throws Error(data) naming `origin`
/// when it is damaged or misses a byte.
std::shared_ptr<const Tokenizer> parse_bpe(std::string_view model, const std::string& origin);

}  // namespace shoal::data
