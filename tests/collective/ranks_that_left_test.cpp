// Messages over TCP to ranks that have left in good order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::ranks_that_left_test {
namespace {

/// Two ranks of which rank 1 has left. It has taken nothing, and its connection stays open until
/// the end of the test, or is closed at once.
std::vector<std::optional<Error>> send_to_one_that_left(std::size_t elements, bool lives_on) {
  std::promise<void> left;
  std::promise<void> sent;
  return on_network(2, [&](const wire::Endpoint& store, int rank) {
    wire::StoreClient client(store, "key", soon());
    auto peers = std::make_shared<wire::TcpTransport>(wire::TcpTransport::Options{.key = "key"},
                                                      client, rank, 2, soon());
    const TcpCommunicator::Options options{.timeout = std::chrono::seconds(30)};
    if (rank == 1) {
      peers->leave();
      left.set_value();
      if (lives_on) sent.get_future().wait();
      return;
    }
    left.get_future().wait();
    TcpCommunicator c(peers, options);
    // The goodbye is on its way.
    for (const Deadline end = soon(); !peers->gone(1) && !end.passed();)
      c.poll(std::chrono::milliseconds(1));
    const std::vector<std::uint8_t> x(elements, 1);
    try {
      c.run({.kind = Kind::kSend,
             .type = ElementType::kU8,
             .buffer = {x.data(), nullptr, x.size()},
             .peer = 1},
            Deadline::never());
    } catch (const Error&) {
      sent.set_value();
      throw;
    }
    sent.set_value();
  });
}

TEST(RanksThatLeft, AreSentNothing) {
  for (const std::size_t elements : {std::size_t{10}, std::size_t{3} << 20}) {
    for (const bool lives_on : {false, true}) {
      const auto errors = send_to_one_that_left(elements, lives_on);
      EXPECT_FALSE(errors[1]);
      ASSERT_TRUE(errors[0]) << elements << " elements, lives on: " << lives_on;
      EXPECT_EQ(errors[0]->kind(), ErrorKind::kPeerLost) << errors[0]->what();
      EXPECT_EQ(errors[0]->peer(), 1);
      EXPECT_THAT(errors[0]->what(), testing::HasSubstr("rank 1 has left"));
    }
  }
}

}  // namespace
}  // namespace shoal::collective::ranks_that_left_test
