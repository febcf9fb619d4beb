// The time of a step with stages that sleep, against the simulator. Sleeping takes no core, so that
// ranks overlap on a machine with fewer cores than ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/parallel/pipeline/timed_stages.h"

namespace shoal::parallel::stage_times_test {
namespace {

using schedule::Schedule;
using schedule::StageCost;

void sleep_for_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Step {
  int ranks = 0;
  double seconds = 0;    ///< of the slowest rank
  double simulated = 0;  ///< from the times that its computations took: a sleeper wakes late
  double busy = 0;       ///< these times, of all ranks together

  /// The time in which ranks do not compute, of all ranks together.
  double lost() const { return ranks * seconds - busy; }
  double simulated_lost() const { return ranks * simulated - busy; }
  bool is_as_simulated() const { return lost() <= 1.05 * simulated_lost(); }
};

Step run_step(const Schedule& table, const std::vector<StageCost>& costs) {
  const int ranks = table.ranks();
  std::vector<double> seconds(ranks);
  std::vector<std::map<std::string, double>> durations(ranks);
  auto options = threads(ranks);
  options.arena = false;  // worlds that begin at the same time would both install one
  comm::run_on_threads(options, [&](const comm::Group& group) {
    const int rank = group.rank();
    // An action ends where the next one begins, or the step.
    std::string current;
    auto begun = Clock::now();
    const auto next = [&](const std::string& action) {
      durations[rank][current] = seconds_since(begun);
      current = action;
      begun = Clock::now();
    };
    const std::vector<MicroBatch> batch = timed_batch(table.micro_batches);
    Pipeline pipeline(
        group, table, timed_stages(table, costs, rank, sleep_for_seconds),
        {.action = [&](const schedule::Action& action) { next(schedule::to_string(action)); }});
    group.barrier();
    const auto start = Clock::now();
    pipeline.run(batch);
    next("");
    seconds[rank] = seconds_since(start);
    // 6 ones for each micro-batch.
    for (const Stage& stage : pipeline.stages().local) {
      EXPECT_EQ(stage.parameters()[0]->gradient().item<double>(), 6 * table.micro_batches)
          << table.name;
    }
  });
  schedule::Costs measured{{{}}, 0, 0, {}};
  measured.measured = [&](const schedule::Action& action) {
    return durations[table.rank_of_stage[action.stage]].at(schedule::to_string(action));
  };
  const schedule::Timeline timeline = schedule::simulate(table, measured);
  return {ranks, *std::max_element(seconds.begin(), seconds.end()), timeline.makespan(),
          std::accumulate(timeline.busy.begin(), timeline.busy.end(), 0.0)};
}

/// How many ranks and micro-batches; 0 micro-batches: the fewest that the schedule allows from one
/// a rank on.
struct Size {
  int ranks = 4, micro_batches = 0;
};

/// The costs of a stage of a rank that has this one alone, in units of time.
using CostOf = std::function<StageCost(int stage)>;

/// The costs of all stages in seconds.
std::vector<StageCost> costs_in_seconds(const Schedule& table, const CostOf& cost_of, double unit) {
  std::vector<StageCost> costs;
  for (int stage = 0; stage < table.stages(); ++stage) {
    StageCost cost = cost_of(stage);
    for (double* part : {&cost.forward, &cost.input_gradient, &cost.weight_gradient})
      *part *= unit / chunks_of(table.name);
    costs.push_back(cost);
  }
  return costs;
}

/// Runs a step until it takes what the simulator says. Returns its time in units.
double expect_simulated_time(const std::string& name, Size size, const CostOf& cost_of) {
  if (size.micro_batches == 0) size.micro_batches = (name == "dualpipe-v" ? 2 : 1) * size.ranks;
  const Schedule table =
      schedule::make_schedule(name, size.ranks, chunks_of(name), size.micro_batches);
  // On a machine that is busy with something else waiting ranks wake late, by milliseconds: again
  // with longer times, beside which that is less. The tolerance stays.
  const Deadline patience = Deadline::in(std::chrono::seconds(60));
  double unit = 0.03;
  std::vector<StageCost> costs = costs_in_seconds(table, cost_of, unit);
  Step step = run_step(table, costs);
  while (!step.is_as_simulated() && !patience.passed()) {
    unit = std::min(0.3, 1.5 * unit);
    costs = costs_in_seconds(table, cost_of, unit);
    step = run_step(table, costs);
  }
  EXPECT_NEAR(step.seconds, step.simulated, 0.05 * step.simulated) << name;
  // What the schedules differ in.
  EXPECT_NEAR(step.lost(), step.simulated_lost(), 0.05 * step.simulated_lost()) << name;
  // The computations took what they should, so that it was this table that was run.
  EXPECT_GE(step.simulated, schedule::simulate(table, {costs, 0, 0, {}}).makespan()) << name;
  return step.seconds / unit;
}

/// Runs every schedule, all at once, as none of them needs a core. Returns the time of a step by
/// schedule, in units.
std::map<std::string, double> expect_simulated_times(Size size, const CostOf& cost_of) {
  std::map<std::string, double> times;
  std::vector<std::thread> runs;
  for (const std::string& name : schedule::schedule_names()) {
    if (size.micro_batches > 0 && !has_table(name, size.ranks, size.micro_batches)) continue;
    double& time = times[name];
    runs.emplace_back([&, name, size] { time = expect_simulated_time(name, size, cost_of); });
  }
  for (std::thread& run : runs) run.join();
  return times;
}

TEST(StageTimes, AStepLosesAsMuchTimeAsTheSimulatorSays) {
  const auto times = expect_simulated_times({}, [](int) { return StageCost{}; });
  EXPECT_LT(times.at("interleaved"), times.at("1f1b"));
  EXPECT_LT(times.at("zb-h1"), times.at("1f1b"));
}

// The bubble is nearly all of a step there, and little of it.
TEST(StageTimes, ItDoesSoWithOneMicroBatchAndWithMany) {
  for (const Size size : {Size{8, 1}, Size{2, 12}, Size{3, 6}})
    expect_simulated_times(size, [](int) { return StageCost{}; });
}

// An embedding that costs little, a head that costs much, and backward passes that take longer than
// forward passes.
TEST(StageTimes, ItDoesSoWithStagesOfDifferentCosts) {
  const auto factor = [](int stage) { return 0.7 + 0.3 * (stage % 3) + (stage == 3 ? 0.4 : 0); };
  expect_simulated_times({}, [&](int stage) {
    return StageCost{.forward = factor(stage),
                     .input_gradient = 1.25 * factor(stage),
                     .weight_gradient = 0.75 * factor(stage)};
  });
}

}  // namespace
}  // namespace shoal::parallel::stage_times_test
