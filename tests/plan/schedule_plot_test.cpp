#include "tests/plan/schedule_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/schedule/generators.h"
#include "tests/pictures.h"

namespace shoal::plan::schedule_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;

/// The number of messages: pieces of the paths that show them.
std::size_t messages_in(const std::string& picture) {
  std::size_t found = 0;
  const std::string begin = "<path class=\"messages\" d=\"";
  for (std::size_t at = picture.find(begin); at != std::string::npos;
       at = picture.find(begin, at + 1)) {
    const std::size_t from = at + begin.size();
    found += count_of(picture.substr(from, picture.find('"', from) - from), "M");
  }
  return found;
}

TEST(SchedulePlot, ShowsEveryComputationAndEveryMessage) {
  const std::string picture =
      schedule_plot("<two>", {schedule::gpipe(2, 3), schedule::zero_bubble_v(2, 3)});
  EXPECT_THAT(picture, HasSubstr(">&lt;two"));
  // Three micro-batches on two stages of whole backward passes, and on four of split ones.
  EXPECT_EQ(count_of(picture, "z\" fill=") + count_of(picture, "zM"), 2 * 3 * 2 + 4 * 3 * 3 + 4u)
      << "boxes, and what each of four rows holds";
  // One border in gpipe; in the V two of three, as one rank has both stages at the turn.
  EXPECT_EQ(messages_in(picture), 2 * 3 * 1 + 2 * 3 * 2u);
  EXPECT_THAT(picture, HasSubstr(">gpipe</tspan>"));
  EXPECT_THAT(picture, HasSubstr("a rank holds at most 3 micro-batches"));
  EXPECT_THAT(picture, HasSubstr(">stages 0, 3</text>"));
  EXPECT_THAT(picture, HasSubstr(">stages 1, 2</text>"));
  // gpipe: 3 (m + p - 1) and two messages of 0.05, of which 3 m are work: 1 - 9 / 12.1.
  EXPECT_THAT(picture, HasSubstr("</tspan>: 26 % of the time is lost"));
}

TEST(SchedulePlot, LeavesOutWhatIsTooNarrowAndRefusesWhatCannotRun) {
  // Boxes of at least nine units have the number of their micro-batch.
  const std::string numbers = "<g font-size=\"9\" text-anchor=\"middle\">\n<text";
  EXPECT_EQ(count_of(schedule_plot("a", {schedule::gpipe(2, 3)}), numbers), 2u);
  EXPECT_EQ(count_of(schedule_plot("a", {schedule::gpipe(2, 150)}), numbers), 0u);
  // 1 - 3 / (8 x 3 + 14 x 0.05)
  EXPECT_THAT(schedule_plot("a", {schedule::gpipe(8, 1)}), HasSubstr("88 % of the time is lost"));
  schedule::Schedule cut = schedule::gpipe(2, 3);
  cut.table[1].pop_back();
  EXPECT_THROW(schedule_plot("a", {cut}), Error);
}

TEST(SchedulePlot, IsTheOneOfThePage) {
  expect_picture_of_page(
      "pipeline_schedules.svg",
      schedule_plot("Four ranks, eight micro-batches",
                    {schedule::one_forward_one_backward(4, 8), schedule::zero_bubble_h1(4, 8),
                     schedule::zero_bubble_v(4, 8)}));
}

// In turn on a scale of its own: eight micro-batches would take three times as long as 1f1b.
TEST(SchedulePlot, InTurnIsThatOfThePage) {
  const std::string picture =
      schedule_plot("Four ranks, two micro-batches",
                    {schedule::in_turn(4, 2), schedule::one_forward_one_backward(4, 2)});
  // Of 24 units six are work, and twelve messages of 0.05 come between: 1 - 6 / 24.6.
  EXPECT_THAT(
      picture,
      HasSubstr(">in_turn</tspan>: 76 % of the time is lost, a rank holds at most 1 micro"));
  expect_picture_of_page("pipeline_in_turn.svg", picture);
}

}  // namespace
}  // namespace shoal::plan::schedule_plot_test
