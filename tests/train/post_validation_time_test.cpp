// What a pipeline gains that does not wait for the norm of the gradient, with stages that sleep:
// sleeping takes no core, so that ranks overlap on a machine with fewer cores than ranks.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/schedule/generators.h"
#include "shoal/train/step.h"
#include "tests/parallel/pipeline/timed_stages.h"

namespace shoal::train::post_validation_time_test {
namespace {

constexpr int kRanks = 4, kMicroBatches = 8, kSteps = 5;

class TimedModel final : public nn::Model {
 public:
  explicit TimedModel(const std::vector<parallel::Stage>& stages) : Model(model::ModelSpec{}) {
    for (const parallel::Stage& stage : stages)
      for (const auto& module : stage.units) unit(std::to_string(stage.number), module);
  }
};

RankBatch batch_of_ones() {
  RankBatch batch;
  for (int i = 0; i < kMicroBatches; ++i)
    batch.micro_batches.push_back({at::ones({2, 3}, at::kFloat), at::ones({2}, at::kLong), 0});
  return batch;
}

/// Returns the seconds that `kSteps` steps take on the slowest rank.
double time_steps(const schedule::Schedule& table, double unit, bool early) {
  const std::vector<schedule::StageCost> costs(
      static_cast<std::size_t>(table.stages()),
      {.forward = unit, .input_gradient = unit, .weight_gradient = unit});
  const auto spend = [](double seconds) { std::this_thread::sleep_for(from_seconds(seconds)); };
  std::vector<double> seconds(kRanks);
  auto options = parallel::threads(kRanks);
  options.arena = false;  // worlds that begin at the same time would both install one
  comm::run_on_threads(options, [&](const comm::Group& group) {
    const parallel::Stages stages = parallel::timed_stages(table, costs, group.rank(), spend);
    TimedModel model(stages.local);
    const auto reduction = parallel::reduce_after_backward(model, {});
    const auto optimizer = optim::make_optimizer(slices_of(model), optim::SgdOptions{});
    TrainingStep step(model, *optimizer, *reduction, group, Key(2));
    auto events = parallel::pipeline_events(*reduction, stages.local);
    events.confirm = [&] { return step.confirm(); };
    parallel::Pipeline pipeline(group, table, stages, std::move(events));
    const parallel::TiedWeights tied(stages, group);
    step.run_through(pipeline, tied);
    if (early) step.post_validate();
    group.barrier();
    const auto start = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
      const bool last = i + 1 == kSteps;
      const StepResult result = step.run(
          batch_of_ones(),
          {.step = i, .learning_rate = 0.01, .labels = 1, .may_end_early = early && !last});
      EXPECT_EQ(result.validated, !early || last);
      if (early && i > 0) {
        EXPECT_GT(step.validated().grad_norm, 0);
      }
    }
    seconds[static_cast<std::size_t>(group.rank())] = to_seconds(Clock::now() - start);
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

// Zero bubbles in a step: the last rank of ZB-H2 begins (p - 1) forward passes after the first, and
// ends as many later. Ranks that wait for each other lose that in every step but the last.
TEST(PostValidationTime, ABubbleDoesNotComeBackBetweenSteps) {
  const schedule::Schedule table = schedule::make_schedule("zb-h2", kRanks, 1, kMicroBatches);
  const schedule::Timeline timeline = schedule::simulate(table, {{{}}, 0, 0, {}});
  const double gain = (kSteps - 1) * (timeline.makespan() - timeline.longest_span());
  ASSERT_EQ(gain, (kSteps - 1) * (kRanks - 1));
  // Ranks that sleep wake late on a busy machine: again with longer times, beside which that is
  // less.
  const Deadline patience = Deadline::in(std::chrono::seconds(60));
  double saved = 0;
  for (double unit = 0.02; saved < 0.8 * gain && !patience.passed();
       unit = std::min(0.2, 2 * unit)) {
    double early = 0;
    std::thread beside([&] { early = time_steps(table, unit, true); });
    const double waiting = time_steps(table, unit, false);
    beside.join();
    saved = (waiting - early) / unit;
  }
  EXPECT_NEAR(saved, gain, 0.2 * gain);
}

}  // namespace
}  // namespace shoal::train::post_validation_time_test
