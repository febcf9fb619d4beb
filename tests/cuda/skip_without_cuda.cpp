// The program ends before its first test where there is no GPU, with the code that ctest takes for
// skipped. tests/expected_skips.txt names it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "shoal/base/error.h"
#include "shoal/train/device.h"

namespace shoal::train {
namespace {

constexpr int kSkipped = 77;

class NeedsCuda final : public testing::Environment {
 public:
  void SetUp() override {
    try {
      device_of_rank(DeviceKind::kCuda, {});
    } catch (const Error& error) {
      fmt::print("skipped: {}\n", error.what());
      std::exit(kSkipped);
    }
  }
};

[[maybe_unused]] const auto* const registered = testing::AddGlobalTestEnvironment(new NeedsCuda);

}  // namespace
}  // namespace shoal::train
