#include "tests/test_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace shoal::test_limit_test {
namespace {

// The handler is that of every test program; the child of a death test has no limit but this one.
TEST(TestLimit, NamesTheStuckTestAndShowsItsThreads) {
  const auto wait_forever = [] {
    std::thread other([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
    alarm(1);
    other.join();
  };
  EXPECT_EXIT(wait_forever(), testing::ExitedWithCode(1),
              "stuck: TestLimit.NamesTheStuckTestAndShowsItsThreads has run for.*\n"
              "(thread [0-9]+:\n([^\n]*\\[0x[0-9a-f]+\\]\n)+.*){2}");
}

}  // namespace
}  // namespace shoal::test_limit_test
