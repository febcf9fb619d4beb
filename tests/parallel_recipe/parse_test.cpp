#include "shoal/parallel/recipe/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace shoal::parallel::parse_test {
namespace {

TEST(ParseRule, ReadsWhatARuleSays) {
  const Rule rule =
      parse_rule("blocks.*.mlp.up: weight shard(0), bias shard(-1), output shard(-1)");
  EXPECT_EQ(rule.module, "blocks.*.mlp.up");
  EXPECT_EQ(rule.parameters.at("weight"), Placement::shard(0));
  EXPECT_EQ(rule.parameters.at("bias"), Placement::shard(-1));
  EXPECT_FALSE(rule.input);
  EXPECT_EQ(rule.output, Boundary::kFeatures);
  const Rule other = parse_rule(
      " head.norm :input stream along tp,output  replicate,weight "
      "replicate along tp ");
  EXPECT_EQ(other.input, Boundary::kStream);
  EXPECT_EQ(other.output, Boundary::kReplicate);
  EXPECT_EQ(other.parameters.at("weight"), Placement::replicate());
  EXPECT_EQ(parse_rule("a: output partial").output, Boundary::kPartial);
}

TEST(ParseRule, WhatIsWrittenIsReadBack) {
  for (const char* text :
       {"blocks.*.mlp.up: weight shard(0), bias shard(0), output shard(-1)",
        "head.output: input stream, weight replicate", "*.out: weight shard(1), output partial"}) {
    EXPECT_EQ(text_of(parse_rule(text)), text);
    EXPECT_EQ(parse_rule(text_of(parse_rule(text))), parse_rule(text));
  }
}

TEST(ParseRule, SaysWhereAMistakeStandsAndWhatShouldStandThere) {
  struct Mistake {
    const char* text;
    const char* column;
    const char* said;
  };
  for (const Mistake& one : {
           Mistake{"", "column 1", "a pattern of module paths"},
           {"mlp.up weight shard(0)", "column 8: 'weight'", "where ':' should stand"},
           {"mlp.up:", "column 8: the end", "weight, bias, input or output"},
           {"mlp.up: wieght shard(0)", "column 9: 'wieght'", "did you mean weight?"},
           {"mlp.up: weight shrad(0)", "column 16: 'shrad'", "did you mean shard?"},
           {"mlp.up: weight shard", "column 21: the end", "where '(' should stand"},
           {"mlp.up: weight shard(x)", "column 22: 'x'", "a dimension"},
           {"mlp.up: weight shard(0", "column 23: the end", "where ')' should stand"},
           {"mlp.up: weight stream", "column 16: 'stream'", "replicate or shard(DIM)"},
           {"mlp.up: output shard(0)", "column 16: 'shard'", "or stream, rows,"},
           {"mlp.up: output streem", "column 16: 'streem'", "did you mean stream?"},
           {"mlp.up: weight shard(0),", "column 25: the end", "weight, bias, input or output"},
           {"mlp.up: weight shard(0) bias shard(0)", "column 25: 'bias'", "a comma or the end"},
           {"mlp.up: weight shard(0); bias", "column 24: ';'", "a comma or the end"},
           {"mlp.up: weight shard(0) along pt", "column 31: 'pt'", "the axis tp"},
           {"mlp.up: weight shard(0) along cp", "column 31: 'cp'", "tp, the axis that recipes"},
           {"mlp.up: weight shard(0), weight shard(1)", "column 26", "weight came before"},
           {"mlp.up: input stream, input stream", "column 23", "input came before"},
       }) {
    const std::string said = error_text([&] { parse_rule(one.text); });
    EXPECT_THAT(said, testing::HasSubstr(one.column)) << one.text;
    EXPECT_THAT(said, testing::HasSubstr(one.said)) << one.text;
    EXPECT_THAT(said, testing::HasSubstr(std::string("\"") + one.text + "\"")) << one.text;
  }
}

}  // namespace
}  // namespace shoal::parallel::parse_test
