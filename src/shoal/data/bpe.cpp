#include "shoal/data/bpe.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "shoal/base/check.h"
#include "shoal/data/byte_characters.h"
#include "shoal/data/pretoken.h"
#include "shoal/data/pretoken_cache.h"

namespace shoal::data {
namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(std::string model, const std::string& origin) : model_(std::move(model)) {
    const auto fail = [&](const std::string& why) {
      throw Error(ErrorKind::kData, "tokenizer", fmt::format("{}: {}", origin, why));
    };
    if (const auto status = pieces_.LoadFromSerializedProto(model_); !status.ok())
      fail("not a SentencePiece model: " + status.ToString());
    // Entry 0 is the end of a document and stands for no bytes. Every other entry must stand for
    // some, and every single byte must have one: then any text can be encoded.
    bytes_.resize(pieces_.GetPieceSize());
    std::array<bool, 256> present{};
    for (int id = 1; id < pieces_.GetPieceSize(); ++id) {
      if (!characters_.read(pieces_.IdToPiece(id), bytes_[id]) || bytes_[id].empty())
        fail(fmt::format("entry {} stands for no bytes", id));
      if (bytes_[id].size() == 1) present[static_cast<unsigned char>(bytes_[id][0])] = true;
    }
    if (pieces_.unk_id() != 0) fail("entry 0 is not the end of a document");
    if (const auto absent = std::find(present.begin(), present.end(), false);
        absent != present.end())
      fail(fmt::format("no entry for byte {}", absent - present.begin()));
  }

  std::string name() const override { return "bpe"; }
  std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(bytes_.size()); }
  std::uint32_t end_of_document() const override { return 0; }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const override {
    // Tokens never cross the border of a pre-token, so each is encoded by itself, and most are
    // remembered.
    while (!text.empty()) {
      const std::string_view word = next_pretoken(text);
      if (!cache_.find(word, ids)) encode_word(word, ids);
    }
  }

  std::string_view bytes_of(std::uint32_t id) const override {
    SHOAL_USER_CHECK(id < vocab_size(), "decode", "token {} is not in a vocabulary of {}", id,
                     vocab_size());
    return bytes_[id];
  }

  std::string serialize() const override { return "shoal-tokenizer 1 bpe\n" + model_; }

 private:
  void encode_word(std::string_view word, std::vector<std::uint32_t>& ids) const {
    std::vector<int> found;
    const auto status = pieces_.Encode(characters_.write(word), &found);
    SHOAL_CHECK(status.ok(), "{}", status.ToString());
    const std::vector<std::uint32_t> tokens(found.begin(), found.end());
    // Losslessness is checked for every new pre-token: a silent mistake of the library would spoil
    // a whole corpus. The cache makes it cheap.
    std::string joined;
    for (const std::uint32_t id : tokens) joined += bytes_[id];
    SHOAL_CHECK(joined == word, "the tokens of a pre-token of {} bytes stand for {} other bytes",
                word.size(), joined.size());
    cache_.remember(word, tokens);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }

  const std::string model_;
  const ByteCharacters characters_;
  sentencepiece::SentencePieceProcessor pieces_;
  std::vector<std::string> bytes_;  // by id
  mutable PretokenCache cache_;
};

/// Hands SentencePiece `word<TAB>count` lines.
class CountedWords final : public sentencepiece::SentenceIterator {
 public:
  explicit CountedWords(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  bool done() const override { return next_ >= lines_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return lines_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  std::size_t next_ = 0;
};

std::vector<std::string> training_lines(const PretokenCounts& counts) {
  const ByteCharacters characters;
  std::vector<std::string> lines;
  // Bytes are written as harmless characters, so no word holds a tab or a line end.
  for (const auto& [word, count] : counts)
    lines.push_back(fmt::format("{}\t{}", characters.write(word), count));
  // Every byte occurs, so every byte gets an entry. (The option required_chars aborts in
  // SentencePiece 0.1.97 for one that does not.)
  for (int byte = 0; byte < 256; ++byte)
    lines.push_back(fmt::format("{}\t1", characters[static_cast<unsigned char>(byte)]));
  return lines;
}

}  // namespace

void count_pretokens(std::string_view text, PretokenCounts& counts) {
  std::unordered_map<std::string_view, std::uint64_t> seen;
  // Views into the text first: a string is made once for each different word, not for each word.
  while (!text.empty()) ++seen[next_pretoken(text)];
  for (const auto& [word, count] : seen) {
    const auto found = counts.lower_bound(word);
    if (found != counts.end() && found->first == word) {
      found->second += count;
    } else {
      counts.emplace_hint(found, word, count);
    }
  }
}

std::shared_ptr<const Tokenizer> train_bpe(const PretokenCounts& counts, std::uint32_t vocab_size) {
  SHOAL_USER_CHECK(vocab_size >= 258 && vocab_size <= 1'000'000, "tokenizer",
                   "vocabulary of {} entries; allowed are 258 to 1000000", vocab_size);
  if (counts.empty()) throw Error(ErrorKind::kData, "tokenizer", "there is no text to train on");
  CountedWords words(training_lines(counts));
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {
          {"model_type", "bpe"},
          {"vocab_size", fmt::to_string(vocab_size)},
          // a small text may not hold as many pairs
          {"hard_vocab_limit", "false"},
          // words with their counts: the text itself is never seen
          {"input_format", "tsv"},
          {"character_coverage", "1.0"},
          {"unk_id", "0"},
          {"unk_piece", "<|endofdocument|>"},
          {"bos_id", "-1"},
          {"eos_id", "-1"},
          {"pad_id", "-1"},
          // The library must not touch the text: no Unicode normalisation, no blank in front, no
          // blanks merged, and no cuts of its own beside those of next_pretoken.
          {"normalization_rule_name", "identity"},
          {"add_dummy_prefix", "false"},
          {"remove_extra_whitespaces", "false"},
          {"split_by_whitespace", "false"},
          {"split_by_unicode_script", "false"},
          {"split_by_number", "false"},
          {"max_sentencepiece_length", "32"},
          // one thread: equal counts give equal tokenizers
          {"num_threads", "1"},
          {"minloglevel", "2"},
      },
      &words, &model);
  if (!status.ok()) {
    throw Error(ErrorKind::kData, "tokenizer",
                "SentencePiece could not train: " + status.ToString());
  }
  return parse_bpe(model, "the model just trained");
}

std::shared_ptr<const Tokenizer> parse_bpe(std::string_view model, const std::string& origin) {
  return std::make_shared<BpeTokenizer>(std::string(model), origin);
}

}  // namespace shoal::data
