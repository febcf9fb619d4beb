#include "shoal/plan/division_rules.h"

#include <gtest/gtest.h>

namespace shoal::plan::division_rules_test {
namespace {

// Experts are divided among the ranks of one copy: replicas have experts of their own.
TEST(DivisionRules, ExpertsDivideACopy) {
  Degrees degrees{.dp_replicate = 2, .dp_shard = 3, .cp = 2, .tp = 2};
  for (const std::int64_t fits : {1, 2, 3, 4, 6, 12}) {
    degrees.ep = fits;
    EXPECT_EQ(expert_copy_rule(degrees), "") << fits;
  }
  degrees.ep = 8;  // divides the 24 ranks of both copies
  EXPECT_EQ(expert_copy_rule(degrees),
            "must divide the 12 ranks of a copy of the sharded states, as 6 or 12 does");
  degrees.dp_replicate = 1;
  EXPECT_EQ(expert_copy_rule(degrees),
            "must divide the 12 ranks of a pipeline stage, as 6 or 12 does");
}

TEST(DivisionRules, OfColumnsHeadsExpertsAndStages) {
  EXPECT_EQ(context_rule(8, 8), "");
  EXPECT_EQ(context_rule(9, 8),
            "must be at most the 8 tokens of a sequence: every rank needs a column");
  model::ModelSpec spec;
  spec.kv_heads = 12;
  EXPECT_EQ(whole_heads_rule(spec, {.cp = 3, .tp = 4}), "");
  EXPECT_EQ(whole_heads_rule(spec, {.cp = 4, .tp = 2}),
            "an exchange of heads gives every rank whole key-value heads: tp x cp = 8 must divide "
            "kv_heads = 12, as 6 or 12 does");
  EXPECT_EQ(experts_rule(spec, 1), "");
  EXPECT_EQ(experts_rule(spec, 2), "the model has no experts");
  spec.experts = 6;
  EXPECT_EQ(experts_rule(spec, 3), "");
  EXPECT_EQ(experts_rule(spec, 4), "must divide experts = 6, as 3 or 6 does");
  EXPECT_EQ(stages_rule(6, 6), "");
  EXPECT_EQ(stages_rule(6, 7),
            "a stage needs at least one unit (embedding, a block, head): stages=7 units=6, so that "
            "at most 6 stages have one");
}

}  // namespace
}  // namespace shoal::plan::division_rules_test
