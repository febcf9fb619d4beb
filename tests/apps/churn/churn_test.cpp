// An elastic job as processes that are killed, stopped, cut off, delayed and added at random, also
// several at once.
#include <gtest/gtest.h>

#include "tests/apps/churn/random_churn.h"

namespace shoal::apps::testing::churn_test {
namespace {

class Churn : public RandomChurn {};

TEST_F(Churn, EveryCommittedStepIsThatOfAReplay) {
  begin(1, 16, 0);
  expect_replay_of_churn("");
}

// Members that train by themselves for some steps, with a codec that rounds their differences.
TEST_F(Churn, EveryCommittedRoundIsThatOfAReplay) {
  round_ = 7;
  begin(2, 10, 0);
  expect_replay_of_churn("");
}

}  // namespace
}  // namespace shoal::apps::testing::churn_test
