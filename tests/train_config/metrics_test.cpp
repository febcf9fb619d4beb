#include "shoal/train/config/metrics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "shoal/base/error.h"
#include "tests/train/file_size_limit.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train {
namespace {

StepMetrics step(std::int64_t number) {
  return {.step = number,
          .loss = 10.0 / 3 / number,
          .grad_norm = 0.1 * number,
          .lr = 3e-4,
          .tokens = 512 * number,
          .tokens_per_s = 1234.5,
          .evaluation = {}};
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Metrics, NumbersReadBackToTheSameBits) {
  StepMetrics m = step(7);
  m.loss = 0.1 + 0.2;
  m.evaluation = Evaluation{.loss = 2.0 / 3, .labels = 99, .bits_per_byte = 1.1};
  m.memory_bytes = 3e9, m.memory[static_cast<std::size_t>(MemoryCategory::kGradients)] = 1e9 / 3;
  const StepMetrics back = parse_metrics(to_json(m));
  EXPECT_EQ(back.memory_bytes, 3e9);
  EXPECT_EQ(back.memory, m.memory);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(back.loss), std::bit_cast<std::uint64_t>(m.loss));
  EXPECT_EQ(back.evaluation->loss, 2.0 / 3);
  EXPECT_EQ(back.evaluation->bits_per_byte, 1.1);
  EXPECT_FALSE(back.evaluation->accuracy);
  EXPECT_EQ(back.tokens, m.tokens);
  EXPECT_THROW(parse_metrics("{\"step\": 1}"), Error);
}

TEST(Metrics, OneLineAStepWithTheKeysThatScriptsRelyOn) {
  EXPECT_EQ(
      to_json(
          {.step = 3, .loss = 1.5, .grad_norm = 2, .lr = 0.25, .tokens = 96, .tokens_per_s = 8}),
      "{\"step\": 3, \"loss\": 1.5, \"grad_norm\": 2, \"lr\": 0.25, \"tokens\": 96, "
      "\"tokens_per_s\": 8}");
}

TEST(Metrics, WhatIsNoNumberIsNotWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile file(path, 0);
  for (const double value : {std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(), std::nan("")}) {
    StepMetrics bad = step(1);
    bad.loss = value;
    EXPECT_THROW(file.append(bad), Error);
    bad = step(1);
    bad.evaluation = Evaluation{.loss = value, .labels = 1};
    EXPECT_THROW(file.append(bad), Error);
    EXPECT_FALSE(is_finite(*bad.evaluation));
    EXPECT_FALSE(is_finite({.loss = 1, .labels = 1, .bits_per_byte = value}));
    EXPECT_FALSE(is_finite({.loss = 1, .labels = 1, .mean_squared_error = value}));
  }
  EXPECT_TRUE(is_finite({.loss = 1, .labels = 1, .accuracy = 0.5}));
  EXPECT_EQ(text_of(path), "");
}

TEST(Metrics, ABrokenLineIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile(path, 0).append(step(1));
  std::ofstream(path, std::ios::app) << "{\"step\": 2, \"loss\": inf}\n";
  for (const auto& reads : std::vector<std::function<void()>>{[&] { read_metrics(path); },
                                                              [&] { MetricsFile(path, 5); }}) {
    try {
      reads();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find(path + ":2: "), std::string::npos) << error.what();
    }
  }
}

TEST(Metrics, ResumingCutsLaterAndTornLines) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (int i = 1; i <= 5; ++i) file.append(step(i));
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"lo";
  MetricsFile(path, 3).append(step(4));
  const auto all = read_metrics(path);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all.back().step, 4);
  EXPECT_EQ(text_of(path).back(), '\n');
}

TEST(Metrics, AFullDiskIsAnErrorAndKeepsWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile file(path, 0);
  file.append(step(1));
  const FileSizeLimit limit(std::filesystem::file_size(path) + 10);
  EXPECT_THROW(file.append(step(2)), Error);
  EXPECT_EQ(read_metrics(path).size(), 1u);
}

}  // namespace
}  // namespace shoal::train
