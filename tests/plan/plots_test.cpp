#include "shoal/plan/plots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "shoal/plan/trace.h"
#include "tests/plan/published.h"

namespace shoal::plan::plots_test {
namespace {

struct Box {
  double x;
  double y;
  double width;
  double height;
  std::string color;
};

/// The boxes that stand for numbers, in the order drawn.
std::vector<Box> boxes(const std::string& svg) {
  static const std::regex look(
      "<rect class=\"value\" x=\"([-.0-9]+)\" y=\"([-.0-9]+)\" width=\"([-.0-9]+)\" "
      "height=\"([-.0-9]+)\" fill=\"(#[0-9a-f]+)\"/>");
  std::vector<Box> list;
  for (std::sregex_iterator at(svg.begin(), svg.end(), look), end; at != end; ++at) {
    list.push_back({std::stod((*at)[1]), std::stod((*at)[2]), std::stod((*at)[3]),
                    std::stod((*at)[4]), (*at)[5]});
  }
  return list;
}

Plan piped() {
  Training training;
  training.degrees.pp = 4;
  training.degrees.dp_shard = 4;
  training.degrees.tp = 2;
  training.global_batch = 32;
  training.zero_stage = 1;
  training.recompute = Recompute::kFull;
  return make_plan(PublishedEstimator(), *named_model("gpt3-13b"), training,
                   with_devices(*cluster_preset("a100"), 32));
}

// One scale for all: the heights of a rank's and moment's boxes are to each other as the bytes.
TEST(Plots, MemoryIsStackedToItsBytes) {
  const Plan plan = piped();
  const auto drawn = boxes(memory_plot(plan));
  std::map<double, double> height;  // of each column
  for (const Box& box : drawn) height[box.x] += box.height;
  ASSERT_EQ(height.size(), 4u * 4) << "four ranks, four moments";
  auto column = height.begin();
  const double scale = column->second / plan.memory[0].phases[0].use.all();
  for (const RankMemory& rank : plan.memory) {
    for (const MemoryPhase& phase : rank.phases) {
      EXPECT_NEAR(column->second, scale * phase.use.all(), 0.15)
          << "eight boxes are drawn to the hundredth: rank " << rank.rank << ", " << phase.name;
      ++column;
    }
  }
  EXPECT_THAT(memory_plot(plan),
              ::testing::HasSubstr("steady state, backward, optimizer, checkpoint"));
}

TEST(Plots, PartsOfAStepFollowEachOtherAndAddUp) {
  const Plan plan = piped();
  const StepTime& time = plan.time;
  const double compute = time.pipeline - time.bubble - time.communication - time.recomputed;
  const std::vector<double> parts{compute,     time.recomputed,   time.communication,
                                  time.bubble, time.data_exposed, time.optimizer};
  const auto drawn = boxes(time_plot(plan));
  ASSERT_EQ(drawn.size(), parts.size() + 1) << "and what is hidden";
  double sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) {
      EXPECT_NEAR(drawn[i].x, drawn[i - 1].x + drawn[i - 1].width, 0.02);
    }
    EXPECT_NEAR(drawn[i].width / drawn[0].width, parts[i] / parts[0], 1e-3);
    sum += parts[i];
  }
  EXPECT_NEAR(sum, time.all(), 1e-9 * sum);
}

TEST(Plots, SearchResultsAreBarsOfTheirThroughput) {
  const ModelSpec spec = *named_model("llama-3b");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 16);
  Training start;
  start.global_batch = 64;
  start.sequence = 4096;
  const auto found = search(PublishedEstimator(), spec, start, cluster, {}, 4).best;
  ASSERT_EQ(found.size(), 4u);
  std::map<double, double> length;  // of each row
  for (const Box& box : boxes(search_plot(spec, cluster, found))) length[box.y] += box.width;
  ASSERT_EQ(length.size(), 4u);
  std::size_t i = 0;
  for (const auto& [y, width] : length) {
    EXPECT_NEAR(width / length.begin()->second, found[0].time.all() / found[i].time.all(), 2e-3)
        << describe_mesh(found[i].training);
    ++i;
  }
  EXPECT_THAT(search_plot(spec, cluster, {}), ::testing::HasSubstr("nothing fits"));
}

TEST(Plots, NamesAreEscaped) {
  Plan plan = piped();
  plan.spec.name = "a < b & c";
  for (const std::string& svg : {memory_plot(plan), time_plot(plan)}) {
    EXPECT_THAT(svg, ::testing::HasSubstr("a &lt; b &amp; c"));
    EXPECT_THAT(svg, ::testing::Not(::testing::HasSubstr("a < b")));
  }
}

}  // namespace
}  // namespace shoal::plan::plots_test
