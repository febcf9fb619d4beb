// What another terminal asks of a run while it trains: a checkpoint, or its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shoal/checkpoint/format/store.h"
#include "shoal/train/config/run_board.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::steered_run_test {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 3;
/// Of a run that ends by itself.
constexpr int kSteps = 6;

/// A board of one process.
struct OwnBoard {
  RunLine run;
  std::array<RankLine, kRanks> ranks;
  RunBoard board{&run, ranks};
};

class SteeredRun : public ::testing::Test {
 protected:
  void SetUp() override { prepare_small_text(folder_.path() + "/data"); }

  std::string directory(const std::string& name) const { return folder_.path() + "/" + name; }

  /// Trains on three ranks, rank r with `boards[r]`; `ask` runs beside them.
  std::vector<StepMetrics> train_with(
      const std::string& name, const Sets& sets, const std::array<OwnBoard*, kRanks>& boards,
      const std::function<void()>& ask = [] {}) {
    std::filesystem::create_directories(directory(name));
    // 12 sequences divide among 3 ranks.
    const Sets all = Sets{"training.global_batch_sequences=12", "checkpoint.interval=0",
                          "validation.interval=0", "metrics.tensorboard=false"} +
                     sets;
    const Job job = parse_job(small_job(folder_.path() + "/data", kSteps), "small.toml", all);
    comm::WorldOptions world;
    world.size = kRanks;
    world.arena = false;
    world.timeout = std::chrono::seconds(60);
    std::thread other(ask);
    comm::run_on_threads(world, [&](const comm::Group& group) {
      RunOptions options;
      options.job = job;
      options.run_directory = directory(name);
      options.world = group;
      options.console = false;
      options.board = &boards[static_cast<std::size_t>(group.rank())]->board;
      const int code = train(options);
      if (group.rank() == 0) code_ = code;
    });
    other.join();
    return read_metrics(RunDirectory(directory(name)).metrics());
  }

  std::vector<std::int64_t> saved(const std::string& name) const {
    std::vector<std::int64_t> steps;
    for (const auto& step : checkpoint::format::list_steps(directory(name) + "/checkpoints"))
      steps.push_back(step.step);
    return steps;
  }

  static void wait_until(const std::function<bool()>& holds) {
    while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  TemporaryFolder folder_;
  std::atomic<int> code_ = -1;
};

/// A run that ends only when it is asked to, so that a slow machine is no reason to miss it.
const Sets kEndless{"training.steps=100000", "lr_scheduler.name=constant"};

TEST_F(SteeredRun, TheBoardShowsHowFarItIs) {
  OwnBoard board;
  train_with("run", {}, {&board, &board, &board});
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(board.run.first_step, 0);
  EXPECT_EQ(board.run.total_steps, kSteps);
  EXPECT_EQ(board.run.phase, RunPhase::kEnding);
  for (const RankLine& rank : board.ranks) {
    EXPECT_EQ(rank.step, kSteps);
    EXPECT_GT(rank.progress_ns, board.run.trained_since_ns);
  }
  EXPECT_EQ(board.run.saves_answered, 0);
}

// The request reaches rank 0 alone, in the middle of a step: all ranks must save the same one, and
// no loss may change.
TEST_F(SteeredRun, ACheckpointIsWrittenBeforeTheNextStep) {
  std::vector<double> expected;
  for (const char* asynchronous : {"none", "true", "false"}) {
    const auto boards = std::make_unique<std::array<OwnBoard, kRanks>>();
    auto& [rank_0, rank_1, rank_2] = *boards;
    const bool asks = std::string(asynchronous) != "none";
    const auto ask = [&, &first = rank_0, &last = rank_2] {
      // On another host's board it is not a request.
      last.run.saves_asked = 5;
      wait_until([&] { return first.ranks[0].step >= 3; });
      if (asks) {
        ++first.run.saves_asked;
        wait_until([&] { return first.run.saves_answered == 1; });
      }
      wait_until([&] { return first.ranks[0].step >= first.run.saved_step + 5; });
      first.run.stop_asked = true;
    };
    const Sets sets = asks ? Sets{std::string("checkpoint.asynchronous=") + asynchronous} : Sets{};
    const auto metrics =
        train_with(asynchronous, kEndless + sets, {&rank_0, &rank_1, &rank_2}, ask);
    EXPECT_EQ(code_, 128 + SIGTERM);
    std::vector<double> losses;
    for (const StepMetrics& step : metrics) losses.push_back(step.loss);
    const std::int64_t last = metrics.back().step;
    if (!asks) {
      expected = losses;
      EXPECT_THAT(saved(asynchronous), ElementsAre(last));
      continue;
    }
    const std::size_t both = std::min(losses.size(), expected.size());
    losses.resize(both);
    EXPECT_EQ(losses, std::vector<double>(expected.begin(), expected.begin() + both));
    const std::int64_t step = rank_0.run.saved_step;
    // Steps 1 and 2 are complete when the third has begun.
    EXPECT_GE(step, 2);
    EXPECT_THAT(saved(asynchronous), ElementsAre(step, last));
    EXPECT_EQ(rank_2.run.saves_answered, 0);
  }
}

// Two requests before a step are one checkpoint; and one that is there already answers.
TEST_F(SteeredRun, ARequestBeforeTheFirstStepIsAnsweredByItsState) {
  OwnBoard board;
  board.run.saves_asked = 2;
  train_with("run", {}, {&board, &board, &board});
  EXPECT_EQ(board.run.saves_answered, 2);
  EXPECT_EQ(board.run.saved_step, 0);
  EXPECT_THAT(saved("run"), ElementsAre(0, kSteps));
  OwnBoard again;
  again.run.saves_asked = 1;
  train_with("run", {"training.steps=8"}, {&again, &again, &again});
  EXPECT_EQ(again.run.first_step, kSteps);
  EXPECT_EQ(again.run.saves_answered, 1);
  EXPECT_EQ(again.run.saved_step, kSteps) << "the checkpoint from which it resumed";
}

TEST_F(SteeredRun, AnyRankMayBeAskedToStopAndAllSaveAndStop) {
  const auto boards = std::make_unique<std::array<OwnBoard, kRanks>>();
  auto& [rank_0, rank_1, rank_2] = *boards;
  const auto metrics = train_with("run", kEndless, {&rank_0, &rank_1, &rank_2}, [&asked = rank_2] {
    wait_until([&] { return asked.ranks[2].step >= 2; });
    asked.run.stop_asked = true;
  });
  EXPECT_EQ(code_, 128 + SIGTERM);
  EXPECT_THAT(saved("run"), ElementsAre(metrics.back().step));
}

}  // namespace
}  // namespace shoal::train::steered_run_test
