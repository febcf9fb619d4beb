// The time of a step on virtual clocks, against the simulator: the executor runs every table of up
// to 16 stages with real passes and real messages, and nobody sleeps. What a rank would wait beyond
// what its table asks for (a send that waits for its receiver, a receive that is posted when it is
// needed, a pass that comes later than its operands) moves its clock.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/parallel/pipeline/timed_stages.h"
#include "tests/parallel/pipeline/virtual_links.h"

namespace shoal::parallel::virtual_times_test {
namespace {

using schedule::Schedule;
using schedule::StageCost;

constexpr double kTransfer = 0.25;

/// Stages of different costs, whose backward passes take longer than their forward passes. A
/// message travels in less time than any computation takes.
std::vector<StageCost> costs_of(const Schedule& table) {
  std::vector<StageCost> costs;
  for (int stage = 0; stage < table.stages(); ++stage) {
    const double factor = 0.7 + 0.3 * (stage % 3) + (stage == 3 ? 0.4 : 0);
    costs.push_back(
        {.forward = factor, .input_gradient = 1.25 * factor, .weight_gradient = 0.75 * factor});
  }
  return costs;
}

/// Every schedule with so many stages: of the numbers of micro-batches that it allows, the smallest
/// from `micro_batches` on.
std::vector<Schedule> tables_of(int stages, int micro_batches) {
  std::vector<Schedule> tables;
  for (const std::string& name : schedule::schedule_names()) {
    const int chunks = chunks_of(name);
    const int ranks = stages / chunks;
    if (stages % chunks != 0 || ranks < 2) continue;
    int count = micro_batches;
    while (!has_table(name, ranks, count)) ++count;
    tables.push_back(schedule::make_schedule(name, ranks, chunks, count));
  }
  return tables;
}

/// Runs a step of each table, all on so many ranks; returns their clocks.
std::vector<std::shared_ptr<VirtualLinks>> run_steps(int ranks,
                                                     const std::vector<Schedule>& tables) {
  std::vector<std::shared_ptr<VirtualLinks>> links;
  for (std::size_t i = 0; i < tables.size(); ++i)
    links.push_back(std::make_shared<VirtualLinks>(ranks, kTransfer));
  auto options = threads(ranks);
  options.arena = false;
  comm::run_on_threads(options, [&](const comm::Group& world) {
    const int rank = world.rank();
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const Schedule& table = tables[i];
      const auto spend = [&, i](double seconds) { links[i]->spend(rank, seconds); };
      Pipeline pipeline(comm::Group(std::make_shared<VirtualRank>(links[i], rank)), table,
                        timed_stages(table, costs_of(table), rank, spend));
      pipeline.run(timed_batch(table.micro_batches));
    }
  });
  return links;
}

void expect_simulated_times(int ranks, const std::vector<Schedule>& tables) {
  if (tables.empty()) return;
  const auto links = run_steps(ranks, tables);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Schedule& table = tables[i];
    const auto timeline = schedule::simulate(table, {costs_of(table), kTransfer, 0, {}});
    double end = 0;
    double busy = 0;
    double simulated = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      end = std::max(end, links[i]->now(rank));
      busy += links[i]->busy(rank);
      simulated += timeline.busy[static_cast<std::size_t>(rank)];
    }
    const std::string text = fmt::format("{}: {} stages on {} ranks, {} micro-batches", table.name,
                                         table.stages(), ranks, table.micro_batches);
    EXPECT_NEAR(busy, simulated, 1e-9 * simulated) << text;
    EXPECT_NEAR(end, timeline.makespan(), 1e-9 * timeline.makespan()) << text;
  }
}

// Every number of stages and every number of micro-batches: 1, and those from 2 to 64 in turn.
TEST(VirtualTimes, EveryTableLosesAsMuchTimeAsTheSimulatorSays) {
  std::map<int, std::vector<Schedule>> by_ranks;
  for (int stages = 2; stages <= 16; ++stages) {
    std::vector<int> counts{1};
    for (int count = stages; count <= 64; count += 15) counts.push_back(count);
    for (const int count : counts) {
      for (Schedule& table : tables_of(stages, count))
        by_ranks[table.ranks()].push_back(std::move(table));
    }
  }
  for (const auto& [ranks, tables] : by_ranks) expect_simulated_times(ranks, tables);
}

}  // namespace
}  // namespace shoal::parallel::virtual_times_test
