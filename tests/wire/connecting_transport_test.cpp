#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/error_of.h"
#include "tests/wire/soon.h"

namespace shoal::wire::connecting_transport_test {
namespace {

using testing::HasSubstr;

TEST(TcpTransport, ARankThatIsNoneIsRefused) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  StoreClient client(store.endpoint(), "key", soon());
  for (const auto& [rank, size] : {std::pair{0, 0}, {-1, 2}, {2, 2}}) {
    try {
      const TcpTransport transport({.key = "key"}, client, rank, size, soon());
      ADD_FAILURE() << rank << " of " << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }
}

TEST(TcpTransport, ARankThatWaitsForAnotherHearsThatTheJobHasFailed) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  auto second = std::async(std::launch::async, [&] {
    StoreClient client(store.endpoint(), "key", soon());
    return error_of(
        [&] { TcpTransport({.key = "key"}, client, 2, 3, Deadline::in(std::chrono::minutes(2))); });
  });
  StoreClient client(store.endpoint(), "key", soon());
  const Error own = error_of([&] {
    TcpTransport({.key = "key"}, client, 0, 3, Deadline::in(std::chrono::milliseconds(500)));
  });
  EXPECT_THAT(own.what(), HasSubstr("these ranks did not come: 1"));
  ASSERT_EQ(second.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_THAT(second.get().what(), HasSubstr("these ranks did not come: 1"));
}

TEST(TcpTransport, ARankThatDoesNotAnswerIsNamed) {
  StoreServer store("127.0.0.1", {0, 0}, "key");
  StoreClient client(store.endpoint(), "key", soon());
  client.set("peers/world/0", "127.0.0.1:1", soon());
  const Error error = error_of(
      [&] { TcpTransport({.key = "key"}, client, 1, 2, Deadline::in(std::chrono::seconds(1))); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.peer(), 0);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 does not answer at 127.0.0.1:1"));
}

/// Returns a listener whose address drops further callers: its queue is full of these.
Descriptor listener_that_drops(std::vector<Descriptor>& callers) {
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  EXPECT_EQ(listen(listener.get(), 0), 0);
  for (int i = 0; i < 4; ++i) callers.push_back(begin_connect(local_endpoint(listener.get())));
  return listener;
}

// One attempt to connect takes two seconds there. A view may be over in its first milliseconds.
TEST(TcpTransport, WhoConnectsToASilentAddressAsksWhetherToGoOn) {
  std::vector<Descriptor> callers;
  const Descriptor listener = listener_that_drops(callers);
  StoreServer store("127.0.0.1", {0, 0}, "key");
  StoreClient client(store.endpoint(), "key", soon());
  client.set("peers/world/0", local_endpoint(listener.get()).text(), soon());
  std::atomic<int> asked = 0;
  const auto may_go_on = [&] {
    if (++asked == 8) throw Error(ErrorKind::kAborted, "test", "the view is over");
  };
  const auto begin = Clock::now();
  const Error error =
      error_of([&] { TcpTransport({.key = "key", .may_go_on = may_go_on}, client, 1, 2, soon()); });
  EXPECT_THAT(error.what(), HasSubstr("the view is over"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
}

}  // namespace
}  // namespace shoal::wire::connecting_transport_test
