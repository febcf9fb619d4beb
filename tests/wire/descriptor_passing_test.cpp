#include "shoal/wire/descriptor_passing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"

namespace shoal::wire::descriptor_passing_test {
namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/// A message, and what its receiver got.
struct Received {
  bool good = false;
  std::uint64_t value = 0;
  std::vector<Descriptor> descriptors;
};

Received pass(std::size_t bytes, const std::vector<int>& descriptors) {
  auto [from, to] = socket_pair(SOCK_SEQPACKET);
  const std::uint64_t values[2] = {42, 43};
  EXPECT_TRUE(send_with(from.get(), values, bytes, descriptors));
  Received received;
  received.good =
      receive_with(to.get(), &received.value, sizeof received.value, received.descriptors, soon());
  return received;
}

TEST(DescriptorPassing, DescriptorsArriveInOrderAndAreClosedInOtherPrograms) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor out(ends[0]);
  const Descriptor in(ends[1]);
  const Received received = pass(8, {in.get(), out.get()});
  EXPECT_TRUE(received.good);
  EXPECT_EQ(received.value, 42u);
  ASSERT_EQ(received.descriptors.size(), 2u);
  char c = 0;
  EXPECT_EQ(write(received.descriptors[0].get(), "!", 1), 1);
  EXPECT_EQ(read(received.descriptors[1].get(), &c, 1), 1);
  EXPECT_EQ(c, '!');
  for (const Descriptor& one : received.descriptors)
    EXPECT_NE(fcntl(one.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(DescriptorPassing, AMessageMayComeWithoutDescriptors) {
  const Received received = pass(8, {});
  EXPECT_TRUE(received.good);
  EXPECT_TRUE(received.descriptors.empty());
}

// What came with a message of another size is taken over too, so that it does not stay open.
TEST(DescriptorPassing, AMessageOfAnotherSizeIsRefused) {
  const Descriptor some(dup(0));
  for (const std::size_t bytes : {std::size_t{7}, std::size_t{16}}) {
    int taken = -1;
    {
      const Received received = pass(bytes, {some.get()});
      EXPECT_FALSE(received.good) << bytes;
      ASSERT_EQ(received.descriptors.size(), 1u);
      taken = received.descriptors.front().get();
      EXPECT_TRUE(is_open(taken));
    }
    EXPECT_FALSE(is_open(taken));
  }
}

TEST(DescriptorPassing, WaitsUntilTheDeadline) {
  const auto [from, to] = socket_pair(SOCK_SEQPACKET);
  std::uint64_t value = 0;
  std::vector<Descriptor> descriptors;
  const auto before = Clock::now();
  EXPECT_FALSE(receive_with(to.get(), &value, sizeof value, descriptors,
                            Deadline::in(std::chrono::milliseconds(20))));
  EXPECT_GE(Clock::now() - before, std::chrono::milliseconds(19));
}

TEST(DescriptorPassing, AnEndThatIsGoneTakesNothing) {
  auto [from, to] = socket_pair(SOCK_SEQPACKET);
  to = Descriptor();
  EXPECT_FALSE(send_with(from.get(), "x", 1, {}));
}

TEST(Descriptor, ClosesWhatItHolds) {
  const int fd = dup(0);
  {
    Descriptor first(fd);
    Descriptor second = std::move(first);
    EXPECT_EQ(first.get(), -1);  // NOLINT(bugprone-use-after-move): it holds nothing
    EXPECT_EQ(second.get(), fd);
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
  const int kept = Descriptor(dup(0)).release();
  EXPECT_TRUE(is_open(kept));
  close(kept);
}

}  // namespace
}  // namespace shoal::wire::descriptor_passing_test
