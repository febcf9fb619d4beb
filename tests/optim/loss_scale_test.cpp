#include "shoal/optim/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shoal/base/error.h"

namespace shoal::optim::loss_scale_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LossScale, AnOverflowSkipsAndHalvesAndGoodStepsDouble) {
  LossScale scale({.initial = 1024, .growth_interval = 3});
  EXPECT_TRUE(scale.update(5));
  EXPECT_FALSE(scale.update(kInfinity));
  EXPECT_EQ(scale.scale(), 512);
  EXPECT_FALSE(scale.update(std::nan("")));
  EXPECT_EQ(scale.state(), (LossScale::State{.scale = 256, .good_steps = 0, .skipped = 2}));
  // The count of good steps begins anew at every change.
  for (const double expected : {256, 256, 512, 512, 512, 1024}) {
    EXPECT_TRUE(scale.update(1));
    EXPECT_EQ(scale.scale(), expected);
  }
}

TEST(LossScale, RestoredItGoesOnBitForBit) {
  LossScale whole({.initial = 3, .growth_interval = 4});
  LossScale first({.initial = 3, .growth_interval = 4});
  const double norms[] = {1, kInfinity, 1, 1, 1, 1, 1, 1, 1, kInfinity, 1};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(whole.update(norms[i]), first.update(norms[i]));
  LossScale second({.initial = 65536, .growth_interval = 4});
  second.restore(first.state());
  for (int i = 6; i < 11; ++i) {
    EXPECT_EQ(whole.update(norms[i]), second.update(norms[i]));
    EXPECT_EQ(whole.state(), second.state()) << i;
  }
}

TEST(LossScale, AnOverflowThatNoScaleCuresIsAnError) {
  LossScale scale({.initial = 2});
  EXPECT_FALSE(scale.update(kInfinity));
  try {
    (void)scale.update(kInfinity);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNonFinite);
  }
}

TEST(LossScale, StaysBetweenItsEnds) {
  // Half of 3 lies below the smallest.
  LossScale low({.initial = 3, .growth_interval = 1, .smallest = 2});
  EXPECT_FALSE(low.update(kInfinity));
  EXPECT_EQ(low.scale(), 2);
  EXPECT_THROW((void)low.update(-kInfinity), Error);
  LossScale high({.initial = 0x1p95, .growth_interval = 1});
  EXPECT_TRUE(high.update(0));
  EXPECT_EQ(high.scale(), 0x1p96);
  EXPECT_TRUE(high.update(1e300));
  EXPECT_EQ(high.scale(), 0x1p96);
}

// torch.amp.GradScaler: init_scale 2^16, growth_interval 2000.
TEST(LossScale, BeginsAsTorchs) {
  LossScale scale({});
  EXPECT_EQ(scale.scale(), 65536);
  for (int i = 0; i < 1999; ++i) EXPECT_TRUE(scale.update(1));
  EXPECT_EQ(scale.scale(), 65536);
  EXPECT_TRUE(scale.update(1));
  EXPECT_EQ(scale.scale(), 131072);
  LossScale one({.initial = 1});
  EXPECT_THROW((void)one.update(kInfinity), Error) << "the smallest is 1";
}

TEST(LossScale, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW(LossScale({.initial = 0}), Error);
  EXPECT_THROW(LossScale({.growth_interval = 0}), Error);
  EXPECT_THROW(LossScale({.smallest = 0}), Error);
  LossScale scale({});
  EXPECT_THROW(scale.restore({.scale = 0}), Error);
  EXPECT_THROW(scale.restore({.scale = 0.5}), Error);
  EXPECT_THROW(scale.restore({.scale = 0x1p97}), Error);
  EXPECT_THROW(scale.restore({.scale = 2, .good_steps = -1}), Error);
  EXPECT_THROW(scale.restore({.scale = 2, .skipped = -1}), Error);
  EXPECT_EQ(scale.scale(), 65536) << "a state that is refused changes nothing";
  EXPECT_NO_THROW(scale.restore({.scale = 1}));
  EXPECT_NO_THROW(scale.restore({.scale = 0x1p96}));
  EXPECT_THROW(LossScale({.initial = 0x1p97}), Error);
  EXPECT_NO_THROW(LossScale({.initial = 0x1p96}));
  EXPECT_THROW(LossScale({.initial = 1, .smallest = 2}), Error);
  EXPECT_NO_THROW(LossScale({.initial = 2, .smallest = 2}));
  EXPECT_THROW(LossScale({.growth_interval = -1}), Error);
}

}  // namespace
}  // namespace shoal::optim::loss_scale_test
