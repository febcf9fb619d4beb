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

// The stretch before a mark is forward where a forward pass ends there. Backward marks stand where
// the pass enters a unit, "update" before the update.
TEST(MemoryTimeline, SaysWhereForwardBackwardAndUpdateAre) {
  const auto svg_of = [](double update_ms) {
    return memory_plot(
        "a step",
        {mark(1, 0, "begin", 4e6, 0, 4e6), mark(1, 10, "forward blocks.0", 4e6, 2e6, 9e6),
         mark(1, 30, "forward head", 4e6, 3e6, 9e6), mark(1, 35, "backward head", 4e6, 3e6, 9e6),
         mark(1, 50, "recompute blocks.0", 4e6, 1e6, 9e6),
         mark(1, update_ms, "update", 4e6, 0, 8e6), mark(1, 100, "end", 4e6, 0, 8e6)});
  };
  const auto middle_of = [](const std::string& svg, const std::string& word) {
    std::smatch found;
    const std::regex label("x=\"([0-9.]+)\"[^>]*middle[^>]*>" + word + "</text>");
    return std::regex_search(svg, found, label) ? std::stod(found[1]) : 0.0;
  };
  const auto x = [](double ms) { return 76 + (690 - 76) * ms / 100; };
  const std::string svg = svg_of(80);
  EXPECT_NEAR(middle_of(svg, "forward"), x(15), 0.1);
  EXPECT_NEAR(middle_of(svg, "backward"), x(55), 0.1);
  EXPECT_NEAR(middle_of(svg, "update"), x(90), 0.1);
  EXPECT_THAT(svg, HasSubstr(fmt::format("<line x1=\"{:.1f}\"", x(80))));
  EXPECT_EQ(middle_of(svg_of(98), "update"), 0) << "there is no room for the word";
  EXPECT_THAT(svg, HasSubstr("peak of a stretch</text>"));
}

// The picture in pixels: 640 columns are 10 ms, 320 rows are 9.45 MB. A quarter of the way half of
// the activations are there.
TEST(MemoryTimeline, PixelsOfTheLastStep) {
  constexpr Color kBlue{0x24, 0x50, 0x8f};
  constexpr Color kYellow{0xed, 0xae, 0x49};
  constexpr Color kBlack{};
  constexpr Color kWhite{255, 255, 255};
  const Pixels pixels = memory_pixels(kMarks);
  ASSERT_EQ(pixels.width(), 640);
  ASSERT_EQ(pixels.height(), 320);
  const auto at = [&](int x, double megabytes) {
    return pixels.at(x, 319 - static_cast<int>(megabytes / 9.45 * 320));
  };
  for (const int x : {0, 160, 320, 639}) {
    EXPECT_EQ(pixels.at(x, 319), kBlue);
    EXPECT_EQ(at(x, 3.9), kBlue) << x;
    EXPECT_EQ(pixels.at(x, 0), kWhite);
  }
  EXPECT_EQ(at(160, 4.1), kYellow);
  EXPECT_EQ(at(160, 5.4), kYellow);
  EXPECT_EQ(at(160, 5.7), kWhite);
  EXPECT_EQ(at(160, 9), kBlack);
  EXPECT_EQ(at(330, 6.7), kYellow);
  EXPECT_EQ(at(330, 8), kBlack);
  EXPECT_EQ(at(330, 9), kWhite);
  EXPECT_EQ(at(639, 4.2), kWhite) << "at the end all activations are gone";
  EXPECT_EQ(memory_legend(kMarks),
            "Step 2 on rank 0: 10 ms from left to right, 9.45 MB from bottom to top; blue: "
            "parameters; yellow: activations; black: the peak of each stretch");
}

TEST(MemoryTimeline, NothingWasWatched) {
  EXPECT_EQ(memory_pixels({}).at(0, 319), (Color{255, 255, 255}));
  EXPECT_EQ(memory_legend({}), "no step was watched");
  EXPECT_THAT(memory_plot("nothing", {}), HasSubstr("no step was watched"));
}

}  // namespace
}  // namespace shoal::train::memory_timeline_test
