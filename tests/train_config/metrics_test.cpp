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

namespace shoal::train::metrics_test {
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

TEST(Metrics, EveryFigureHasItsKey) {
  StepMetrics m = step(2);
  m.step_s = 0.5;
  m.mfu = 0.25;
  m.data_wait_s = 0.125;
  m.comm_exposed_s = 0.0625;
  m.loss_scale = 1024;
  m.skipped = true;
  m.memory_bytes = 21;
  for (std::size_t c = 0; c < m.memory.size(); ++c) m.memory[c] = 1 + static_cast<double>(c);
  m.evaluation = Evaluation{.loss = 1.5,
                            .labels = 7,
                            .bits_per_byte = 2.5,
                            .accuracy = 0.75,
                            .mean_squared_error = 3.5,
                            .mean_absolute_error = 4.5};
  EXPECT_EQ(to_json(m),
            "{\"step\": 2, \"loss\": 1.6666666666666667, \"grad_norm\": null, \"lr\": "
            "0.00029999999999999997, \"tokens\": 1024, \"tokens_per_s\": 1234.5, \"step_s\": 0.5, "
            "\"mfu\": 0.25, \"data_wait_s\": 0.125, \"comm_exposed_s\": 0.0625, \"loss_scale\": "
            "1024, \"memory_bytes\": 21, \"memory_temporary_bytes\": 1, "
            "\"memory_parameters_bytes\": 2, \"memory_gradients_bytes\": 3, "
            "\"memory_optimizer_bytes\": 4, \"memory_activations_bytes\": 5, "
            "\"memory_communication_bytes\": 6, \"skipped\": true, \"eval_loss\": 1.5, "
            "\"eval_labels\": 7, \"eval_bits_per_byte\": 2.5, \"eval_accuracy\": 0.75, "
            "\"eval_mse\": 3.5, \"eval_mae\": 4.5}");
  const StepMetrics back = parse_metrics(to_json(m));
  EXPECT_EQ(back.step, 2);
  EXPECT_EQ(back.lr, 3e-4);
  EXPECT_EQ(back.tokens_per_s, 1234.5);
  EXPECT_EQ(back.step_s, 0.5);
  EXPECT_EQ(back.mfu, 0.25);
  EXPECT_EQ(back.data_wait_s, 0.125);
  EXPECT_EQ(back.comm_exposed_s, 0.0625);
  EXPECT_TRUE(std::isinf(back.grad_norm));
  EXPECT_TRUE(back.skipped);
  EXPECT_EQ(back.loss_scale, 1024);
  EXPECT_EQ(back.memory, m.memory);
  ASSERT_TRUE(back.evaluation);
  EXPECT_EQ(back.evaluation->labels, 7);
  EXPECT_EQ(back.evaluation->accuracy, 0.75);
  EXPECT_EQ(back.evaluation->mean_squared_error, 3.5);
  EXPECT_EQ(back.evaluation->mean_absolute_error, 4.5);
  EXPECT_EQ(to_json(*m.evaluation),
            "{\"eval_loss\": 1.5, \"eval_labels\": 7, \"eval_bits_per_byte\": 2.5, "
            "\"eval_accuracy\": 0.75, \"eval_mse\": 3.5, \"eval_mae\": 4.5}");
  const StepMetrics plain = parse_metrics(to_json(step(1)));
  EXPECT_EQ(plain.grad_norm, 0.1);
  EXPECT_FALSE(plain.skipped || plain.evaluation || plain.loss_scale || plain.memory_bytes);
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
    EXPECT_FALSE(is_finite({.loss = 1, .labels = 1, .accuracy = value}));
    EXPECT_FALSE(is_finite({.loss = 1, .labels = 1, .mean_squared_error = value}));
    EXPECT_FALSE(is_finite({.loss = 1, .labels = 1, .mean_absolute_error = value}));
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

// A step that the checkpoint has stays; from another start nothing does.
TEST(Metrics, ResumingKeepsTheStepOfTheCheckpoint) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (int i = 1; i <= 3; ++i) file.append(step(i));
  }
  { const MetricsFile again(path, 2); }
  const auto all = read_metrics(path);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all.back().step, 2);
  EXPECT_EQ(text_of(path), to_json(step(1)) + "\n" + to_json(step(2)) + "\n");
  { const MetricsFile anew(path, 0); }
  EXPECT_EQ(text_of(path), "");
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
}  // namespace shoal::train::metrics_test
