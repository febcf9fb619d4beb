#include "shoal/train/generated_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace shoal::train::generated_text_test {
namespace {

// Tokens of bytes: 256 ends a document. 0xc3 is half of a character.
GeneratedText text() {
  return {"a\"",
          {'a', '"'},
          {{'b', std::log(0.5), {{'b', std::log(0.5)}, {256, std::log(0.25)}}},
           {0xc3, std::log(0.125), {{'\n', std::log(0.75)}, {0xc3, std::log(0.125)}}}}};
}

TEST(GeneratedText, AsJson) {
  const auto root = nlohmann::json::parse(to_json(text(), *data::byte_tokenizer()));
  EXPECT_EQ(root["prompt"], "a\"");
  EXPECT_EQ(root["prompt_tokens"], (nlohmann::json{97, 34}));
  EXPECT_EQ(root["text"], "a\"b\ufffd");
  ASSERT_EQ(root["tokens"].size(), 2u);
  const auto& first = root["tokens"][0];
  EXPECT_EQ(first["token"], 98);
  EXPECT_EQ(first["text"], "b");
  EXPECT_EQ(first["log_probability"], std::log(0.5));
  ASSERT_EQ(first["most_probable"].size(), 2u);
  EXPECT_EQ(first["most_probable"][1]["token"], 256);
  EXPECT_EQ(first["most_probable"][1]["text"], "");
  EXPECT_EQ(first["most_probable"][1]["log_probability"], std::log(0.25));
  EXPECT_EQ(root["tokens"][1]["text"], "\ufffd");
}

TEST(GeneratedText, AsATable) {
  EXPECT_EQ(probability_table(text(), *data::byte_tokenizer()),
            "token  chosen      most probable\n"
            "    1  \"b\" 0.5000  \"b\" 0.5000  <256> 0.2500\n"
            "    2  \"\ufffd\" 0.1250  \"\\n\" 0.7500  \"\ufffd\" 0.1250\n");
}

TEST(GeneratedText, HasTheNumbersOfItsTokens) {
  EXPECT_EQ(text().ids(), (std::vector<std::uint32_t>{'b', 0xc3}));
}

}  // namespace
}  // namespace shoal::train::generated_text_test
