#include "shoal/checkpoint/saver.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/store.h"
#include "tests/checkpoint/file_size_limit.h"
#include "tests/checkpoint/sharded_state.h"
#include "tests/checkpoint/thread_ranks.h"
#include "tests/checkpoint_format/scratch.h"

namespace shoal::checkpoint::saver_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace testing;

constexpr Sharding kAll[] = {Sharding::kReplicated, Sharding::kRows, Sharding::kColumns,
                             Sharding::kFlat};
const comm::Group kAlone;

/// Every file of a folder by its name.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename()] = slurp(entry.path());
  return files;
}

/// A state of several blocks: 3 x 1.5 blocks of float32.
std::vector<StateItem> large_state(float value) {
  constexpr std::int64_t kFloats = format::kBlockElements * 3 / 2;
  std::vector<StateItem> items;
  for (const char* name : {"model.a", "model.b", "model.c"})
    items.push_back({.name = name, .local = at::full({kFloats}, value), .global_shape = {kFloats}});
  return items;
}

void change(const std::vector<StateItem>& items) {
  for (const StateItem& item : items) item.local.zero_();
}

TEST(Saver, WritesTheBytesThatSaveWritesThoughTheStateGoesOn) {
  const GlobalState state;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const Sharding sharding : kAll) {
      for (const std::int64_t staging : {0, 300, 1 << 20}) {
        Scratch plain;
        Scratch behind;
        run_ranks(ranks, [&](const comm::Group& group) {
          save(plain.path(), 3, items_of(state, sharding, group.rank(), ranks), "{\"a\":1}", group,
               {.fsync = false});
          Saver saver(group, {.staging_bytes = staging, .writer_share = 1});
          const auto items = items_of(state, sharding, group.rank(), ranks);
          saver.start(behind.path(), 3, items, "{\"a\":1}", {.fsync = false});
          saver.before_update();
          wipe(items);
          EXPECT_EQ(saver.wait().path, behind / "step-3");
        });
        ASSERT_EQ(files_of(plain / "step-3"), files_of(behind / "step-3"))
            << ranks << " x " << name(sharding) << ", staging of " << staging;
      }
    }
  }
}

TEST(Saver, BlocksAreSavedAsTheyWereWithAnyStaging) {
  for (const std::int64_t staging :
       {std::int64_t{0}, std::int64_t{5} << 20, std::int64_t{512} << 20}) {
    Scratch scratch;
    Saver saver(kAlone, {.staging_bytes = staging, .writer_share = 0.5});
    for (int step = 1; step <= 3; ++step) {
      const auto items = large_state(static_cast<float>(step));
      saver.start(scratch.path(), step, items, "{}", {.fsync = false});
      saver.before_update();
      change(items);
      saver.before_update();
      saver.wait();
      const auto found = large_state(-1);
      const auto expected = large_state(static_cast<float>(step));
      load(scratch / ("step-" + std::to_string(step)), found, kAlone);
      EXPECT_TRUE(same(found, expected));
    }
  }
}

TEST(Saver, PollTellsOnceWhatWasDone) {
  Scratch scratch;
  run_ranks(3, [&](const comm::Group& group) {
    Saver saver(group);
    EXPECT_FALSE(saver.poll());
    const auto items = items_of(GlobalState(), Sharding::kFlat, group.rank(), 3);
    saver.start(scratch.path(), 7, items, "{}");
    EXPECT_TRUE(saver.busy());
    EXPECT_THROW(saver.start(scratch.path(), 8, items, "{}"), Error) << "the next save waits";
    std::optional<Saved> saved;
    while (!saved) saved = saver.poll();
    EXPECT_EQ(saved->path, scratch / "step-7");
    EXPECT_LE(saved->held_up, saved->took);
    EXPECT_FALSE(saver.busy());
    EXPECT_FALSE(saver.poll());
  });
}

TEST(Saver, NothingIsThereUnderItsNameBeforeAllIsWritten) {
  Scratch scratch;
  // At a millionth of a core the six blocks take an hour, unless somebody waits for them.
  Saver saver(kAlone, {.staging_bytes = 64 << 20, .writer_share = 1e-6});
  const auto items = large_state(1);
  saver.start(scratch.path(), 1, items, "{}");
  saver.before_update();
  change(items);
  EXPECT_FALSE(saver.poll());
  EXPECT_TRUE(fs::exists(scratch / ".writing-step-1"));
  EXPECT_TRUE(format::list_steps(scratch.path()).empty());
  saver.wait();
  EXPECT_EQ(format::newest_step(scratch.path())->step, 1);
}

TEST(Saver, GoneInTheMiddleItLeavesTheLastCheckpoint) {
  Scratch scratch;
  save(scratch.path(), 1, large_state(1), "{}", kAlone, {.fsync = false});
  {
    Saver saver(kAlone, {.writer_share = 1e-6});
    saver.start(scratch.path(), 2, large_state(2), "{}");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
  EXPECT_EQ(format::newest_step(scratch.path())->step, 1);
}

TEST(Saver, AFullDiskIsEveryRanksErrorAndThePreviousCheckpointStays) {
  Scratch scratch;
  const auto state = [](int rank, float value) {
    StateItem item{.name = "w", .local = at::full({1 << 16}, value), .global_shape = {2 << 16}};
    item.boxes = {{{rank << 16}, {(rank + 1) << 16}}};
    return std::vector<StateItem>{item};
  };
  std::optional<FileSizeLimit> full;  // of the whole process
  const auto thrown = on_ranks(2, [&](const comm::Group& group) {
    Saver saver(group);
    saver.start(scratch.path(), 1, state(group.rank(), 1), "{}");
    saver.wait();
    if (group.rank() == 0) full.emplace(100'000);
    group.barrier();
    const auto items = state(group.rank(), 2);
    saver.start(scratch.path(), 2, items, "{}");
    saver.before_update();
    change(items);
    // The trainer goes on until a poll says it.
    try {
      while (!saver.poll()) std::this_thread::yield();
    } catch (const Error&) {
      EXPECT_FALSE(saver.busy());
      throw;
    }
  });
  for (const auto& error : thrown) {
    try {
      ASSERT_TRUE(error);
      std::rethrow_exception(error);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kOutput);
      EXPECT_THAT(e.what(), HasSubstr("free space"));
    }
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
  EXPECT_EQ(format::newest_step(scratch.path())->step, 1);
  format::Reader(scratch / "step-1").verify();
}

TEST(Saver, OptionsOutsideTheirRangeAreRefused) {
  EXPECT_THROW(Saver(kAlone, {.staging_bytes = -1}), Error);
  EXPECT_THROW(Saver(kAlone, {.writer_share = 0}), Error);
  EXPECT_THROW(Saver(kAlone, {.writer_share = 1.5}), Error);
  EXPECT_NO_THROW(Saver(kAlone, {.staging_bytes = 0, .writer_share = 1}));
  EXPECT_EQ(SaverOptions().staging_bytes, std::int64_t{512} << 20);
  EXPECT_EQ(SaverOptions().writer_share, 0.2);
  Scratch scratch;
  Saver saver(kAlone);
  EXPECT_THROW(saver.wait(), Error) << "nothing is being saved";
  EXPECT_THROW(saver.start(scratch.path(), -1, large_state(1), "{}"), Error);
  EXPECT_THROW(saver.start(scratch.path(), 1, large_state(1), "{}", {.keep_last = -1}), Error);
  EXPECT_FALSE(saver.busy());
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

// What it costs is told; the memory for it is taken once, as much as is needed.
TEST(Saver, TellsItsTimeAndItsMemory) {
  Scratch scratch;
  Saver saver(kAlone, {.staging_bytes = std::int64_t{64} << 20, .writer_share = 1});
  EXPECT_EQ(saver.staged_bytes(), 0);
  for (int step = 1; step <= 2; ++step) {
    const auto begin = Clock::now();
    const auto items = large_state(1);
    saver.start(scratch.path(), step, items, "{}", {.fsync = false});
    saver.before_update();
    EXPECT_LE(saver.staged_bytes(), std::int64_t{18} << 20);
    const Saved saved = saver.wait();
    EXPECT_GT(saved.held_up.count(), 0);
    EXPECT_GE(saved.took, saved.held_up);
    EXPECT_LE(saved.took, Clock::now() - begin);
  }
}

}  // namespace
}  // namespace shoal::checkpoint::saver_test
