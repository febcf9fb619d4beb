#include "shoal/data/file.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <vector>

#include "shoal/base/error.h"
#include "tests/data/folder.h"

namespace shoal::data::file_test {
namespace {

namespace fs = std::filesystem;

std::string path_of(int descriptor) {
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

/// While it lives, what an fsync finds is recorded: the file, its bytes, and what stands under
/// `target` at that moment.
struct SyncWatch {
  struct Seen {
    std::string file, bytes, target;
  };

  explicit SyncWatch(std::string target) : target(std::move(target)) { current = this; }
  ~SyncWatch() { current = nullptr; }

  std::string target;
  bool failing = false;
  std::vector<Seen> seen;

  static inline SyncWatch* current = nullptr;
};

}  // namespace
}  // namespace shoal::data::file_test

// The library under test finds this before the system's.
extern "C" int fsync(int descriptor) {
  using namespace shoal::data;
  using namespace file_test;
  if (SyncWatch* watch = SyncWatch::current) {
    const std::string path = path_of(descriptor);
    watch->seen.push_back({fs::path(path).filename(), content(path), content(watch->target)});
    if (watch->failing) {
      errno = EIO;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace shoal::data::file_test {
namespace {

ErrorKind kind_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TEST(File, ReachesTheDiskBeforeItHasItsName) {
  const Folder folder;
  const std::string path = folder.write("f", "old");
  SyncWatch watch(path);
  write_file(path, "the new bytes");
  ASSERT_EQ(watch.seen.size(), 1u) << "a power cut could leave the name without its bytes";
  EXPECT_EQ(watch.seen[0].file, "f.part");
  EXPECT_EQ(watch.seen[0].bytes, "the new bytes");
  EXPECT_EQ(watch.seen[0].target, "old");
  EXPECT_EQ(content(path), "the new bytes");
  EXPECT_FALSE(fs::exists(path + ".part"));
}

TEST(File, WhatCannotBeWrittenLeavesTheOldFileAndNothingElse) {
  const Folder folder;
  const std::string path = folder.write("f", "old");
  {
    SyncWatch watch(path);
    watch.failing = true;
    EXPECT_EQ(kind_of([&] { write_file(path, "new"); }), ErrorKind::kOutput);
  }
  EXPECT_EQ(content(path), "old");
  folder.write("full/inside", "x");
  EXPECT_EQ(kind_of([&] { write_file(folder / "full", "new"); }), ErrorKind::kOutput)
      << "a folder has that name";
  EXPECT_EQ(kind_of([&] { write_file(folder / "absent/f", "new"); }), ErrorKind::kOutput);
  EXPECT_EQ(contents(folder.path() + "/full").size(), 1u);
  EXPECT_FALSE(fs::exists(path + ".part"));
  EXPECT_FALSE(fs::exists(folder / "full.part"));
}

TEST(File, MissingAndUnreadableAreToldApart) {
  const Folder folder;
  EXPECT_EQ(kind_of([&] { read_file(folder / "absent"); }), ErrorKind::kInputMissing);
  EXPECT_EQ(kind_of([&] { read_file(folder.path()); }), ErrorKind::kData) << "a folder";
  EXPECT_EQ(kind_of([&] { MappedFile(folder / "absent"); }), ErrorKind::kInputMissing);
  EXPECT_EQ(kind_of([&] { MappedFile(folder.path()); }), ErrorKind::kData);
  EXPECT_EQ(kind_of([&] { FileLock(folder / "absent/lock"); }), ErrorKind::kOutput);
  const std::string bytes("a\0b\n", 4);
  EXPECT_EQ(read_file(folder.write("f", bytes)), bytes);
  EXPECT_EQ(read_file(folder.write("empty", "")), "");
  EXPECT_EQ(MappedFile(folder / "empty").bytes(), "");
}

TEST(File, AMappingMovesWithItsBytes) {
  const Folder folder;
  MappedFile first(folder.write("f", "first"));
  MappedFile second(folder.write("g", "second one"));
  second = std::move(first);
  EXPECT_EQ(second.bytes(), "first");
  const MappedFile third(std::move(second));
  EXPECT_EQ(third.bytes(), "first");
  EXPECT_EQ(second.bytes(), "");  // NOLINT: a moved mapping is empty
}

// The check value of the catalogue of CRCs: CRC-32/ISO-HDLC of "123456789".
TEST(File, ChecksumIsThatOfZipAndGoesOn) {
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(crc32("6789", crc32("12345")), 0xcbf43926u);
}

}  // namespace
}  // namespace shoal::data::file_test
