#include "shoal/train/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>

namespace shoal::train::progress_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics long_step() {
  return {.step = 123456,
          .loss = 10.123456,
          .grad_norm = 123456.7,
          .lr = 1.234e-5,
          .tokens = 1 << 20,
          .tokens_per_s = 123456,
          .evaluation = {}};
}

/// What a terminal of `width` columns is sent for one step and a line above it.
std::string drawn(int width) {
  int ours = -1;
  int terminal = -1;
  winsize size{};
  size.ws_row = 24, size.ws_col = static_cast<unsigned short>(width);
  EXPECT_EQ(::openpty(&ours, &terminal, nullptr, nullptr, &size), 0);
  std::FILE* out = ::fdopen(terminal, "w");
  Progress progress(out, true, 1, 0, 1000000, "tokens");
  progress.step(long_step());
  progress.print("above");
  std::fclose(out);
  std::string text;
  for (char c; ::read(ours, &c, 1) == 1;) text += c;
  ::close(ours);
  return text;
}

/// The lines of it without the signs that clear a line.
std::vector<std::string> lines_of(std::string text) {
  for (std::size_t at; (at = text.find("\x1b[K")) != std::string::npos;) text.replace(at, 3, "\n");
  std::erase(text, '\r');
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Progress, TheLineNeverWraps) {
  for (const int width : {10, 40, 80, 200}) {
    const auto lines = lines_of(drawn(width));
    ASSERT_GE(lines.size(), 4u) << width;
    for (const std::string& line : lines)
      EXPECT_LT(line.size(), static_cast<std::size_t>(width)) << line;
    EXPECT_EQ(lines[1].substr(0, 8), "step 123") << width;
    EXPECT_EQ(lines.back(), lines[1]) << "drawn again below what was said";
  }
}

TEST(Progress, TheNarrowerTheFewerWords) {
  const auto at = [](int width) { return lines_of(drawn(width))[1]; };
  EXPECT_THAT(at(200), HasSubstr("step 123456/1000000  loss 10.1235  lr 1.23e-05  123 k tokens/s  "
                                 "grad norm 1.23e+05  ETA "));
  EXPECT_THAT(at(80), HasSubstr("loss 10.1235  lr 1.23e-05  123 k tokens/s  ETA "));
  EXPECT_EQ(at(40), "step 123456/1000000  loss 10.1235");
  EXPECT_EQ(at(10), "step 1234");
}

TEST(Progress, MemoryIsToldByCategory) {
  StepMetrics step = long_step();
  step.memory_bytes = 2e9;
  step.memory[static_cast<std::size_t>(MemoryCategory::kParameters)] = 0.6e9;
  step.memory[static_cast<std::size_t>(MemoryCategory::kActivations)] = 1.3e9;
  step.memory[static_cast<std::size_t>(MemoryCategory::kTemporary)] = 0.05e9;
  std::FILE* out = std::tmpfile();
  Progress(out, false, 1, 0, 1000000, "tokens").step(step);
  std::rewind(out);
  char line[400] = {};
  EXPECT_TRUE(std::fgets(line, sizeof line, out));
  std::fclose(out);
  EXPECT_THAT(line, HasSubstr("  mem 2 GB  (activations 65 %, parameters 30 %)  ETA "));
}

TEST(Progress, WordsGoInTheirOrder) {
  const std::vector<ProgressWord> words = {{"aaaa", 2}, {"bbbb", 0}, {"cccc", 1}};
  EXPECT_EQ(fitted(words, 0), "aaaa  bbbb  cccc");
  EXPECT_EQ(fitted(words, 16), "aaaa  bbbb  cccc");
  EXPECT_EQ(fitted(words, 15), "aaaa  cccc");
  EXPECT_EQ(fitted(words, 9), "aaaa");
  EXPECT_EQ(fitted(words, 3), "aaa");
}

}  // namespace
}  // namespace shoal::train::progress_test
