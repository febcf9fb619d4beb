#include "shoal/wire/rendezvous.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/address.h"
#include "shoal/wire/store.h"
#include "tests/error_of.h"
#include "tests/wire/delayed_relay.h"
#include "tests/wire/soon.h"

namespace shoal::wire::rendezvous_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::string a_file() {
  return testing::TempDir() + "rendezvous_test-" + std::to_string(::getpid());
}

TEST(Rendezvous, AtAFileThatIsGoneWhenAllAreThere) {
  Rendezvous first("file:" + a_file(), "key", 0, "127.0.0.1", soon());
  Rendezvous second("file:" + a_file(), "key", 1, "", soon());
  second.store().set("x", "from rank 1", soon());
  EXPECT_EQ(first.store().get("x", soon()), "from rank 1");
  EXPECT_TRUE(std::filesystem::exists(a_file()));
  second.all_ranks_connected();
  EXPECT_TRUE(std::filesystem::exists(a_file())) << "rank 0 made it";
  first.all_ranks_connected();
  EXPECT_FALSE(std::filesystem::exists(a_file()));
  std::ofstream(a_file()) << "of a later job";
  first.all_ranks_connected();
  EXPECT_TRUE(std::filesystem::exists(a_file())) << "it is removed once";
  std::filesystem::remove(a_file());
}

TEST(Rendezvous, ThatFailsLeavesNoFile) {
  { const Rendezvous first("file:" + a_file(), "key", 0, "127.0.0.1", soon()); }
  EXPECT_FALSE(std::filesystem::exists(a_file()));
}

TEST(Rendezvous, WithoutRank0IsATimeout) {
  const auto briefly = [] { return Deadline::in(milliseconds(30)); };
  const Error no_file = error_of([&] { Rendezvous("file:" + a_file(), "key", 1, "", briefly()); });
  EXPECT_EQ(no_file.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(no_file.what(), HasSubstr("rank 0 did not write " + a_file()));
  const Error no_port = error_of([&] { Rendezvous("127.0.0.1:1", "key", 1, "", briefly()); });
  EXPECT_EQ(no_port.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(no_port.peer(), 0);
  EXPECT_THAT(no_port.what(), HasSubstr("ports 1 to 16"));
  const Error last = error_of([&] { Rendezvous("127.0.0.1:65530", "key", 1, "", briefly()); });
  EXPECT_THAT(last.what(), HasSubstr("ports 65530 to 65535"));
}

TEST(Rendezvous, AMalformedPlaceIsAMistakeOfTheJobFile) {
  for (const int rank : {0, 1}) {
    EXPECT_EQ(error_of([&] { Rendezvous("nowhere", "key", rank, "", soon()); }).kind(),
              ErrorKind::kConfig);
  }
}

/// A port that is free together with the 15 above it.
std::vector<Descriptor> sixteen_listeners() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::vector<Descriptor> all;
    all.push_back(listen_on("127.0.0.1", {0, 0}));
    const int first = local_endpoint(all.front().get()).port;
    try {
      for (int port = first + 1; port < first + 16 && port <= 65535; ++port) {
        const auto one = static_cast<std::uint16_t>(port);
        all.push_back(listen_on("127.0.0.1", {one, one}));
      }
    } catch (const Error&) {
      continue;  // another program has one of them
    }
    if (all.size() == 16) return all;
  }
  return {};
}

TEST(Rendezvous, TriesTheFifteenPortsAboveToo) {
  std::vector<Descriptor> taken = sixteen_listeners();
  ASSERT_EQ(taken.size(), 16u);
  const std::uint16_t first = local_endpoint(taken.front().get()).port;
  const std::string place = "127.0.0.1:" + std::to_string(first);
  EXPECT_EQ(error_of([&] { Rendezvous(place, "key", 0, "", soon()); }).kind(),
            ErrorKind::kResource);
  taken.pop_back();
  Rendezvous rank_0(place, "key", 0, "", soon());
  EXPECT_NO_THROW(
      StoreClient(Endpoint{"127.0.0.1", static_cast<std::uint16_t>(first + 15)}, "key", soon()));
}

// Half a second at each of the 15 ports before the store's would be more than the deadline.
TEST(Rendezvous, PortsThatRefuseDoNotHoldUpARankThatLooksForTheStore) {
  constexpr int kPorts = 16;
  const StoreServer store("127.0.0.1", {0, 0}, "key");
  const int first = store.endpoint().port - (kPorts - 1);
  const Deadline deadline = Deadline::in(std::chrono::seconds(4));
  Rendezvous rendezvous(fmt::format("127.0.0.1:{}", first), "key", 1, "127.0.0.1", deadline);
  EXPECT_FALSE(deadline.passed());
}

TEST(Rendezvous, WithAnotherKeyTheTimeoutSaysWhatTheStoreDid) {
  const StoreServer store("127.0.0.1", {0, 0}, "another key");
  const std::string there = store.endpoint().text();
  std::ofstream(a_file()) << there << "\n";
  const Error error = error_of(
      [] { Rendezvous("file:" + a_file(), "key", 1, "", Deadline::in(milliseconds(300))); });
  std::filesystem::remove(a_file());
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr(there + ": the other side closed the connection"));
}

// A connection and its handshake take three round trips.
TEST(Rendezvous, FindsAStoreThatIsFarAway) {
  const StoreServer store("127.0.0.1", {0, 0}, "key");
  const DelayedRelay relay(store.endpoint(), milliseconds(200));
  const std::string place = "127.0.0.1:" + std::to_string(relay.endpoint().port);
  Rendezvous rendezvous(place, "key", 1, "", Deadline::in(std::chrono::seconds(20)));
  rendezvous.store().set("x", "from afar", soon());
  EXPECT_EQ(rendezvous.store().wait("x", soon()), "from afar");
}

// A job that was killed leaves its file. The ranks of the next one may start before its rank 0.
TEST(Rendezvous, AFileOfAnEarlierJobDoesNotMisleadARankThatComesFirst) {
  std::ofstream(a_file()) << "127.0.0.1:1\n";
  std::thread second([&] {
    Rendezvous rank_1("file:" + a_file(), "key", 1, "", Deadline::in(std::chrono::seconds(20)));
    rank_1.store().set("x", "found", soon());
  });
  std::this_thread::sleep_for(milliseconds(100));
  Rendezvous first("file:" + a_file(), "key", 0, "127.0.0.1", soon());
  EXPECT_EQ(first.store().wait("x", soon()), "found");
  second.join();
  first.all_ranks_connected();
}

}  // namespace
}  // namespace shoal::wire::rendezvous_test
