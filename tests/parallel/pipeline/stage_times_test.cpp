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

/// Sleeps one time unit, and adds up how long that took: the system wakes a sleeper late.
class Sleep {
 public:
  void operator()() {
    const auto start = Clock::now();
    std::this_thread::sleep_for(kUnit);
    total_ += std::chrono::duration<double>(Clock::now() - start).count();
    ++count_;
  }
  double mean() const { return total_ / count_; }

 private:
  double total_ = 0;
  int count_ = 0;
};

/// A unit that takes one time unit for its output, for the gradient of its input, and for that of
/// its weight. It passes x on; the last one sums it up.
class Sleeper final : public nn::Module {
 public:
  explicit Sleeper(Sleep& sleep) : sleep_(sleep) {
    weight_ = parameter("weight", {1}, model::Init::kOnes);
  }

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    const ops::Weight weight = weight_->weight();
    const auto backward = [&sleep = sleep_, sink = weight.sink](const ops::Tensors&,
                                                                const ops::Tensors& gradients) {
      sleep();
      const auto write = [&sleep, dy = gradients[0]](const at::Tensor& target, bool accumulate) {
        sleep();
        accumulate ? target.add_(dy.sum()) : target.fill_(dy.sum());
      };
      return ops::Tensors{gradients[0], ops::deliver_later(sink, write)};
    };
    const at::Tensor y = ops::differentiable("sleep", {x, weight.tensor}, [&](const ops::Wanted&) {
      sleep_();
      return ops::Recorded{{x.detach().clone()}, {}, backward};
    })[0];
    return context.labels.defined() ? y.sum() : y;
  }

 private:
  Sleep& sleep_;
  std::shared_ptr<nn::Parameter> weight_;
};

/// The longest time of a rank, in units as long as they were on average.
double measured(const Schedule& table) {
  std::vector<double> seconds(kRanks);
  std::vector<Sleep> sleeps(kRanks);
  comm::run_on_threads(threads(kRanks), [&](const comm::Group& group) {
    const int rank = group.rank();
    const auto unit = std::make_shared<Sleeper>(sleeps[rank]);
    unit->materialize();
    unit->reset_parameters(Key(1));
    Stages stages{{{rank, {unit}}}, {}, std::vector<std::int64_t>(kRanks, 3), false};
    std::vector<MicroBatch> batch(kMicroBatches);
    for (MicroBatch& one : batch) {
      one.input = at::ones({2, 3}, at::kFloat);
      if (rank == kRanks - 1) one.context.labels = at::ones({2}, at::kLong);
    }
    Pipeline pipeline(group, table, stages);
    group.barrier();
    const auto start = Clock::now();
    pipeline.run(batch);
    seconds[rank] = std::chrono::duration<double>(Clock::now() - start).count();
    // 6 ones for each micro-batch.
    EXPECT_EQ(unit->parameters()[0]->gradient().item<double>(), 6 * kMicroBatches);
  });
  double unit = 0;
  for (const Sleep& sleep : sleeps) unit += sleep.mean() / kRanks;
  return *std::max_element(seconds.begin(), seconds.end()) / unit;
}

TEST(StageTimes, AStepTakesAsLongAsTheSimulatorSays) {
  std::map<std::string, double> units;
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    const Schedule table = schedule::make_schedule(name, kRanks, 1, kMicroBatches);
    const double expected = schedule::simulate(table, {{{}}, 0, 0, {}}).makespan();
    // Again on a machine that is busy with something else, where sleepers wake milliseconds late.
    for (int attempt = 0; attempt < 4; ++attempt) {
      const double taken = measured(table);
      units[name] = attempt == 0 ? taken : std::min(units[name], taken);
      if (units[name] < 1.05 * expected) break;
    }
    EXPECT_NEAR(units[name], expected, 0.05 * expected) << name;
  }
  EXPECT_LT(units["zb-h1"], units["1f1b"]);
}

}  // namespace
}  // namespace shoal::parallel
