#include "shoal/train/instruction_set_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/comm/world.h"

namespace shoal::train::instruction_set_notes_test {
namespace {

TEST(InstructionSetNotes, EveryRankLearnsTheSetsOfAll) {
  comm::run_on_threads({.size = 3, .arena = false}, [](const comm::Group& group) {
    const std::vector<std::string> names{"avx2", "avx512_bf16", "portable"};
    EXPECT_EQ(instruction_sets_of_ranks(group, names[static_cast<std::size_t>(group.rank())]),
              names);
  });
}

TEST(InstructionSetNotes, UnequalRanksAreNamedByTheFirstOfEachSet) {
  EXPECT_EQ(describe_unequal_sets({"avx2"}), std::nullopt);
  EXPECT_EQ(describe_unequal_sets({"avx2", "avx2", "avx2"}), std::nullopt);
  EXPECT_THAT(describe_unequal_sets({"avx512", "avx2", "avx512", "avx2"}).value_or(""),
              testing::StartsWith("Instruction sets differ: avx2 on rank 1, avx512 on rank 0. "));
}

TEST(InstructionSetNotes, ARunThatGoesOnElsewhereNamesBothSets) {
  EXPECT_EQ(describe_resumed_set("avx2", "avx2"), std::nullopt);
  EXPECT_EQ(describe_resumed_set("", "avx2"), std::nullopt) << "records of earlier versions";
  EXPECT_THAT(describe_resumed_set("avx512", "avx2").value_or(""),
              testing::StartsWith("This run began with avx512 instructions and goes on with avx2"));
}

}  // namespace
}  // namespace shoal::train::instruction_set_notes_test
