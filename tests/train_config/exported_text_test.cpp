#include "shoal/train/config/exported_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/data/hugging_face_files.h"

namespace shoal::train::exported_text_test {
namespace {

TEST(ExportedText, FilesOfHuggingFaceStayAsTheyAre) {
  auto root = data::small_tokenizer_json({});
  root["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "begin"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"begin", {{"id", "begin"}, {"ids", {98}}, {"tokens", {"a"}}}}}}};
  const data::TokenizerFiles files{{"tokenizer.json", root.dump()},
                                   {"tokenizer_config.json", R"({"eos_token": "b"})"}};
  const auto text = folder_text(*data::hugging_face_tokenizer(files, "here"));
  EXPECT_EQ(text.files, files);
  EXPECT_EQ(text.begin, 98);
  EXPECT_TRUE(text.begins);
  EXPECT_EQ(text.end, 99);
}

TEST(ExportedText, BosTokenBeginsATextWhereNoneStandsBeforeAll) {
  for (const char* begin : {R"("c")", R"({"content": "c", "lstrip": false})"}) {
    const std::string config = std::string(R"({"eos_token": "b", "bos_token": )") + begin + "}";
    const data::TokenizerFiles files{{"tokenizer.json", data::small_tokenizer_json({}).dump()},
                                     {"tokenizer_config.json", config}};
    const auto text = folder_text(*data::hugging_face_tokenizer(files, "here"));
    EXPECT_EQ(text.begin, 100);
    EXPECT_FALSE(text.begins);
  }
}

TEST(ExportedText, ATokenizerAloneGetsAConfig) {
  const data::TokenizerFiles files{{"tokenizer.json", data::small_tokenizer_json({}).dump()}};
  const auto text = folder_text(*data::hugging_face_tokenizer(files, "here"));
  const auto config = nlohmann::json::parse(text.files.at("tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_FALSE(config.contains("bos_token"));
  EXPECT_EQ(text.begin, 0) << "what ends a document begins the next one";
  EXPECT_EQ(text.end, 0);
}

TEST(ExportedText, OurOwnHasNoFiles) {
  const auto text = folder_text(*data::byte_tokenizer());
  EXPECT_TRUE(text.files.empty());
  EXPECT_EQ(text.begin, 256);
  EXPECT_EQ(text.end, 256);
}

}  // namespace
}  // namespace shoal::train::exported_text_test
