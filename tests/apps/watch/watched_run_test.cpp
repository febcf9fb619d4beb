// Runs of the real trainer, steered from beside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/apps/program.h"

namespace shoal::apps::testing::watched_run_test {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class WatchedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("job.toml", R"([model]
family = "mlp"
widths = [16]
[data]
source = "regression"
samples = 512
[training]
global_batch_sequences = 24
steps = 1000000
[checkpoint]
interval = 0
[validation]
interval = 0
[metrics]
tensorboard = false
[parallelism]
ranks = 3
timeout_s = 600
)");
  }
  Outcome shoal(std::vector<std::string> words) const {
    words.insert(words.begin(), shoal_program());
    return run(words, folder.path());
  }
  /// The number behind `before` in `text`.
  static std::int64_t number(const std::string& text, const std::string& before) {
    const auto at = text.find(before);
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + before.size()));
  }

  Folder folder;
};

TEST_F(WatchedRun, IsSavedDiagnosedAndStopped) {
  for (const bool threads : {false, true}) {
    std::filesystem::remove_all(folder.path() / "run");
    std::vector<std::string> words = {shoal_program(), "train", "job.toml", "--run-dir", "run"};
    if (threads) words.emplace_back("--in-process");
    Program job(words, folder.path());
    ASSERT_TRUE(appears(folder, "run/metrics.jsonl"));

    const Outcome saved = shoal({"save", "run"});
    ASSERT_EQ(saved.code, 0) << saved.err;
    const std::int64_t step = number(saved.out, "saved run/checkpoints/step-");
    EXPECT_GE(step, 0) << saved.out;
    EXPECT_EQ(shoal({"ckpt", "verify", "run/checkpoints/step-" + std::to_string(step)}).code, 0);

    const Outcome status = shoal({"status", "run"});
    EXPECT_THAT(status.out, ContainsRegex("^run: training, step [0-9]+ of 1000000 "));
    EXPECT_THAT(status.out, ContainsRegex("\nloss [0-9.]+  .* samples/s  MFU "));
    EXPECT_THAT(status.out, HasSubstr("rank 2 of 3  process "));
    EXPECT_THAT(shoal({"diagnose", "run"}).out, HasSubstr("The ranks go on"));

    if (!threads) {
      const std::string shown = shoal({"status", "run", "--json"}).out;
      const auto rank_1 = shown.substr(shown.find("{\"rank\":1,"));
      const auto process = static_cast<pid_t>(number(rank_1, "\"process\":"));
      ASSERT_EQ(::kill(process, SIGSTOP), 0);
      Outcome stuck = shoal({"diagnose", "run"});
      EXPECT_EQ(stuck.code, 1);
      EXPECT_THAT(stuck.out, HasSubstr("rank 1 of 3 stands still: a signal has stopped it"));
      // Where memory is shared, the others have the records of the rank that cannot speak. It may
      // have been stopped before an operation or inside it.
      EXPECT_THAT(stuck.out, ContainsRegex("waiting in #[0-9]+ "));
      EXPECT_THAT(stuck.out, AnyOf(HasSubstr("rank 1 never entered it (its last was #"),
                                   HasSubstr("inside it")));
      EXPECT_THAT(stuck.out, Not(HasSubstr("left no record")));
      ASSERT_EQ(::kill(process, SIGCONT), 0);
      EXPECT_THAT(shoal({"diagnose", "run"}).out, HasSubstr("The ranks go on"));
    }

    const Outcome stopped = shoal({"stop", "run"});
    EXPECT_EQ(stopped.code, 0) << stopped.err;
    const Outcome outcome = job.wait();
    EXPECT_EQ(outcome.code, 143) << outcome.err;
    const std::int64_t last = number(stopped.out, "saved run/checkpoints/step-");
    EXPECT_GT(last, step);
    EXPECT_EQ(number(outcome.out, "Stopped by SIGTERM after step "), last);
    EXPECT_TRUE(folder.has("run/checkpoints/step-" + std::to_string(step))) << "both are kept";
  }
}

}  // namespace
}  // namespace shoal::apps::testing::watched_run_test
