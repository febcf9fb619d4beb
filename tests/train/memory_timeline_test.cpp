#include "shoal/train/report/memory_timeline.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace shoal::train::memory_timeline_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MemoryMark mark(std::int64_t step, double ms, const char* where, double parameters,
                double activations, double peak) {
  MemoryMark made{.step = step, .ms = ms, .where = where, .peak = peak};
  made.categories[static_cast<int>(MemoryCategory::kParameters)] = parameters;
  made.categories[static_cast<int>(MemoryCategory::kActivations)] = activations;
  return made;
}

const std::vector<MemoryMark> kMarks{
    mark(1, 0, "begin", 4e6, 0, 4e6), mark(2, 0, "begin", 4e6, 0, 4e6),
    mark(2, 5, "forward blocks.0", 4e6, 3e6, 9e6), mark(2, 10, "end", 4e6, 0, 8e6)};

TEST(MemoryTimeline, ATableForAnyProgram) {
  EXPECT_EQ(to_csv({kMarks[2]}),
            "step,ms,where,peak_bytes,temporary,parameters,gradients,optimizer,activations,"
            "communication\n"
            "2,5.000,forward blocks.0,9000000,0,4000000,0,0,3000000,0\n");
}

// The axis ends 5 % above the highest peak, 9 MB: the parameters' area ends at 4 of 9.45 parts of
// the height, the activations' at 7 of them.
TEST(MemoryTimeline, APictureOfTheLastStep) {
  const std::string svg = memory_plot("a & b", kMarks);
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, HasSubstr("parameters</text>"));
  EXPECT_THAT(svg, HasSubstr("activations</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("gradients</text>"))) << "there were none";
  std::smatch found;
  const auto height = [](double megabytes) { return 422 - (422 - 52) * megabytes / 9.45; };
  // 5 of 10 ms lie in the middle, between 76 and 690.
  ASSERT_TRUE(std::regex_search(svg, found,
                                std::regex("383\\.0,([0-9.]+) 690\\.0,[0-9.]+ 690\\.0,422\\.0")));
  EXPECT_NEAR(std::stod(found[1]), height(4), 0.1);
  EXPECT_THAT(svg, HasSubstr(fmt::format("383.0,{:.1f}", height(7))));
  EXPECT_THAT(svg, HasSubstr(fmt::format("y2=\"{:.1f}\"", height(9))));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(MemoryTimeline, NothingWasWatched) {
  EXPECT_THAT(memory_plot("nothing", {}), HasSubstr("no step was watched"));
}

}  // namespace
}  // namespace shoal::train::memory_timeline_test
