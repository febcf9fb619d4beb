// The time of a step with stages that sleep, against the simulator. Sleeping takes no core, so that
// ranks overlap on a machine with fewer cores than ranks.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "shoal/ops/differentiable.h"
#include "shoal/schedule/timeline.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel {
namespace {

using schedule::Schedule;

constexpr int kRanks = 4, kMicroBatches = 4;
// Long, because sleepers of a busy machine wake a millisecond late.
constexpr auto kUnit = std::chrono::milliseconds(25);

/// A unit that takes one time unit for its output, for the gradient of its input, and for that of
/// its weight. It passes x on; the last one sums it up.
class Sleeper final : public nn::Module {
 public:
  Sleeper() { weight_ = parameter("weight", {1}, model::Init::kOnes); }

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    const ops::Weight weight = weight_->weight();
    const auto backward = [sink = weight.sink](const ops::Tensors&, const ops::Tensors& gradients) {
      std::this_thread::sleep_for(kUnit);
      const auto write = [dy = gradients[0]](const at::Tensor& target, bool accumulate) {
        std::this_thread::sleep_for(kUnit);
        accumulate ? target.add_(dy.sum()) : target.fill_(dy.sum());
      };
      return ops::Tensors{gradients[0], ops::deliver_later(sink, write)};
    };
    const at::Tensor y = ops::differentiable("sleep", {x, weight.tensor}, [&](const ops::Wanted&) {
      std::this_thread::sleep_for(kUnit);
      return ops::Recorded{{x.detach().clone()}, {}, backward};
    })[0];
    return context.labels.defined() ? y.sum() : y;
  }

 private:
  std::shared_ptr<nn::Parameter> weight_;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Step {
  double seconds = 0;    ///< of the slowest rank
  double simulated = 0;  ///< from the times that its computations took: a sleeper wakes late
};

Step run_step(const Schedule& table) {
  std::vector<double> seconds(kRanks);
  std::vector<std::map<std::string, double>> durations(kRanks);
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    const int rank = group.rank();
    const auto unit = std::make_shared<Sleeper>();
    unit->materialize();
    unit->reset_parameters(Key(1));
    Stages stages{{{rank, {unit}}}, {}, std::vector<std::int64_t>(kRanks, 3), false};
    std::vector<MicroBatch> batch(kMicroBatches);
    for (MicroBatch& one : batch) {
      one.input = at::ones({2, 3}, at::kFloat);
      if (rank == kRanks - 1) one.context.labels = at::ones({2}, at::kLong);
    }
    // An action ends where the next one begins, or the step.
    std::string current;
    auto begun = Clock::now();
    const auto next = [&](const std::string& action) {
      durations[rank][current] = seconds_since(begun);
      current = action;
      begun = Clock::now();
    };
    Pipeline pipeline(group, table, stages, {.action = [&](const schedule::Action& action) {
                        next(schedule::to_string(action));
                      }});
    group.barrier();
    const auto start = Clock::now();
    pipeline.run(batch);
    next("");
    seconds[rank] = seconds_since(start);
    // 6 ones for each micro-batch.
    EXPECT_EQ(unit->parameters()[0]->gradient().item<double>(), 6 * kMicroBatches);
  });
  schedule::Costs costs{{{}}, 0, 0, {}};
  costs.measured = [&](const schedule::Action& action) {
    return durations[action.stage].at(schedule::to_string(action));
  };
  return {*std::max_element(seconds.begin(), seconds.end()),
          schedule::simulate(table, costs).makespan()};
}

TEST(StageTimes, AStepTakesAsLongAsTheSimulatorSays) {
  std::map<std::string, double> seconds;
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    const Schedule table = schedule::make_schedule(name, kRanks, 1, kMicroBatches);
    Step step = run_step(table);
    // Again on a machine that is busy with something else, where waiting ranks wake late too.
    for (int again = 0; again < 3 && step.seconds > 1.05 * step.simulated; ++again)
      step = run_step(table);
    EXPECT_NEAR(step.seconds, step.simulated, 0.05 * step.simulated) << name;
    // The computations took what they should, so that it was this table that was run.
    const double unit = std::chrono::duration<double>(kUnit).count();
    EXPECT_GE(step.simulated, unit * schedule::simulate(table, {{{}}, 0, 0, {}}).makespan());
    seconds[name] = step.seconds;
  }
  EXPECT_LT(seconds["zb-h1"], seconds["1f1b"]);
}

}  // namespace
}  // namespace shoal::parallel
