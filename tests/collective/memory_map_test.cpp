#include "shoal/collective/shared_memory/memory_map.h"

#include <gtest/gtest.h>

#include <vector>

#include "shoal/base/error.h"

namespace shoal::collective::memory_map_test {
namespace {

class MapOfThreeRanks : public testing::Test {
 protected:
  std::byte* at(std::size_t offset) { return memory_.data() + offset; }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  // Rank 1 is this one; rank 2 shares nothing.
  MemoryMap map_ = MemoryMap::of_processes({{at(0), 300}, {at(500), 100}, {}}, 1);
};

TEST_F(MapOfThreeRanks, FindsWhoseMemoryItIs) {
  const auto found = [&](std::size_t offset, std::size_t bytes) {
    const Location location = map_.locate(at(offset), bytes);
    return std::pair(location.region, location.offset);
  };
  EXPECT_EQ(found(500, 100), (std::pair<std::int32_t, std::uint64_t>(1, 0)));
  EXPECT_EQ(found(599, 1), (std::pair<std::int32_t, std::uint64_t>(1, 99)));
  EXPECT_EQ(found(100, 200), (std::pair<std::int32_t, std::uint64_t>(0, 100)));
  EXPECT_EQ(found(550, 51).first, -1) << "a byte too many";
  EXPECT_EQ(found(600, 1).first, -1);
  EXPECT_EQ(found(400, 1).first, -1);
  EXPECT_FALSE(map_.locate(at(400), 1).visible());
  EXPECT_TRUE(map_.locate(at(0), 1).visible());
}

TEST_F(MapOfThreeRanks, BelievesNoLocationThatCannotBe) {
  EXPECT_EQ(map_.resolve({0, 0}, 300), at(0));
  EXPECT_EQ(map_.resolve({0, 299}, 1), at(299));
  EXPECT_EQ(map_.resolve({1, 100}, 0), at(600)) << "nothing at the end";
  const auto refused = [&](Location location, std::size_t bytes) {
    try {
      map_.resolve(location, bytes);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kData;
    }
    return false;
  };
  EXPECT_TRUE(refused({0, 0}, 301));
  EXPECT_TRUE(refused({0, 299}, 2));
  EXPECT_TRUE(refused({0, 301}, 0));
  EXPECT_TRUE(refused({1, 0}, 101));
  EXPECT_TRUE(refused({2, 0}, 1));
  EXPECT_TRUE(refused({3, 0}, 0));
  EXPECT_TRUE(refused({-1, 0}, 0));
  EXPECT_TRUE(refused({0, ~std::uint64_t{0}}, 2)) << "a sum that would wrap";
  EXPECT_TRUE(refused({0, 1}, ~std::size_t{0}));
}

TEST(MemoryMap, OfThreadsEveryPointerStandsForItself) {
  const MemoryMap map = MemoryMap::one_address_space();
  int x = 0;
  const Location location = map.locate(&x, sizeof x);
  EXPECT_TRUE(location.visible());
  EXPECT_EQ(map.resolve(location, sizeof x), reinterpret_cast<std::byte*>(&x));
}

}  // namespace
}  // namespace shoal::collective::memory_map_test
