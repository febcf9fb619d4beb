// Each part of a tokenizer.json: what is read of it, and what is refused with which words.
#include "shoal/data/tokenizer_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/hugging_face_files.h"
#include "tests/error_text.h"

namespace shoal::data::tokenizer_json_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Patterns = std::vector<std::string>;

/// The small tokenizer with one merge, "a b" into 257, after a change.
json changed(const char* change) {
  json root = small_tokenizer_json({{"a", "b"}});
  root.merge_patch(json::parse(change));
  return root;
}

TokenizerJson read(const json& root) { return parse_tokenizer_json(root.dump(), "it"); }

void refuses(const json& root, const std::string& words) {
  EXPECT_THAT(error_text([&] { read(root); }), HasSubstr("it: " + words)) << words;
}

/// A Split at a pattern, before ByteLevel.
json split(const json& pattern) {
  const json at{{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}};
  const json level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {at, level}}};
}

TEST(TokenizerJson, HasTheVocabularyAndItsMerges) {
  const TokenizerJson found = read(changed(R"({"model": {"vocab": {"▁": 300}}})"));
  ASSERT_EQ(found.pieces.size(), 301u);
  EXPECT_EQ(found.pieces['a' + 1], "a");
  EXPECT_EQ(found.pieces[' ' + 1], " ");
  EXPECT_EQ(found.pieces[257], "ab");
  EXPECT_EQ(found.pieces[300], "") << "of characters that stand for no byte";
  ASSERT_EQ(found.other_entries.size(), 1u);
  EXPECT_EQ(found.other_entries.at(300), "▁");
  ASSERT_EQ(found.merges.size(), 1u);
  EXPECT_EQ(found.merges[0].left, 'a' + 1u);
  EXPECT_EQ(found.merges[0].right, 'b' + 1u);
  EXPECT_EQ(found.merges[0].result, 257u);
  EXPECT_FALSE(found.nfc || found.bpe.whole_words || found.bpe.fuse_unknown || found.bpe.unknown);
  EXPECT_TRUE(found.prefix.empty());
}

TEST(TokenizerJson, OptionsOfTheModel) {
  const TokenizerJson found = read(
      changed(R"({"model": {"type": null, "ignore_merges": true, "fuse_unk": true, "dropout": 0,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "byte_fallback": false, "unk_token": "b"}})"));
  EXPECT_TRUE(found.bpe.whole_words);
  EXPECT_TRUE(found.bpe.fuse_unknown);
  EXPECT_EQ(found.bpe.unknown, 'b' + 1u);
  refuses(changed(R"({"model": {"continuing_subword_prefix": "##"}})"),
          "model.continuing_subword_prefix is not supported");
  refuses(changed(R"({"model": {"ignore_merges": 1}})"), "'ignore_merges' is neither true nor");
  refuses(changed(R"({"model": {"fuse_unk": "no"}})"), "'fuse_unk' is neither true nor");
  refuses(changed(R"({"model": {"unk_token": 3}})"), "model.unk_token 3 is not in model.vocab");
  refuses(changed(R"({"model": {"type": 3}})"), "the model has no type");
  refuses(changed(R"({"model": {"vocab": null}})"), "model.vocab is missing");
  refuses(changed(R"({"model": {"vocab": 3}})"), "model.vocab is missing");
  refuses(changed(R"({"model": {"vocab": {"zz": -1}}})"), "'zz' has the id -1");
  refuses(changed(R"({"model": {"vocab": {"zz": 1048576}}})"),
          "'zz' has the id 1048576; allowed are 0 to 1048575");
  refuses(changed(R"({"model": {"vocab": {"▁": 300, "▂": 300}}})"), "two entries have the id 300");
  refuses(json::array(), "it is no tokenizer.json: no model");
  EXPECT_THAT(error_text([] { parse_tokenizer_json("{", "it"); }),
              HasSubstr("it is no tokenizer.json: "));
}

TEST(TokenizerJson, MergesAreTwoEntriesThatMakeAThird) {
  const TokenizerJson found =
      read(changed(R"({"model": {"merges": [["b", "a"], "a b"], "vocab": {"ba": 258}}})"));
  ASSERT_EQ(found.merges.size(), 2u);
  EXPECT_EQ(found.merges[0].result, 258u);
  EXPECT_EQ(found.merges[1].result, 257u);
  refuses(changed(R"({"model": {"merges": 3}})"), "model.merges is missing");
  for (const char* merge : {"3", "[]", R"(["a"])", R"(["a", 3])", R"([3, "a"])", R"("ab")",
                            R"(["a", "b", "c"])", R"("a b c")", "{}"}) {
    refuses(changed(fmt::format(R"({{"model": {{"merges": [{}]}}}})", merge).c_str()), "merge ");
  }
  for (const char* merge : {"zz b", "a zz", "b a"}) {
    refuses(changed(fmt::format(R"({{"model": {{"merges": ["{}"]}}}})", merge).c_str()),
            "the merge of ");
  }
}

TEST(TokenizerJson, AddedTokensAreNormalizedUnlessTheyAreSpecial) {
  json root = changed("{}");
  root["added_tokens"] = json::parse(R"([
      {"id": 300, "content": "<a>"},
      {"id": 301, "content": "<b>", "special": true},
      {"id": 302, "content": "<c>", "special": true, "normalized": true},
      {"id": 303, "content": "<d>", "normalized": false},
      {"id": 257, "content": "ab", "special": false}])");
  const TokenizerJson found = read(root);
  ASSERT_EQ(found.added.size(), 5u);
  const bool special[] = {false, true, true, false, false};
  const bool normalized[] = {true, false, true, false, true};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(found.added[i].special, special[i]) << i;
    EXPECT_EQ(found.added[i].normalized, normalized[i]) << i;
  }
  EXPECT_EQ(found.added[1].content, "<b>");
  EXPECT_EQ(found.added[1].id, 301u);
  root.erase("added_tokens");
  EXPECT_TRUE(read(root).added.empty());
  const auto refused = [&](const char* token, const std::string& words) {
    root["added_tokens"] = json::array({json::parse(token)});
    refuses(root, words);
  };
  refused(R"({"id": 300})", "an added token has no content");
  refused(R"({"id": 300, "content": ""})", "an added token has no content");
  refused(R"({"id": 300, "content": 3})", "an added token has no content");
  refused(R"({"content": "<a>"})", "the added token '<a>' has no id");
  refused(R"({"id": "3", "content": "<a>"})", "the added token '<a>' has the id");
  refused(R"({"id": 300, "content": "<a>", "rstrip": true})", "rstrip of the added token '<a>'");
  refused(R"({"id": 300, "content": "<a>", "single_word": true})",
          "single_word of the added token '<a>'");
  root["added_tokens"] = 3;
  refuses(root, "added_tokens is no list");
}

TEST(TokenizerJson, NormalizersAreNfcAlone) {
  EXPECT_TRUE(read(changed(R"({"normalizer": {"type": "NFC"}})")).nfc);
  EXPECT_TRUE(read(changed(R"({"normalizer": {"type": "Sequence",
                               "normalizers": [{"type": "NFC"}, {"type": "NFC"}]}})"))
                  .nfc);
  refuses(changed(R"({"normalizer": {"type": "Sequence", "normalizers": []}})"),
          "a Sequence has no normalizers");
  refuses(changed(R"({"normalizer": {"type": "Sequence", "normalizers": 3}})"),
          "a Sequence has no normalizers");
  refuses(changed(R"({"normalizer": {"type": "Sequence"}})"), "a Sequence has no normalizers");
  refuses(changed(R"({"normalizer": {"types": "NFC"}})"), "the normalizer has no type");
  // Nine lists in each other, and a tenth.
  json nested{{"type", "NFC"}};
  for (int depth = 0; depth < 9; ++depth)
    nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  json root = changed("{}");
  root["normalizer"] = nested;
  EXPECT_TRUE(read(root).nfc);
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  refuses(root, "a Sequence of normalizers is nested more than 8 deep");
}

TEST(TokenizerJson, PretokenizersAreAListOfPatterns) {
  const auto patterns = [](const json& part) {
    json root = changed("{}");
    root["pre_tokenizer"] = part;
    return read(root).patterns;
  };
  const json level{{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Patterns gpt2 = patterns(level);
  ASSERT_EQ(gpt2.size(), 1u) << "use_regex is true where nothing is said";
  EXPECT_EQ(gpt2[0],
            "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
  json without = level;
  without["use_regex"] = false;
  EXPECT_EQ(patterns(without), Patterns{});
  EXPECT_EQ(patterns(split({{"Regex", "a+"}})), Patterns{"a+"});
  EXPECT_EQ(patterns(split({{"String", "a.b "}})), Patterns{"a\\.b "}) << "the string itself";
  const json digits{{"type", "Digits"}};
  json each = digits;
  each["individual_digits"] = true;
  EXPECT_EQ(patterns({{"type", "Sequence"}, {"pretokenizers", {digits, each, without}}}),
            (Patterns{"\\p{N}+", "\\p{N}"}));
  const json inner{{"type", "Sequence"}, {"pretokenizers", {each, without}}};
  EXPECT_EQ(patterns({{"type", "Sequence"}, {"pretokenizers", {digits, inner}}}),
            (Patterns{"\\p{N}+", "\\p{N}"}));
  const auto refused = [](const json& part, const std::string& words) {
    json root = changed("{}");
    root["pre_tokenizer"] = part;
    refuses(root, words);
  };
  refused({{"type", "Sequence"}, {"pretokenizers", {level, without}}},
          "pre_tokenizer ByteLevel before others is not supported");
  refused({{"type", "Sequence"}, {"pretokenizers", {inner, without}}},
          "pre_tokenizer ByteLevel before others is not supported");
  refused(digits, "pre_tokenizer Digits at the end is not supported");
  refused({{"type", "ByteLevel"}}, "pre_tokenizer ByteLevel with add_prefix_space");
  refused({{"type", "Sequence"}, {"pretokenizers", json::array()}},
          "a Sequence has no pretokenizers");
  for (const json& none : {json(), json(3), json{{"Regex", 3}}, json{{"String", 3}}})
    refused(split(none), "the pre_tokenizer Split has no pattern");
  json unsaid = split({{"Regex", "a"}});
  unsaid["pretokenizers"][0].erase("behavior");
  refused(unsaid, "pre_tokenizer Split with behavior '' is not supported");
  unsaid["pretokenizers"][0]["behavior"] = 3;
  refused(unsaid, "pre_tokenizer Split with behavior '' is not supported");
}

TEST(TokenizerJson, TemplatesBeginATextAndNoMore) {
  const auto with = [](const char* single, const char* known) {
    json root = changed("{}");
    root["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", json::parse(single)},
                              {"special_tokens", json::parse(known)}};
    return root;
  };
  constexpr const char* kTwo = R"({"<s>": {"ids": [7, 8]}, "<t>": {"ids": [9]}})";
  constexpr const char* kText = R"({"Sequence": {"id": "A"}})";
  const auto steps = [&](const std::string& list) { return with(list.c_str(), kTwo); };
  const std::string s = R"({"SpecialToken": {"id": "<s>"}})";
  const std::string t = R"({"SpecialToken": {"id": "<t>"}})";
  using Ids = std::vector<std::uint32_t>;
  EXPECT_EQ(read(steps(fmt::format("[{}, {}, {}]", t, s, kText))).prefix, (Ids{9, 7, 8}));
  EXPECT_EQ(read(steps(fmt::format("[{}]", kText))).prefix, Ids{});
  refuses(steps(fmt::format("[{}, {}]", kText, s)),
          "TemplateProcessing with '<s>' behind the text is not supported");
  refuses(steps(fmt::format("[{}, {}]", kText, kText)),
          "TemplateProcessing that repeats the text is not supported");
  refuses(steps(fmt::format("[{}]", s)), "TemplateProcessing without the text is not supported");
  refuses(steps("3"), "TemplateProcessing has no single");
  for (const char* step : {"{}", R"({"SpecialToken": {}})", R"({"SpecialToken": {"id": 3}})"})
    refuses(steps(fmt::format("[{}, {}]", step, kText)), "TemplateProcessing has a step that is");
  const std::string both = fmt::format("[{}, {}]", s, kText);
  for (const char* known : {"null", "{}", R"({"<s>": {}})", R"({"<s>": {"ids": 3}})"})
    refuses(with(both.c_str(), known), "TemplateProcessing has no ids of '<s>'");
  refuses(with(both.c_str(), R"({"<s>": {"ids": [-1]}})"), "'<s>' has the id -1");
  json root = changed("{}");
  root["post_processor"] = {{"type", "ByteLevel"}};
  EXPECT_EQ(read(root).prefix, Ids{}) << "offsets are not of interest";
  root["post_processor"] = {
      {"type", "Sequence"},
      {"processors", {{{"type", "ByteLevel"}}, steps(both).at("post_processor")}}};
  EXPECT_EQ(read(root).prefix, (Ids{7, 8}));
  root["post_processor"] = {{"type", "Sequence"}};
  refuses(root, "a Sequence has no processors");
}

TEST(TokenizerJson, PartsOfOtherKindsAreRefused) {
  refuses(changed(R"({"decoder": null})"), "decoder null is not supported");
  refuses(changed(R"({"decoder": {"type": 3}})"), "decoder has no type");
  EXPECT_NO_THROW(read(changed(R"({"truncation": null, "padding": null})")));
}

}  // namespace
}  // namespace shoal::data::tokenizer_json_test
