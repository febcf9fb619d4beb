#include "shoal/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "shoal/base/file.h"

namespace shoal::log_test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class LogOfARank : public testing::Test {
 protected:
  ~LogOfARank() override { std::filesystem::remove(path_); }

  static void write_all(const Log& log) {
    log.debug("step {}", 1);
    log.info("step {}", 2);
    log.warning("step {}", 3);
    log.error("step {}", 4);
  }

  std::string path_ = testing::TempDir() + "log_test-" + std::to_string(::getpid());
};

TEST_F(LogOfARank, WritesToItsFileAndToTheConsoleFromTheirLevels) {
  testing::internal::CaptureStderr();
  write_all(Log(path_, 3, LogLevel::kInfo, LogLevel::kError));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[rank 3] error: step 4\n");
  const std::string text = read_text(path_).value();
  EXPECT_THAT(text, Not(HasSubstr("step 1")));
  EXPECT_THAT(text, MatchesRegex("[-0-9]+T[0-9:.]+ rank 3 info: step 2\n"
                                 "[-0-9]+T[0-9:.]+ rank 3 warning: step 3\n"
                                 "[-0-9]+T[0-9:.]+ rank 3 error: step 4\n"));
}

TEST_F(LogOfARank, MaySayAllOrNothing) {
  testing::internal::CaptureStderr();
  write_all(Log(path_, 0, LogLevel::kDebug, LogLevel::kNothing));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(read_text(path_).value(), HasSubstr("rank 0 debug: step 1\n"));
  testing::internal::CaptureStderr();
  write_all(Log("", 0, LogLevel::kDebug, LogLevel::kWarning));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[rank 0] warning: step 3\n[rank 0] error: step 4\n");
}

// Whoever reads the log of a job that runs, or was killed, finds what it has said.
TEST_F(LogOfARank, IsOnDiskAtOnceFromInfoOn) {
  const Log log(path_, 1, LogLevel::kInfo, LogLevel::kNothing);
  log.info("here");
  EXPECT_THAT(read_text(path_).value(), HasSubstr("here"));
}

TEST_F(LogOfARank, WithoutALoggerIsSilent) {
  testing::internal::CaptureStderr();
  write_all(Log());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace shoal::log_test
