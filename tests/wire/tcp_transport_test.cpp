#include "shoal/wire/tcp_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "shoal/wire/store.h"
#include "tests/wire/soon.h"

namespace shoal::wire::tcp_transport_test {
namespace {

TEST(TcpTransport, HasTheDefaultsOfItsDocumentation) {
  const TcpTransport::Options options;
  EXPECT_EQ(options.name, "world");
  EXPECT_EQ(options.heartbeat, std::chrono::milliseconds(400));
  EXPECT_EQ(options.silence, Duration()) << "silence_for the round trip";
}

/// Two transports that are connected.
struct Two {
  Two() {
    auto other = std::async(std::launch::async, [&] {
      StoreClient client(store.endpoint(), "key", soon());
      return std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key"}, client, 1, 2,
                                            soon());
    });
    StoreClient client(store.endpoint(), "key", soon());
    zero =
        std::make_unique<TcpTransport>(TcpTransport::Options{.key = "key"}, client, 0, 2, soon());
    one = other.get();
  }
  StoreServer store{"127.0.0.1", {0, 0}, "key"};
  std::unique_ptr<TcpTransport> zero;
  std::unique_ptr<TcpTransport> one;
};

TEST(TcpTransport, RanksAnswerForTheGroupsThatTheyKnow) {
  Two two;
  const Duration minute = std::chrono::minutes(1);
  two.one->answer_for(7, [] { return Bytes(5, std::byte{9}); });
  two.one->answer_for(8, [] { return Bytes(2, std::byte{1}); });
  two.zero->answer_for(7, [] { return Bytes(1, std::byte{0}); });
  auto answers = two.zero->ask(7, minute);
  EXPECT_FALSE(answers[0]) << "this rank does not ask itself";
  EXPECT_EQ(answers[1], Bytes(5, std::byte{9}));
  EXPECT_EQ(two.zero->ask(8, minute)[1], Bytes(2, std::byte{1}));
  EXPECT_FALSE(two.zero->ask(9, minute)[1]);
  two.one->answer_for(7, nullptr);
  EXPECT_FALSE(two.zero->ask(7, minute)[1]);
}

TEST(TcpTransport, ARankThatLeftIsGoneAndNoFailure) {
  Two two;
  EXPECT_FALSE(two.zero->gone(1));
  two.one->send(0, {1, 1}, 0, Bytes(3 << 20));
  two.one.reset();  // what it has sent arrives all the same
  for (const Deadline end = soon(); !two.zero->gone(1) && !end.passed();)
    two.zero->wait_for_event(two.zero->events(), std::chrono::milliseconds(1));
  EXPECT_TRUE(two.zero->gone(1));
  EXPECT_NO_THROW(two.zero->check());
  std::size_t bytes = 0;
  while (const auto chunk = two.zero->take(1, {1, 1})) bytes += chunk->bytes();
  EXPECT_EQ(bytes, 3u << 20);
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const Bytes body(10);
  EXPECT_FALSE(two.zero->send(1, {1, 1}, 0, {}, body, released));
  EXPECT_FALSE(*released) << "it was not sent";
  EXPECT_EQ(two.zero->ask(7, std::chrono::minutes(1)).size(), 2u) << "nobody is left to wait for";
}

}  // namespace
}  // namespace shoal::wire::tcp_transport_test
