// `shoal replay` on a process with other instructions than the members had.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "shoal/base/instruction_sets.h"
#include "tests/apps/churn/elastic_members.h"

namespace shoal::apps::testing::replay_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::map<std::string, std::string>;

class Replay : public ElasticMembers {
 protected:
  void SetUp() override { write_job(""); }
  Outcome train(const std::string& name, const Environment& environment) {
    const Outcome outcome =
        run({shoal_program(), "train", "job.toml", "--run-dir", name, "--set", "training.steps=20"},
            folder_.path(), environment);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }
  Outcome replay(const std::string& name, const Environment& environment = {}) {
    return run({shoal_program(), "replay", name}, folder_.path(), environment);
  }
};

TEST_F(Replay, TakesTheInstructionsOfTheMembers) {
  if (std::getenv("SHOAL_CPU") != nullptr) ::unsetenv("SHOAL_CPU");
  train("run", {{"SHOAL_CPU", "portable"}});
  EXPECT_EQ(last_step("run").instruction_set, "portable");
  const Outcome same = replay("run");
  EXPECT_EQ(same.code, 0) << same.err;
  if (instruction_set_in_use() == "portable") return;
  EXPECT_THAT(same.out, HasSubstr("The members computed with portable instructions: this process "
                                  "is limited to them."));
}

TEST_F(Replay, NamesTheInstructionsWhereTheUserWantsOthers) {
  train("run", {});
  const std::string own = last_step("run").instruction_set;
  const Outcome same = replay("run");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, Not(HasSubstr("limited")));
  if (own == "portable") return;
  // Sums over vectors of other lengths have other bits.
  const Outcome other = replay("run", {{"SHOAL_CPU", "portable"}});
  EXPECT_EQ(other.code, 1) << other.out;
  EXPECT_THAT(other.err, HasSubstr(fmt::format("from step 1 on its members computed with {} "
                                               "instructions, and this process with portable",
                                               own)));
}

}  // namespace
}  // namespace shoal::apps::testing::replay_test
