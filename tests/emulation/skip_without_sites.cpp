// A test program that links this file ends before its first test where no sites can be made, with
// the code that ctest takes for skipped. tests/expected_skips.txt names these programs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/emulation/wan.h"

namespace shoal::emulation {
namespace {

constexpr int kSkipped = 77;

class NeedsSites final : public testing::Environment {
 public:
  void SetUp() override {
    const std::string why = Wan::unavailable();
    if (why.empty()) return;
    fmt::print("skipped: {}\n", why);
    std::exit(kSkipped);
  }
};

[[maybe_unused]] const auto* const registered = testing::AddGlobalTestEnvironment(new NeedsSites);

}  // namespace
}  // namespace shoal::emulation
