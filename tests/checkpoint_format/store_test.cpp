#include "shoal/checkpoint/format/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/reader.h"
#include "tests/checkpoint_format/scratch.h"
#include "tests/checkpoint_format/written_checkpoint.h"

namespace shoal::checkpoint::format::store_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

std::string write(const std::string& directory, std::int64_t step, std::int32_t seed = 0) {
  return testing::write_checkpoint(directory, step,
                                   {{testing::source("w", {8}, whole({8}), seed)}});
}

std::vector<std::int64_t> steps(const std::string& directory) {
  std::vector<std::int64_t> numbers;
  for (const Step& step : list_steps(directory)) numbers.push_back(step.step);
  return numbers;
}

TEST(Store, ListsByNumberAndFindsTheNewest) {
  testing::Scratch scratch;
  EXPECT_TRUE(list_steps(scratch / "absent").empty());
  for (const int step : {9, 100, 20}) write(scratch / "checkpoints", step);
  fs::create_directories(scratch / "checkpoints/step-500");  // no manifest: not complete
  fs::create_directories(scratch / "checkpoints/step-x");
  EXPECT_THAT(steps(scratch / "checkpoints"), ElementsAre(9, 20, 100));
  EXPECT_EQ(newest_step(scratch / "checkpoints")->step, 100);
  const std::string newest = scratch / "checkpoints/step-100";
  for (const std::string& path : {scratch.path(), scratch / "checkpoints", newest})
    EXPECT_EQ(fs::canonical(resolve_checkpoint(path)), fs::canonical(newest));
  EXPECT_THROW(resolve_checkpoint(scratch / "absent"), Error);
}

TEST(Store, WhatIsBeingWrittenDoesNotCountAndIsRemoved) {
  testing::Scratch scratch;
  write(scratch.path(), 1);
  const std::string folder = begin_step(scratch.path(), 2);
  testing::spill(folder + "/manifest.json", "{}");
  EXPECT_THAT(steps(scratch.path()), ElementsAre(1));
  prune_steps(scratch.path(), 0);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_THAT(steps(scratch.path()), ElementsAre(1));
}

// What a killed run left must not become part of the checkpoint that is written anew.
TEST(Store, WritingAStepBeginsInAnEmptyFolder) {
  testing::Scratch scratch;
  testing::spill(begin_step(scratch / "deep/er", 2) + "/shard-0007-00.safetensors", "old");
  EXPECT_TRUE(fs::is_empty(begin_step(scratch / "deep/er", 2)));
  abandon_step(scratch / "deep/er", 2);
  EXPECT_TRUE(fs::is_empty(scratch / "deep/er"));
}

TEST(Store, WhatWasBeingRemovedGoesAltogether) {
  testing::Scratch scratch;
  write(scratch.path(), 1);
  fs::create_directories(scratch / ".removing-step-7/inside");
  fs::create_directories(scratch / "notes");
  prune_steps(scratch.path(), 0);
  EXPECT_FALSE(fs::exists(scratch / ".removing-step-7"));
  EXPECT_TRUE(fs::exists(scratch / "notes")) << "what is no checkpoint is left alone";
  // What stands in the way of removing is removed first.
  for (const int step : {2, 3}) write(scratch.path(), step);
  prune_steps(scratch.path(), 2);
  EXPECT_THAT(steps(scratch.path()), ElementsAre(2, 3));
  prune_steps(scratch.path(), 2);
  EXPECT_THAT(steps(scratch.path()), ElementsAre(2, 3)) << "as many as are kept";
}

TEST(Store, OnlyWholeNumbersAreSteps) {
  testing::Scratch scratch;
  for (const char* name :
       {"step-", "step--1", "step-1x", "step-0x1", "xstep-1", "step-99999999999999999999"}) {
    fs::create_directories(scratch / name);
    testing::spill(scratch / name + "/manifest.json", "{}");
  }
  EXPECT_THAT(steps(scratch.path()), ElementsAre());
  EXPECT_FALSE(newest_step(scratch.path()));
  fs::create_directories(scratch / "step-0");
  testing::spill(scratch / "step-0/manifest.json", "{}");
  EXPECT_THAT(steps(scratch.path()), ElementsAre(0));
}

TEST(Store, SavingAStepAgainReplacesIt) {
  testing::Scratch scratch;
  write(scratch.path(), 4, 1);
  const std::string path = write(scratch.path(), 4, 2);
  Reader reader(path);
  std::vector<std::int32_t> found(8);
  reader.read(*reader.manifest().find("w"), whole({8}), found.data());
  EXPECT_EQ(found, testing::counted(whole({8}), {8}, 2));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1)
      << "the old one is left behind";
}

TEST(Store, KeepsTheNewest) {
  testing::Scratch scratch;
  for (int step = 1; step <= 5; ++step) write(scratch.path(), step);
  prune_steps(scratch.path(), 0);
  EXPECT_EQ(steps(scratch.path()).size(), 5);
  prune_steps(scratch.path(), 2);
  EXPECT_THAT(steps(scratch.path()), ElementsAre(4, 5));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 2);
}

TEST(Store, NeverRemovesWhatWasJustSaved) {
  testing::Scratch scratch;
  for (const int step : {3, 8, 9}) write(scratch.path(), step);
  prune_steps(scratch.path(), 1, 3);
  EXPECT_THAT(steps(scratch.path()), ElementsAre(3, 9));
}

TEST(Store, SaysWhereItCannotWrite) {
  testing::Scratch scratch;
  testing::spill(scratch / "plain", "a file, not a folder");
  try {
    begin_step(scratch / "plain", 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutput);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(scratch / "plain"));
  }
}

}  // namespace
}  // namespace shoal::checkpoint::format::store_test
