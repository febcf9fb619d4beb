#include "shoal/data/tokenizer_json.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "shoal/base/check.h"
#include "shoal/data/byte_characters.h"

namespace shoal::data {
namespace {

using nlohmann::json;

// How the pre-tokenizer ByteLevel cuts a text with use_regex: the pattern of GPT-2.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// More ids than any tokenizer has; a damaged file must not ask for the memory of billions.
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 20;

/// Reads the parts of one file; every error names the file and the part.
class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(const std::string& origin) : origin_(origin) {}

  TokenizerJson read(const json& root) {
    if (!root.is_object() || !root.contains("model")) fail("it is no tokenizer.json: no model");
    for (const char* part : {"truncation", "padding"}) {
      if (has(root, part))
        unsupported(part, "Shoal cuts and fills sequences itself; set it to null");
    }
    read_vocabulary(root.at("model"));
    read_merges(root.at("model"));
    read_added(root);
    if (has(root, "normalizer")) read_normalizer(root.at("normalizer"));
    if (!has(root, "pre_tokenizer")) unsupported("pre_tokenizer null", "its text is not of bytes");
    read_pretokenizer(root.at("pre_tokenizer"), true);
    if (has(root, "post_processor")) read_post_processor(root.at("post_processor"));
    if (!has(root, "decoder")) unsupported("decoder null", "only ByteLevel gives back the text");
    const std::string decoder = type_of(root.at("decoder"), "decoder");
    if (decoder != "ByteLevel") unsupported("decoder " + decoder, "only ByteLevel is");
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kData, "tokenizer", fmt::format("{}: {}", origin_, what));
  }
  [[noreturn]] void unsupported(const std::string& part, const std::string& why) const {
    fail(fmt::format("{} is not supported: {}", part, why));
  }

  static bool has(const json& object, const char* key) {
    return object.is_object() && object.contains(key) && !object.at(key).is_null();
  }
  std::string type_of(const json& part, const std::string& where) const {
    if (!has(part, "type") || !part.at("type").is_string()) fail(where + " has no type");
    return part.at("type");
  }
  bool flag(const json& part, const char* key, bool otherwise) const {
    if (!has(part, key)) return otherwise;
    if (!part.at(key).is_boolean()) fail(fmt::format("'{}' is neither true nor false", key));
    return part.at(key);
  }
  std::uint32_t id_of(const json& value, const std::string& where) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMostTokens) {
      fail(fmt::format("{} has the id {}; allowed are 0 to {}", where, value.dump(),
                       kMostTokens - 1));
    }
    return value.get<std::uint32_t>();
  }

  void read_vocabulary(const json& model);
  void read_merges(const json& model);
  void read_added(const json& root);
  void read_normalizer(const json& part, int depth = 0);
  void read_pretokenizer(const json& part, bool last, int depth = 0);
  void read_split(const json& part);
  void read_post_processor(const json& part, int depth = 0);
  /// The parts in a Sequence. Throws for one that is empty or nested absurdly deep.
  const json& sequence(const json& part, const char* key, int depth) const;
  void read_template(const json& part);

  const std::string& origin_;
  std::unordered_map<std::string, std::uint32_t> ids_;  // of the vocabulary
  TokenizerJson result_;
};

void TokenizerJsonReader::read_vocabulary(const json& model) {
  // Old files leave the type out.
  const std::string type = has(model, "type") ? type_of(model, "the model") : "BPE";
  if (type != "BPE") unsupported("model " + type, "only byte-level BPE is");
  if (has(model, "dropout") && model.at("dropout") != 0.0)
    unsupported("model.dropout", "a text must always have the same tokens");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (has(model, key) && model.at(key) != "")
      unsupported(fmt::format("model.{}", key), "tokens of byte-level BPE have no marks");
  }
  if (flag(model, "byte_fallback", false))
    unsupported("model.byte_fallback", "tokens of byte-level BPE are bytes already");
  result_.bpe.whole_words = flag(model, "ignore_merges", false);
  result_.bpe.fuse_unknown = flag(model, "fuse_unk", false);
  if (!has(model, "vocab") || !model.at("vocab").is_object()) fail("model.vocab is missing");
  const ByteCharacters characters;
  for (const auto& [text, value] : model.at("vocab").items()) {
    const std::uint32_t id = id_of(value, fmt::format("'{}'", text));
    if (result_.pieces.size() <= id) result_.pieces.resize(id + 1);
    if (!result_.pieces[id].empty() || result_.other_entries.contains(id))
      fail(fmt::format("two entries have the id {}", id));
    if (!characters.read(text, result_.pieces[id])) {
      result_.pieces[id].clear();
      result_.other_entries[id] = text;
    }
    ids_[text] = id;
  }
  if (has(model, "unk_token")) {
    const json& unknown = model.at("unk_token");
    const auto found = unknown.is_string() ? ids_.find(unknown.get<std::string>()) : ids_.end();
    if (found == ids_.end())
      fail(fmt::format("model.unk_token {} is not in model.vocab", unknown.dump()));
    result_.bpe.unknown = found->second;
  }
}

void TokenizerJsonReader::read_merges(const json& model) {
  if (!has(model, "merges") || !model.at("merges").is_array()) fail("model.merges is missing");
  const auto add = [&](const std::string& left, const std::string& right) {
    const auto first = ids_.find(left);
    const auto second = ids_.find(right);
    const auto both = ids_.find(left + right);
    if (first == ids_.end() || second == ids_.end() || both == ids_.end())
      fail(fmt::format("the merge of '{}' and '{}' is not one of entries into one", left, right));
    result_.merges.push_back({first->second, second->second, both->second});
  };
  for (const json& merge : model.at("merges")) {
    // "a b" in older files, ["a", "b"] in newer ones.
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add(merge[0], merge[1]);
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t blank = text.find(' ');
    if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
      fail(fmt::format("merge {} is no pair of entries", merge.dump()));
    add(text.substr(0, blank), text.substr(blank + 1));
  }
}

void TokenizerJsonReader::read_added(const json& root) {
  if (!has(root, "added_tokens")) return;
  if (!root.at("added_tokens").is_array()) fail("added_tokens is no list");
  for (const json& token : root.at("added_tokens")) {
    if (!has(token, "content") || !token.at("content").is_string() || token.at("content") == "")
      fail("an added token has no content");
    AddedToken added;
    added.content = token.at("content");
    const std::string where = fmt::format("the added token '{}'", added.content);
    if (!has(token, "id")) fail(where + " has no id");
    added.id = id_of(token.at("id"), where);
    added.special = flag(token, "special", false);
    // The default of Hugging Face: what is no special token is looked for in normalized text.
    added.normalized = flag(token, "normalized", !added.special);
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (flag(token, key, false))
        unsupported(fmt::format("{} of {}", key, where), "text would be lost, or depend on more");
    }
    if (const auto same = ids_.find(added.content); same != ids_.end() && same->second != added.id)
      fail(fmt::format("{} has the id {}, and {} in model.vocab", where, added.id, same->second));
    result_.added.push_back(std::move(added));
  }
}

const json& TokenizerJsonReader::sequence(const json& part, const char* key, int depth) const {
  constexpr int kDeepest = 8;
  if (depth > kDeepest)
    fail(fmt::format("a Sequence of {} is nested more than {} deep", key, kDeepest));
  if (!has(part, key) || !part.at(key).is_array() || part.at(key).empty())
    fail(fmt::format("a Sequence has no {}", key));
  return part.at(key);
}

void TokenizerJsonReader::read_normalizer(const json& part, int depth) {
  const std::string type = type_of(part, "the normalizer");
  if (type == "Sequence") {
    for (const json& inner : sequence(part, "normalizers", depth))
      read_normalizer(inner, depth + 1);
    return;
  }
  if (type != "NFC") unsupported("normalizer " + type, "only NFC is");
  result_.nfc = true;
}

void TokenizerJsonReader::read_split(const json& part) {
  const std::string behavior = has(part, "behavior") && part.at("behavior").is_string()
                                   ? part.at("behavior").get<std::string>()
                                   : "";
  if (behavior != "Isolated") {
    unsupported(fmt::format("pre_tokenizer Split with behavior '{}'", behavior),
                "only Isolated is");
  }
  // `invert` exchanges matches and what lies between them; both are pieces.
  const json pattern = has(part, "pattern") ? part.at("pattern") : json();
  if (has(pattern, "Regex") && pattern.at("Regex").is_string()) {
    result_.patterns.push_back(pattern.at("Regex"));
  } else if (has(pattern, "String") && pattern.at("String").is_string()) {
    std::string escaped;
    for (const char c : pattern.at("String").get<std::string>()) {
      const bool sign = std::ispunct(static_cast<unsigned char>(c)) != 0;
      escaped += sign ? std::string("\\") + c : std::string(1, c);
    }
    result_.patterns.push_back(escaped);
  } else {
    fail("the pre_tokenizer Split has no pattern");
  }
}

/// `last`: nothing follows, so the pieces become bytes here.
void TokenizerJsonReader::read_pretokenizer(const json& part, bool last, int depth) {
  const std::string type = type_of(part, "the pre_tokenizer");
  if (type == "Sequence") {
    const json& all = sequence(part, "pretokenizers", depth);
    for (std::size_t i = 0; i < all.size(); ++i)
      read_pretokenizer(all[i], last && i + 1 == all.size(), depth + 1);
  } else if (last != (type == "ByteLevel")) {
    unsupported(fmt::format("pre_tokenizer {}{}", type, last ? " at the end" : " before others"),
                "ByteLevel must be the last, and only there");
  } else if (type == "ByteLevel") {
    if (flag(part, "add_prefix_space", true))
      unsupported("pre_tokenizer ByteLevel with add_prefix_space", "it changes the text");
    if (flag(part, "use_regex", true)) result_.patterns.emplace_back(kGpt2Pattern);
  } else if (type == "Digits") {
    result_.patterns.emplace_back(flag(part, "individual_digits", false) ? R"(\p{N})"
                                                                         : R"(\p{N}+)");
  } else if (type == "Split") {
    read_split(part);
  } else {
    unsupported("pre_tokenizer " + type, "only ByteLevel, Digits, Split and Sequence are");
  }
}

void TokenizerJsonReader::read_post_processor(const json& part, int depth) {
  const std::string type = type_of(part, "the post_processor");
  if (type == "Sequence") {
    for (const json& inner : sequence(part, "processors", depth))
      read_post_processor(inner, depth + 1);
  } else if (type == "TemplateProcessing") {
    read_template(part);
  } else if (type != "ByteLevel") {  // which moves offsets, not tokens
    unsupported("post_processor " + type, "only ByteLevel, TemplateProcessing and Sequence are");
  }
}

void TokenizerJsonReader::read_template(const json& part) {
  if (!has(part, "single") || !part.at("single").is_array())
    fail("TemplateProcessing has no single");
  bool text_seen = false;
  for (const json& step : part.at("single")) {
    if (has(step, "Sequence")) {
      if (text_seen) unsupported("TemplateProcessing that repeats the text", "it stands once");
      text_seen = true;
      continue;
    }
    const json token = has(step, "SpecialToken") ? step.at("SpecialToken") : json();
    if (!has(token, "id") || !token.at("id").is_string())
      fail("TemplateProcessing has a step that is neither Sequence nor SpecialToken");
    const std::string name = token.at("id");
    if (text_seen) {
      unsupported(fmt::format("TemplateProcessing with '{}' behind the text", name),
                  "a prompt would end there");
    }
    const json known = has(part, "special_tokens") ? part.at("special_tokens") : json();
    if (!has(known, name.c_str()) || !has(known.at(name), "ids") ||
        !known.at(name).at("ids").is_array())
      fail(fmt::format("TemplateProcessing has no ids of '{}'", name));
    for (const json& id : known.at(name).at("ids"))
      result_.prefix.push_back(id_of(id, fmt::format("'{}'", name)));
  }
  if (!text_seen)
    unsupported("TemplateProcessing without the text", "there is nothing to train on");
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& origin) {
  try {
    return TokenizerJsonReader(origin).read(json::parse(text));
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kData, "tokenizer",
                fmt::format("{} is no tokenizer.json: {}", origin, error.what()));
  }
}

}  // namespace shoal::data
