#include "shoal/wire/host_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace shoal::wire::host_memory_test {
namespace {

double mem_available() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("MemAvailable:")) return std::stod(line.substr(13)) * 1024;
  return 0;
}

// Other programs take and free memory meanwhile.
TEST(HostMemory, IsNoMoreThanWhatIsAvailable) {
  ASSERT_GT(mem_available(), 0);
  const auto bytes = static_cast<double>(available_memory_bytes());
  EXPECT_GT(bytes, 0);
  EXPECT_LT(bytes, 1.2 * mem_available());
}

TEST(HostMemory, IsSharedEquallyLessAMargin) {
  const auto all = static_cast<double>(available_memory_bytes());
  const auto share = [](int ranks) { return static_cast<double>(share_of_memory_bytes(ranks)); };
  EXPECT_NEAR(share(1) / all, 0.95, 0.04);
  EXPECT_NEAR(share(4) / all, 0.95 / 4, 0.01);
  EXPECT_NEAR(share(0) / all, 0.95, 0.04) << "nobody divides by zero";
}

}  // namespace
}  // namespace shoal::wire::host_memory_test
