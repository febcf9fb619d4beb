#include "shoal/wire/silence.h"

#include <gtest/gtest.h>

#include <chrono>

namespace shoal::wire::silence_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Silence, OfAFarPeerMayBeLonger) {
  EXPECT_EQ(silence_for({}), seconds(2));
  EXPECT_EQ(silence_for(milliseconds(100)), seconds(4));
  EXPECT_EQ(silence_for(milliseconds(300)), seconds(8));
  EXPECT_EQ(silence_for(std::chrono::hours(1)), seconds(15));
}

}  // namespace
}  // namespace shoal::wire::silence_test
