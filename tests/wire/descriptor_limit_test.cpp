// What happens where a process may open no more descriptors: the error says so, at once, and the
// number of connections that ranks choose by themselves stays within the limit.
#include "shoal/wire/descriptor_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "shoal/wire/address.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/error_of.h"
#include "tests/wire/soon.h"

namespace shoal::wire::descriptor_limit_test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

/// Runs `body` in a process of its own, whose limits may be lowered for good. Returns what it
/// returns, at most a few hundred characters.
std::string in_a_child(const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string said = body();
    [[maybe_unused]] const auto n = write(ends[1], said.data(), said.size());
    std::_Exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[256];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;)
    said.append(part, static_cast<std::size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return said;
}

void limit_descriptors(rlim_t soft, rlim_t hard) {
  const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(DescriptorLimit, TheSoftLimitIsRaisedAsFarAsTheHardOne) {
  const auto raised = [](rlim_t soft, rlim_t hard, std::uint64_t connections) {
    return in_a_child([&] {
      limit_descriptors(soft, hard);
      const auto limit = allow_descriptors_for(connections);
      rlimit now{};
      getrlimit(RLIMIT_NOFILE, &now);
      return std::to_string(limit) + " " + std::to_string(now.rlim_cur);
    });
  };
  EXPECT_EQ(raised(256, 900, 32), "800 800");
  EXPECT_EQ(raised(256, 900, 1000), "900 900");
  EXPECT_EQ(raised(850, 900, 32), "850 850") << "there is room";
}

// The address would be blamed, for as long as the caller waits.
TEST(DescriptorLimit, AConnectionWithoutADescriptorIsAnErrorAtOnceThatSaysSo) {
  const StoreServer store("127.0.0.1", {0, 0}, "key");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = dup(0);
  close(free);
  limit_descriptors(static_cast<rlim_t>(free), before.rlim_max);
  const auto begin = Clock::now();
  const Error once = error_of([&] { connect_once(store.endpoint(), soon()); });
  const Error error = error_of([&] { connect_to(store.endpoint(), Deadline::in(seconds(10))); });
  const Duration taken = Clock::now() - begin;
  limit_descriptors(before.rlim_cur, before.rlim_max);
  EXPECT_EQ(once.kind(), ErrorKind::kResource) << once.what();
  EXPECT_EQ(error.kind(), ErrorKind::kResource) << error.what();
  EXPECT_THAT(error.what(),
              HasSubstr("as many open descriptors as it may have, " + std::to_string(free)));
  EXPECT_THAT(error.hint(), HasSubstr("ulimit -n"));
  EXPECT_THAT(error.hint(), HasSubstr("parallelism.rails"));
  EXPECT_LT(taken, seconds(5));
}

/// Joins a world of 2 with all the rails that there may be, and returns what that throws. A rank
/// whose last connections are accepted while its peer gives up has joined: it hears why then, for
/// which it waits.
std::string error_of_joining(const Endpoint& store, int rank, Duration longest) {
  return error_of([&] {
           StoreClient client(store, "key", soon());
           TcpTransport transport({.key = "key", .rails = kMostRails}, client, rank, 2,
                                  Deadline::in(longest));
           for (const Deadline end = Deadline::in(longest); !end.passed();) {
             transport.check();
             transport.wait_for_event(transport.events(), std::chrono::milliseconds(10));
           }
         })
      .what();
}

// Two ranks of one process use it up, and the one that connects is the first to know.
TEST(DescriptorLimit, ARankThatCannotConnectAllItsRailsSaysWhy) {
  const auto begin = Clock::now();
  const std::string said = in_a_child([] {
    limit_descriptors(64, 64);
    const StoreServer store("127.0.0.1", {0, 0}, "key");
    std::thread zero([&] { error_of_joining(store.endpoint(), 0, seconds(60)); });
    const std::string error = error_of_joining(store.endpoint(), 1, seconds(60));
    zero.join();
    return error;
  });
  EXPECT_THAT(said, HasSubstr("rank 0 at 127.0.0.1"));
  EXPECT_THAT(said, HasSubstr("as many open descriptors as it may have, 64"));
  EXPECT_LT(Clock::now() - begin, seconds(20));
}

// The kernel accepts for it, so to the rank that connects it looks as if nobody answered.
TEST(DescriptorLimit, ARankThatCannotAcceptAllRailsSaysWhy) {
  std::array<int, 2> tell{};
  ASSERT_EQ(pipe(tell.data()), 0);
  // This process has no other threads yet: ThreadSanitizer lets no child of one that has start any.
  const pid_t rank_0 = fork();
  if (rank_0 == 0) {
    limit_descriptors(48, 48);
    const StoreServer store("127.0.0.1", {0, 0}, "key");
    const std::uint16_t port = store.endpoint().port;
    [[maybe_unused]] const auto n = write(tell[1], &port, sizeof port);
    error_of_joining(store.endpoint(), 0, seconds(1));
    std::_Exit(0);
  }
  std::uint16_t port = 0;
  ASSERT_EQ(read(tell[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const std::string said = error_of_joining({"127.0.0.1", port}, 1, seconds(20));
  waitpid(rank_0, nullptr, 0);
  for (const int end : tell) close(end);
  EXPECT_THAT(said, HasSubstr("these ranks did not come: 1"));
  EXPECT_THAT(said, HasSubstr("as many open descriptors as it may have, 48"));
}

}  // namespace
}  // namespace shoal::wire::descriptor_limit_test
