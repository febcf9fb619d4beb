// The time of a step on virtual clocks, against the simulator: the executor runs tables of up to 16
// stages with real passes and real messages, and nobody sleeps. What a rank would wait beyond what
// its table asks for (a send that waits for its receiver, a receive that is posted when it is
// needed, a pass that comes later than its operands) moves its clock. Every table is run so with
// the executor's messages alone: without passes that takes a tenth of the time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/parallel/pipeline/messages.h"
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

/// Every schedule with so many stages and micro-batches on at least two ranks.
std::vector<Schedule> tables_of(int stages, int micro_batches) {
  std::vector<Schedule> tables;
  for (const std::string& name : schedule::schedule_names()) {
    const int least = chunks_of(name);
    const int most = name == "interleaved" ? stages / 2 : least;
    for (int chunks = least; chunks <= most; ++chunks) {
      const int ranks = stages / chunks;
      if (stages % chunks == 0 && ranks >= 2 && has_table(name, ranks, micro_batches))
        tables.push_back(schedule::make_schedule(name, ranks, chunks, micro_batches));
    }
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

/// Expects the clocks of a step to be those of the simulator.
void expect_simulated_times(const Schedule& table, const VirtualLinks& links) {
  const auto drop = [](int, const schedule::Span&) {};
  const auto timeline = schedule::simulate(table, {costs_of(table), kTransfer, 0, {}}, drop);
  double end = 0;
  double busy = 0;
  double simulated = 0;
  for (int rank = 0; rank < table.ranks(); ++rank) {
    end = std::max(end, links.now(rank));
    busy += links.busy(rank);
    simulated += timeline.busy[static_cast<std::size_t>(rank)];
  }
  const std::string text = fmt::format("{}: {} stages on {} ranks, {} micro-batches", table.name,
                                       table.stages(), table.ranks(), table.micro_batches);
  EXPECT_NEAR(busy, simulated, 1e-9 * simulated) << text;
  EXPECT_NEAR(end, timeline.makespan(), 1e-9 * timeline.makespan()) << text;
}

// Every number of stages, each with one micro-batch, one a stage, one fewer, and many.
TEST(VirtualTimes, AStepLosesAsMuchTimeAsTheSimulatorSays) {
  std::map<int, std::vector<Schedule>> by_ranks;
  for (int stages = 2; stages <= 16; ++stages) {
    for (const int count : {1, stages - 1, stages, 3 * stages}) {
      for (Schedule& table : tables_of(stages, count))
        by_ranks[table.ranks()].push_back(std::move(table));
    }
  }
  for (const auto& [ranks, tables] : by_ranks) {
    const auto links = run_steps(ranks, tables);
    for (std::size_t i = 0; i < tables.size(); ++i) expect_simulated_times(tables[i], *links[i]);
  }
}

/// The messages of a step that have been sent.
class Sent {
 public:
  explicit Sent(const Schedule& table)
      : micro_batches_(table.micro_batches),
        sent_(2 * static_cast<std::size_t>(table.stages() * table.micro_batches)) {}
  /// A message is called by the stage that it leaves.
  std::vector<bool>::reference operator[](const schedule::Action& action) {
    using schedule::Kind;
    int stage = action.stage;
    if (action.kind == Kind::kReceiveActivation) --stage;
    if (action.kind == Kind::kReceiveGradient) ++stage;
    const bool activation =
        action.kind == Kind::kSendActivation || action.kind == Kind::kReceiveActivation;
    return sent_[2 * static_cast<std::size_t>(stage * micro_batches_ + action.micro_batch) +
                 (activation ? 1 : 0)];
  }

 private:
  int micro_batches_;
  std::vector<bool> sent_;
};

/// A rank that carries out its list as Pipeline does, and computes nothing: its clock moves on. One
/// thread runs all ranks, in turn.
class RankWithoutPasses {
 public:
  RankWithoutPasses(const Schedule& table, int rank, std::shared_ptr<VirtualLinks> links)
      : actions_(table.table[static_cast<std::size_t>(rank)]),
        rank_(rank),
        links_(std::move(links)),
        costs_(costs_of(table)),
        messages_(comm::Group(std::make_shared<VirtualRank>(links_, rank)), table, at::kFloat) {
    messages_.begin([](const schedule::Action&) { return std::vector<std::int64_t>{1}; });
  }

  /// Goes on until a receive needs what has not been sent. Returns whether anything was carried
  /// out.
  bool go_on(Sent& sent) {
    const std::size_t begin = next_;
    for (; next_ < actions_.size(); ++next_) {
      const schedule::Action& action = actions_[next_];
      messages_.post_ahead(next_);
      if (schedule::is_receive(action.kind)) {
        if (!sent[action]) break;
        messages_.take(action);
      } else if (schedule::is_send(action.kind)) {
        messages_.send(action, value_);
        sent[action] = true;
      } else {
        compute(action);
      }
    }
    return next_ > begin;
  }
  void finish() { messages_.finish(); }

 private:
  void compute(const schedule::Action& action) {
    using schedule::Kind;
    const StageCost& cost = costs_[static_cast<std::size_t>(action.stage)];
    if (action.kind == Kind::kForward) links_->spend(rank_, cost.forward);
    if (action.kind == Kind::kBackward || action.kind == Kind::kInputGradient)
      links_->spend(rank_, cost.input_gradient);
    if (action.kind == Kind::kBackward || action.kind == Kind::kWeightGradient)
      links_->spend(rank_, cost.weight_gradient);
  }

  const std::vector<schedule::Action>& actions_;
  int rank_;
  std::shared_ptr<VirtualLinks> links_;
  std::vector<StageCost> costs_;
  Messages messages_;
  std::size_t next_ = 0;
  at::Tensor value_ = at::ones({1}, at::kFloat);
};

TEST(VirtualTimes, TheMessagesOfEveryTableLoseNoTimeBeyondIt) {
  int tables = 0;
  for (int stages = 2; stages <= 16; ++stages) {
    for (int count = 1; count <= 64; ++count) {
      for (const Schedule& table : tables_of(stages, count)) {
        ++tables;
        const auto links = std::make_shared<VirtualLinks>(table.ranks(), kTransfer);
        std::deque<RankWithoutPasses> ranks;
        for (int rank = 0; rank < table.ranks(); ++rank) ranks.emplace_back(table, rank, links);
        Sent sent(table);
        const auto go_on = [&](RankWithoutPasses& rank) { return rank.go_on(sent); };
        while (std::count_if(ranks.begin(), ranks.end(), go_on) > 0) continue;
        for (RankWithoutPasses& rank : ranks) rank.finish();
        expect_simulated_times(table, *links);
      }
    }
  }
  // Five schedules with one stage a rank, zb-v on 7 even numbers of stages, dualpipe-v and
  // interleaved where they have a table.
  EXPECT_EQ(tables, 15 * 64 * 5 + 7 * 64 + 385 + 407);
}

}  // namespace
}  // namespace shoal::parallel::virtual_times_test
