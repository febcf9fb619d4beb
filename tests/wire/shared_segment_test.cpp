#include "shoal/wire/shared_segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::wire::shared_segment_test {
namespace {

const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

/// A memfd of so many bytes with these seals.
int memory(std::size_t bytes, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  }
  return fd;
}

TEST(SharedSegment, NobodyCanChangeItsSizeOrItsSeals) {
  const SharedSegment segment = SharedSegment::create("test", 3 * kPage);
  ASSERT_TRUE(segment);
  EXPECT_EQ(segment.bytes(), 3 * kPage);
  EXPECT_NE(ftruncate(segment.fd(), static_cast<off_t>(kPage)), 0);
  EXPECT_NE(ftruncate(segment.fd(), static_cast<off_t>(4 * kPage)), 0);
  EXPECT_NE(fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_NE(fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedSegment, AnotherMappingShowsTheSameBytes) {
  const SharedSegment segment = SharedSegment::create("test", kPage);
  const SharedSegment other = SharedSegment::adopt(dup(segment.fd()));
  EXPECT_EQ(other.bytes(), kPage);
  segment.data()[17] = std::byte{5};
  EXPECT_EQ(other.data()[17], std::byte{5});
}

// A peer could truncate what is not sealed, and every access would end this process.
TEST(SharedSegment, OnlySealedMemoryIsAdopted) {
  const auto refused = [](int fd) {
    try {
      SharedSegment::adopt(fd);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kData && fcntl(fd, F_GETFD) < 0;  // closed
    }
    return false;
  };
  EXPECT_TRUE(refused(memory(kPage, 0)));
  EXPECT_TRUE(refused(memory(kPage, F_SEAL_GROW)));
  EXPECT_TRUE(refused(memory(0, F_SEAL_SHRINK)));
  EXPECT_TRUE(refused(open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_TRUE(SharedSegment::adopt(memory(kPage, F_SEAL_SHRINK)));
}

TEST(SharedSegment, GivesBackWholePagesOnly) {
  const SharedSegment segment = SharedSegment::create("test", 4 * kPage);
  std::memset(segment.data(), 1, 4 * kPage);
  segment.punch(kPage - 1, 2 * kPage + 2);  // pages 1 and 2, and a byte at each side
  for (std::size_t i = 0; i < 4 * kPage; ++i) {
    const bool given_back = i >= kPage && i < 3 * kPage;
    ASSERT_EQ(segment.data()[i], std::byte{given_back ? std::uint8_t{0} : std::uint8_t{1}}) << i;
  }
  segment.punch(1, kPage);  // no whole page
  EXPECT_EQ(segment.data()[kPage - 1], std::byte{1});
}

TEST(SharedSegment, APrivateCopySeesNothingOfLaterWrites) {
  const SharedSegment segment = SharedSegment::create("test", kPage);
  const SharedSegment other = SharedSegment::adopt(dup(segment.fd()));
  segment.data()[0] = std::byte{1};
  segment.make_private();
  EXPECT_EQ(segment.data()[0], std::byte{1});
  segment.data()[0] = std::byte{2};
  EXPECT_EQ(other.data()[0], std::byte{1});
}

TEST(SharedSegment, MovesAndEnds) {
  SharedSegment first = SharedSegment::create("test", kPage);
  const int fd = first.fd();
  std::byte* const data = first.data();
  {
    SharedSegment second = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): it holds nothing
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(second.bytes(), kPage);
  }
  EXPECT_LT(fcntl(fd, F_GETFD), 0);
}

}  // namespace
}  // namespace shoal::wire::shared_segment_test
