#include "shoal/optim/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shoal/base/error.h"

namespace shoal::optim {
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

TEST(LossScale, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW(LossScale({.initial = 0}), Error);
  EXPECT_THROW(LossScale({.growth_interval = 0}), Error);
  EXPECT_THROW(LossScale({.smallest = 0}), Error);
  LossScale scale({});
  EXPECT_THROW(scale.restore({.scale = 0}), Error);
}

}  // namespace
}  // namespace shoal::optim
