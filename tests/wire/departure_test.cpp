// Ranks that leave in good order while others go on, and ranks that are killed while processes that
// they have forked live on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/wire/soon.h"

namespace shoal::wire::departure_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::unique_ptr<TcpTransport> join(const Endpoint& store, int rank, int size, Duration silence,
                                   int rails = 1) {
  StoreClient client(store, "key", soon());
  return std::make_unique<TcpTransport>(
      TcpTransport::Options{
          .key = "key", .heartbeat = milliseconds(50), .silence = silence, .rails = rails},
      client, rank, size, soon());
}

/// Connects `size` transports of this process.
std::vector<std::unique_ptr<TcpTransport>> connect(const StoreServer& store, int size,
                                                   Duration silence) {
  std::vector<std::unique_ptr<TcpTransport>> all(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      all[static_cast<std::size_t>(rank)] = join(store.endpoint(), rank, size, silence);
    });
  }
  for (auto& thread : threads) thread.join();
  return all;
}

/// Returns the failure of a transport; empty while there is none.
std::string failure_of(const TcpTransport& transport) {
  try {
    transport.check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The others say nothing more to a rank that has left, which may live on: a Python program that has
// destroyed its group may keep a model that refers to it.
TEST(Departure, ARankThatHasLeftAndLivesOnBlamesNobody) {
  const StoreServer store("127.0.0.1", {0, 0}, "key");
  const auto all = connect(store, 3, milliseconds(400));
  all[0]->leave();
  std::this_thread::sleep_for(milliseconds(1200));
  for (const auto& transport : all) EXPECT_EQ(failure_of(*transport), "");
  all[1]->send(2, {1, 1}, 0, Bytes(3, std::byte{1}));
  all[1]->flush();
  for (const Deadline end = soon(); !all[2]->has_arrived(1, {1, 1}) && !end.passed();)
    all[2]->wait_for_event(all[2]->events(), milliseconds(1));
  EXPECT_TRUE(all[2]->has_arrived(1, {1, 1}));
}

/// Has rank `killed` of 2, a process of its own, connect with `rails` and be killed. Says how the
/// other rank, which is this process, finds that.
void expect_missed_at_once(int killed, int rails) {
  std::array<int, 2> life{};
  std::array<int, 2> tell{};
  ASSERT_EQ(pipe(life.data()), 0);
  ASSERT_EQ(pipe(tell.data()), 0);
  // This process has no other threads yet: ThreadSanitizer lets no child of one that has start any.
  const pid_t other = fork();
  if (other == 0) {
    close(life[1]);
    std::uint16_t port = 0;
    if (read(tell[0], &port, sizeof port) != sizeof port) std::_Exit(1);
    const auto transport = join({"127.0.0.1", port}, killed, 2, seconds(60), rails);
    if (fork() == 0) {
      char byte = 0;
      [[maybe_unused]] const auto n = read(life[0], &byte, 1);  // until the test ends
      std::_Exit(0);
    }
    // What it says of itself has come by then.
    std::this_thread::sleep_for(milliseconds(300));
    kill(getpid(), SIGKILL);
  }
  {
    const StoreServer store("127.0.0.1", {0, 0}, "key");
    const std::uint16_t port = store.endpoint().port;
    ASSERT_EQ(write(tell[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
    const auto transport = join(store.endpoint(), 1 - killed, 2, seconds(60), rails);
    int status = 0;
    waitpid(other, &status, 0);
    const auto begin = Clock::now();
    for (const Deadline end = Deadline::in(seconds(10)); failure_of(*transport).empty();) {
      if (end.passed()) break;
      transport->wait_for_event(transport->events(), milliseconds(10));
    }
    EXPECT_LT(Clock::now() - begin, milliseconds(500));
    // A rank with bytes that it has not read is reset by its kernel, which is told in other words.
    const std::string name = "rank " + std::to_string(killed);
    EXPECT_THAT(failure_of(*transport),
                AnyOf(HasSubstr(name + " closed its connection"), HasSubstr(name + " is lost")));
  }
  for (const int end : {life[0], life[1], tell[0], tell[1]}) close(end);
}

// A worker that a rank has forked holds none of the rank's connections, nor its listener: when the
// rank is killed, its peers see the end at once, and not after the time of silence.
TEST(Departure, ARankThatIsKilledIsMissedAtOnceThoughItsForkedChildLivesOn) {
  expect_missed_at_once(1, 1);
}

// Neither the rank that connects nor the one that is connected to waits for another connection.
TEST(Departure, AHigherRankThatIsKilledIsMissedAtOnceOnSeveralRails) {
  expect_missed_at_once(1, 4);
}

TEST(Departure, ALowerRankThatIsKilledIsMissedAtOnceOnSeveralRails) { expect_missed_at_once(0, 4); }

}  // namespace
}  // namespace shoal::wire::departure_test
