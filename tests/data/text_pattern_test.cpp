#include "shoal/data/text_pattern.h"

#include <gtest/gtest.h>

#include <string>

#include "shoal/base/error.h"

namespace shoal::data::text_pattern_test {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const std::string& pattern, const std::string& text) {
  std::vector<std::string_view> views{"before"};
  TextPattern(pattern, "it").split(text, views);
  EXPECT_EQ(views[0], "before") << "pieces are appended";
  return {views.begin() + 1, views.end()};
}

TEST(TextPattern, MatchesAndWhatLiesBetweenThemArePieces) {
  EXPECT_EQ(split("[0-9]+", "a1b22c"), (Pieces{"a", "1", "b", "22", "c"}));
  EXPECT_EQ(split("[0-9]", "12a"), (Pieces{"1", "2", "a"}));
  EXPECT_EQ(split("[0-9]+", "abc"), Pieces{"abc"});
  EXPECT_EQ(split("[0-9]+", "7"), Pieces{"7"});
  EXPECT_EQ(split("\\p{L}+", "\xc3\xa9t\xc3\xa9 \xe5\xa4\xa7"),
            (Pieces{"\xc3\xa9t\xc3\xa9", " ", "\xe5\xa4\xa7"}));
  EXPECT_EQ(split("[0-9]+", ""), Pieces{});
}

// A match of nothing is a border alone, and never one within a character.
TEST(TextPattern, EmptyMatchesAreBorders) {
  EXPECT_EQ(split("(?=b)", "abab"), (Pieces{"a", "ba", "b"}));
  EXPECT_EQ(split("x*", "axb"), (Pieces{"a", "x", "b"}));
  EXPECT_EQ(split("x*",
                  "\xc3\xa9"
                  "a\xe5\xa4\xa7"),
            (Pieces{"\xc3\xa9", "a", "\xe5\xa4\xa7"}));
  EXPECT_EQ(split("x*", ""), Pieces{});
  EXPECT_EQ(split("$", "ab"), Pieces{"ab"});
}

TEST(TextPattern, WhatIsNoPatternIsNamed) {
  try {
    const TextPattern pattern("(", "it");
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(error.message().find("it: '(' is no regular expression: "), 0u) << error.message();
  }
}

}  // namespace
}  // namespace shoal::data::text_pattern_test
