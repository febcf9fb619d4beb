#include "shoal/base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "shoal/base/error.h"

namespace shoal::file_test {
namespace {

namespace fs = std::filesystem;

/// An empty folder that is removed with all it holds.
class File : public testing::Test {
 protected:
  File() : folder_(fs::path(testing::TempDir()) / ("file_test-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~File() override { fs::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(File, ReadsEveryByte) {
  const std::string bytes("a\r\n\0b\xff", 6);
  std::ofstream(path("some"), std::ios::binary) << bytes;
  std::ofstream(path("empty"));
  EXPECT_EQ(read_text(path("some")), bytes);
  EXPECT_EQ(read_text(path("empty")), "");
  EXPECT_EQ(read_text(path("none")), std::nullopt);
  EXPECT_EQ(read_text(folder_.string()), std::nullopt);
}

TEST_F(File, IsClosedAgain) {
  std::ofstream(path("some")) << "text";
  // The kernel gives a new file the lowest number that is free.
  const int before = ::dup(0);
  ::close(before);
  EXPECT_EQ(read_text(path("some")), "text");
  EXPECT_EQ(read_text(folder_.string()), std::nullopt);
  const int after = ::dup(0);
  ::close(after);
  EXPECT_EQ(after, before);
}

TEST_F(File, ReadsWhatIsLargerThanOneRead) {
  std::string bytes;
  for (std::size_t i = 0; i < 300'001; ++i) bytes.push_back(static_cast<char>(i * 7 + i / 256));
  std::ofstream(path("large"), std::ios::binary) << bytes;
  EXPECT_EQ(read_text(path("large")), bytes);
}

/// Replaces the text of `path` where no file may have more than four bytes, and ends the process:
/// by 0 where that is an Error(output).
[[noreturn]] void replace_on_a_full_disk(const std::string& path) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4, 4};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  try {
    replace_text(path, "longer than four bytes", "test");
  } catch (const Error& error) {
    std::_Exit(error.kind() == ErrorKind::kOutput ? 0 : 1);
  }
  std::_Exit(2);
}

// The bytes are still in the stream's buffer when the last one is written: closing writes them, and
// fails.
TEST_F(File, ADiskThatIsFullIsNoticedAtTheEnd) {
  replace_text(path("text"), "old", "test");
  EXPECT_EXIT(replace_on_a_full_disk(path("text")), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_text(path("text")), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(File, ReplacesTheWholeFileAndLeavesNothingBeside) {
  replace_text(path("text"), "the first, longer text", "test");
  replace_text(path("text"), "second", "test");
  EXPECT_EQ(read_text(path("text")), "second");
  EXPECT_EQ(files(), 1u);
}

TEST_F(File, AReplacementThatFailsKeepsTheOldFile) {
  fs::create_directories(folder_ / "taken" / "inside");
  try {
    replace_text(path("taken"), "text", "test");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutput);
    EXPECT_EQ(error.operation(), "test");
  }
  EXPECT_TRUE(fs::is_directory(folder_ / "taken" / "inside"));
  EXPECT_EQ(files(), 1u);
  EXPECT_THROW(replace_text(path("no folder/text"), "text", "test"), Error);
}

}  // namespace
}  // namespace shoal::file_test
