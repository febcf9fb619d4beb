#include "shoal/data/hugging_face_tokenizer.h"

#include <gtest/gtest.h>

#include "shoal/data/dataset.h"
#include "shoal/data/prepare.h"
#include "tests/data/folder.h"
#include "tests/data/hugging_face_files.h"
#include "tests/error_text.h"

// That all tokens are those of Hugging Face's own program is the affair of tokenizers_oracle.py.
namespace shoal::data::hugging_face_tokenizer_test {
namespace {

using nlohmann::json;
using Ids = std::vector<std::uint32_t>;

std::shared_ptr<const Tokenizer> tokenizer_of(const json& root, const TokenizerFiles& more = {}) {
  TokenizerFiles files = more;
  files["tokenizer.json"] = root.dump();
  return hugging_face_tokenizer(files, "tokenizer.json");
}

std::uint32_t id_of(char byte) { return static_cast<unsigned char>(byte) + 1u; }

json added(std::uint32_t id, const std::string& content, bool normalized) {
  return {{"id", id}, {"content", content}, {"special", true}, {"normalized", normalized}};
}

TEST(HuggingFaceTokenizer, MergesByRankAndThenFromTheLeft) {
  // 257: " a", 258: "ab", 259: "aa", 260: "aab"
  const auto tokenizer =
      tokenizer_of(small_tokenizer_json({{" ", "a"}, {"a", "b"}, {"a", "a"}, {"aa", "b"}}));
  EXPECT_EQ(tokenizer->encode("aaa"), (Ids{259, id_of('a')})) << "the left pair of equal ones";
  EXPECT_EQ(tokenizer->encode("aab"), (Ids{id_of('a'), 258})) << "the earlier merge";
  EXPECT_EQ(tokenizer->encode("a ab"), (Ids{id_of('a'), 257, id_of('b')}));
  EXPECT_EQ(tokenizer->encode("a\na"), (Ids{id_of('a'), id_of('\n'), id_of('a')}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->vocab_size(), 261u);
  EXPECT_EQ(tokenizer->bytes_of(257), " a");
}

TEST(HuggingFaceTokenizer, WholeWordsComeBeforeMerges) {
  // 258 "bc" comes first, so that "abc" is never made by merges.
  json root = small_tokenizer_json({{"a", "b"}, {"b", "c"}, {"a", "bc"}});
  root["model"]["merges"] = {"b c", "a b"};
  EXPECT_EQ(tokenizer_of(root)->encode("abc"), (Ids{id_of('a'), 258}));
  root["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(root)->encode("abc"), Ids{259});
}

// Bytes that the vocabulary lacks are its unknown token, one each or one for a run of them.
TEST(HuggingFaceTokenizer, BytesWithoutATokenAreUnknown) {
  json root = small_tokenizer_json({{"a", "b"}});
  for (const char* byte : {"x", "y"}) root["model"]["vocab"].erase(byte);
  EXPECT_NE(error_text([&] {
              tokenizer_of(root)->encode("ax");
            }).find("the tokenizer has no token for byte 0x78"),
            std::string::npos);
  EXPECT_EQ(tokenizer_of(root)->encode("abz"), (Ids{257, id_of('z')}));
  root["model"]["unk_token"] = "u";
  EXPECT_EQ(tokenizer_of(root)->encode("xyabxax"),
            (Ids{id_of('u'), id_of('u'), 257, id_of('u'), id_of('a'), id_of('u')}));
  root["model"]["fuse_unk"] = true;
  EXPECT_EQ(tokenizer_of(root)->encode("xyabxax"),
            (Ids{id_of('u'), 257, id_of('u'), id_of('a'), id_of('u')}));
}

TEST(HuggingFaceTokenizer, AnyBytesSurvive) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json({{"\xff", "\xff"}, {"\xe2", "\x96"}}));
  for (const std::string& text :
       {std::string("\xff\xff\xff"), std::string("a\x80z"), std::string("\xe2\x96"),
        std::string("\xed\xa0\x80 \xc0\x80"), std::string("\0\n", 2), std::string("\xf0\x9f\x99")})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->encode("\xff\xff\xff"), (Ids{257, 256}));
}

TEST(HuggingFaceTokenizer, AddedTokensAreCutOutFirst) {
  json root = small_tokenizer_json({{"<", "|"}});
  for (const auto& token : {added(300, "<x>", false), added(301, "<x>y", false)})
    root["added_tokens"].push_back(token);
  const auto tokenizer = tokenizer_of(root);
  EXPECT_EQ(tokenizer->encode("a<x>yb<x>"), (Ids{id_of('a'), 301, id_of('b'), 300}))
      << "of two that begin alike the longer";
  EXPECT_EQ(tokenizer->encode("<|"), Ids{257});
  EXPECT_EQ(tokenizer->encode("a<|endoftext|>"), (Ids{id_of('a'), 0}));
  EXPECT_EQ(tokenizer->vocab_size(), 302u);
  EXPECT_EQ(tokenizer->bytes_of(301), "<x>y");
  EXPECT_EQ(tokenizer->bytes_of(299), "") << "an id without a token";
  EXPECT_EQ(tokenizer->bytes_of(0), "") << "the end of a document is no text";
}

TEST(HuggingFaceTokenizer, NormalizesWhatIsNoAddedToken) {
  json root = small_tokenizer_json({});
  root["normalizer"] = {{"type", "NFC"}};
  root["added_tokens"].push_back(added(300, "e\xcc\x81", false));
  root["added_tokens"].push_back(added(301, "o\xcc\x81", true));
  const auto tokenizer = tokenizer_of(root);
  EXPECT_EQ(tokenizer->encode("u\xcc\x81"), (Ids{id_of('\xc3'), id_of('\xba')}));
  EXPECT_EQ(tokenizer->encode("e\xcc\x81"), Ids{300}) << "looked for in the text itself";
  EXPECT_EQ(tokenizer->encode("\xc3\xb3"), Ids{301}) << "looked for in what was normalized";
}

TEST(HuggingFaceTokenizer, KnowsTheEndOfADocument) {
  json root = small_tokenizer_json({});
  root["added_tokens"].push_back(added(300, "<|im_end|>", false));
  const auto end = [&](const TokenizerFiles& files) {
    return tokenizer_of(root, files)->end_of_document();
  };
  EXPECT_EQ(end({}), 0u);
  EXPECT_EQ(end({{"tokenizer_config.json", R"({"eos_token": "<|im_end|>"})"}}), 300u);
  EXPECT_EQ(end({{"special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})"}}),
            300u);
  EXPECT_NE(error_text([&] {
              end({{"tokenizer_config.json", R"({"eos_token": "<no>"})"}});
            }).find("eos_token '<no>' is not in the vocabulary"),
            std::string::npos);
}

TEST(HuggingFaceTokenizer, PutsItsPrefixBeforeDocuments) {
  json root = small_tokenizer_json({});
  root["added_tokens"].push_back(added(300, "<s>", false));
  root["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {300}}, {"tokens", {"<s>"}}}}}}};
  const Folder folder;
  folder.write("model/tokenizer.json", root.dump());
  folder.write("text/a.txt", "xy");
  PrepareOptions options{.out = folder / "data", .inputs = {folder / "text"}};
  options.tokenizer = TokenizerKind::kGiven;
  options.given = open_tokenizer(folder / "model");
  options.validation_fraction = 0;
  const Manifest manifest = prepare(options).manifest;
  EXPECT_EQ(manifest.splits.at("train").bytes, 2u);
  const auto dataset = TokenDataset::open(folder / "data", "train");
  Ids tokens(dataset.tokens());
  dataset.copy(0, std::span(tokens));
  EXPECT_EQ(tokens, (Ids{300, id_of('x'), id_of('y'), 0}));
  EXPECT_EQ(dataset.tokenizer().checksum(), options.given->checksum());
  EXPECT_EQ(prepare(options).already_prepared, true);
  root["added_tokens"].push_back(added(301, "<t>", false));
  options.given = tokenizer_of(root);
  EXPECT_NE(error_text([&] { prepare(options); }).find("holds another dataset: tokenizer"),
            std::string::npos);
}

TEST(HuggingFaceTokenizer, SurvivesTheFile) {
  const json root = small_tokenizer_json({{"a", "b"}});
  const Folder folder;
  const TokenizerFiles files{{"tokenizer.json", root.dump()},
                             {"tokenizer_config.json", R"({"chat_template": "{{ messages }}"})"},
                             {"chat_template.jinja", "{{ messages }}\n"}};
  for (const auto& [name, text] : files) folder.write("model/" + name, text);
  const auto tokenizer = open_tokenizer(folder / "model");
  tokenizer->save(folder / "tokenizer.model");
  for (const std::string& path :
       {folder / "tokenizer.model", folder.path(), folder / "model/tokenizer.json"}) {
    const auto loaded = open_tokenizer(path);
    EXPECT_EQ(loaded->checksum(), tokenizer->checksum());
    EXPECT_EQ(loaded->name(), "hugging_face");
    EXPECT_EQ(loaded->encode("abc"), tokenizer->encode("abc"));
    EXPECT_EQ(loaded->hugging_face_files(), files) << "as they were";
  }
  const std::string saved = tokenizer->serialize();
  for (const std::string& damaged :
       {saved.substr(0, saved.size() - 1), saved + "../evil 1\nx", saved + "x",
        std::string("shoal-tokenizer 1 hugging_face\n"), saved + "a 99999999999999999999\n"}) {
    EXPECT_NE(error_text([&] { parse_tokenizer(damaged, "some/file"); }).find("some/file"),
              std::string::npos);
  }
}

TEST(HuggingFaceTokenizer, NamesWhatItDoesNotCarryOut) {
  const json sound = small_tokenizer_json({{"a", "b"}});
  const auto says = [&](const char* change, const std::string& words) {
    json root = sound;
    root.merge_patch(json::parse(change));
    const std::string said = error_text([&] { tokenizer_of(root); });
    EXPECT_NE(said.find(words), std::string::npos) << change << "\n" << said;
  };
  says(R"({"model": {"type": "Unigram"}})", "model Unigram is not supported");
  says(R"({"model": {"type": "WordPiece"}})", "model WordPiece is not supported");
  says(R"({"model": {"dropout": 0.1}})", "model.dropout is not supported");
  says(R"({"model": {"byte_fallback": true}})", "model.byte_fallback is not supported");
  says(R"({"model": {"end_of_word_suffix": "</w>"}})", "model.end_of_word_suffix is not");
  says(R"({"model": {"unk_token": "<unk>"}})", "model.unk_token \"<unk>\" is not in");
  says(R"({"model": {"merges": null}})", "model.merges is missing");
  says(R"({"model": {"merges": "a b"}})", "model.merges is missing");
  says(R"({"model": {"merges": ["a z"]}})", "the merge of 'a' and 'z' is not one");
  says(R"({"model": {"merges": ["a b c"]}})", "is no pair of entries");
  says(R"({"model": {"vocab": {"zz": 1}}})", "two entries have the id 1");
  says(R"({"model": {"vocab": {"zz": 99999999}}})", "has the id 99999999");
  says(R"({"model": null})", "no model");
  says(R"({"normalizer": {"type": "NFKC"}})", "normalizer NFKC is not supported");
  says(R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}})",
       "normalizer Lowercase is not supported");
  says(R"({"pre_tokenizer": {"type": "Whitespace"}})", "pre_tokenizer Whitespace at the end");
  says(R"({"pre_tokenizer": null})", "pre_tokenizer null is not supported");
  says(R"({"pre_tokenizer": {"add_prefix_space": true}})", "add_prefix_space is not supported");
  says(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"},
           {"type": "ByteLevel", "add_prefix_space": false}]}})",
       "pre_tokenizer Punctuation is not supported");
  says(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":
           {"Regex": "a"}, "behavior": "MergedWithNext"}, {"type": "ByteLevel",
           "add_prefix_space": false}]}})",
       "Split with behavior 'MergedWithNext' is not supported");
  says(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":
           {"Regex": "("}, "behavior": "Isolated"}, {"type": "ByteLevel",
           "add_prefix_space": false}]}})",
       "'(' is no regular expression");
  says(R"({"decoder": {"type": "Metaspace"}})", "decoder Metaspace is not supported");
  says(R"({"truncation": {"max_length": 5}})", "truncation is not supported");
  says(R"({"padding": {"strategy": "x"}})", "padding is not supported");
  says(R"({"post_processor": {"type": "BertProcessing"}})", "post_processor BertProcessing is not");
  says(R"({"added_tokens": [{"id": 3, "content": "<m>", "lstrip": true}]})", "lstrip of the added");
  says(R"({"added_tokens": [{"id": 3, "content": "ab"}]})", "has the id 3, and 257 in model.vocab");
  EXPECT_NE(error_text([&] {
              hugging_face_tokenizer({{"tokenizer.json", "{"}}, "it");
            }).find("it is no tokenizer.json"),
            std::string::npos);
}

TEST(HuggingFaceTokenizer, ALongWordTakesNotMuchLonger) {
  const auto tokenizer = tokenizer_of(small_tokenizer_json({{"a", "a"}, {"aa", "aa"}}));
  EXPECT_EQ(tokenizer->encode(std::string(400'000, 'a')).size(), 100'000u);
}

}  // namespace
}  // namespace shoal::data::hugging_face_tokenizer_test
