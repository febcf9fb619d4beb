#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/saver.h"
#include "tests/checkpoint/file_size_limit.h"
#include "tests/checkpoint/sharded_state.h"
#include "tests/checkpoint_format/scratch.h"

namespace shoal::checkpoint::crash_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace testing;

const comm::Group kAlone;

/// A state of `floats` numbers, each of which is the step.
std::vector<StateItem> state_at(std::int64_t step, std::int64_t floats) {
  std::vector<StateItem> items;
  for (int i = 0; i < 4; ++i) {
    items.push_back({.name = "model.w" + std::to_string(i),
                     .local = at::full({floats / 4}, static_cast<double>(step), at::kFloat),
                     .global_shape = {floats / 4}});
  }
  return items;
}

/// The newest checkpoint loads and holds what was saved at its step.
void expect_newest_is_whole(const std::string& directory, std::int64_t floats) {
  const auto newest = format::newest_step(directory);
  ASSERT_TRUE(newest);
  const auto items = state_at(-1, floats);
  EXPECT_EQ(load(newest->path, items, kAlone).step, newest->step);
  for (const StateItem& item : items)
    EXPECT_TRUE(item.local.equal(at::full_like(item.local, static_cast<double>(newest->step))));
}

/// A child at work saves one step after the other.
void wait_for_step(const std::string& directory, std::int64_t step) {
  for (const Deadline end = Deadline::in(std::chrono::seconds(60)); !end.passed();
       std::this_thread::sleep_for(std::chrono::microseconds(200)))
    if (const auto newest = format::newest_step(directory); newest && newest->step >= step) return;
  FAIL() << "step " << step << " was not saved";
}

TEST(Crash, KilledAtTwentyInstantsOfSavingThereIsAlwaysALoadableCheckpoint) {
  constexpr std::int64_t kFloats = 1 << 16;
  Scratch scratch;
  save(scratch.path(), 0, state_at(0, kFloats), "{}", kAlone, {.fsync = false});
  std::mt19937 random(11);
  std::int64_t steps_seen = 0;
  for (int round = 0; round < 20; ++round) {
    const std::int64_t from = format::newest_step(scratch.path())->step;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Every third save is of a step that exists already: replacing must be as safe as adding.
      for (std::int64_t i = 1;; ++i) {
        save(scratch.path(), from + i - i / 3, state_at(from + i - i / 3, kFloats), "{}", kAlone,
             {.keep_last = 2, .fsync = false});
      }
    }
    wait_for_step(scratch.path(), from + 2);
    std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 40'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    expect_newest_is_whole(scratch.path(), kFloats);
    steps_seen = format::newest_step(scratch.path())->step;
  }
  EXPECT_GT(steps_seen, 20)
      << "the children were killed before they saved anything: the test shows nothing";
}

TEST(Crash, KilledAtTwentyInstantsOfSavingBehindTrainingThereIsAlwaysALoadableCheckpoint) {
  constexpr std::int64_t kFloats = 1 << 16;
  Scratch scratch;
  save(scratch.path(), 0, state_at(0, kFloats), "{}", kAlone, {.fsync = false});
  std::mt19937 random(12);
  int torn = 0;
  // How many of the instants lie in a save is the machine's to say: it goes on until it has met
  // some.
  for (int round = 0; round < 20 || (torn < 5 && round < 200); ++round) {
    const std::int64_t from = format::newest_step(scratch.path())->step;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Saver saver(kAlone, {.staging_bytes = round % 2 ? 0 : 1 << 20, .writer_share = 0.5});
      for (std::int64_t step = from + 1;; ++step) {
        const auto items = state_at(step, kFloats);
        saver.start(scratch.path(), step, items, "{}", {.keep_last = 2, .fsync = false});
        saver.before_update();
        for (const StateItem& item : items) item.local.fill_(-1);
        saver.wait();
      }
    }
    wait_for_step(scratch.path(), from + 2);
    std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 40'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    for (const auto& entry : fs::directory_iterator(scratch.path()))
      torn += entry.path().filename().string().starts_with(".writing");
    expect_newest_is_whole(scratch.path(), kFloats);
  }
  EXPECT_GT(format::newest_step(scratch.path())->step, 20)
      << "the children were killed before they saved anything: the test shows nothing";
  EXPECT_GE(torn, 5) << "few were killed while they saved: the test shows little";
}

TEST(Crash, WhenWritingFailsThePreviousCheckpointStaysAndTheRestGoes) {
  constexpr std::int64_t kFloats = 1 << 16;
  Scratch scratch;
  const std::string directory = scratch / "checkpoints";
  save(directory, 1, state_at(1, kFloats), "{}", kAlone);
  // 100 bytes stop the header, 100 kB the data.
  for (const rlim_t limit : {100, 100'000}) {
    const FileSizeLimit full(limit);
    try {
      save(directory, 2, state_at(2, kFloats), "{}", kAlone);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutput);
      EXPECT_THAT(error.what(), HasSubstr(directory));
      EXPECT_THAT(error.what(), HasSubstr("free space"));
    }
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), fs::directory_iterator()), 1);
  expect_newest_is_whole(directory, kFloats);
  save(directory, 2, state_at(2, kFloats), "{}", kAlone);
  EXPECT_EQ(format::newest_step(directory)->step, 2);
}

}  // namespace
}  // namespace shoal::checkpoint::crash_test
