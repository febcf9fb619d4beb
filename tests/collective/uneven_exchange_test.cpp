// All-to-all with per-rank counts over TCP on which the ranks disagree, or that are zero.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::uneven_exchange_test {
namespace {

using Counts = std::vector<std::vector<std::size_t>>;

/// Exchanges i32 on as many ranks as `sent` has rows: rank r sends `sent[r][s]` to rank s, and
/// expects `expected[r][s]` from it. Element i from r to s is 100 r + 10 s + i. Returns what each
/// rank threw.
std::vector<std::optional<Error>> exchange(const Counts& sent, const Counts& expected) {
  const int ranks = static_cast<int>(sent.size());
  return on_network(ranks, [&](const wire::Endpoint& store, int rank) {
    wire::StoreClient client(store, "key", soon());
    TcpCommunicator c(std::make_shared<wire::TcpTransport>(
                          wire::TcpTransport::Options{.key = "key"}, client, rank, ranks, soon()),
                      {});
    const auto& to = sent[static_cast<std::size_t>(rank)];
    const auto& from = expected[static_cast<std::size_t>(rank)];
    std::vector<std::int32_t> input;
    std::vector<std::int32_t> want;
    for (int peer = 0; peer < ranks; ++peer) {
      for (std::size_t i = 0; i < to[static_cast<std::size_t>(peer)]; ++i)
        input.push_back(100 * rank + 10 * peer + static_cast<std::int32_t>(i));
      for (std::size_t i = 0; i < from[static_cast<std::size_t>(peer)]; ++i)
        want.push_back(100 * peer + 10 * rank + static_cast<std::int32_t>(i));
    }
    std::vector<std::int32_t> output(want.size(), -1);
    c.run({.kind = Kind::kAllToAll,
           .type = ElementType::kI32,
           .buffer = {input.data(), output.data(), 0},
           .send_counts = to,
           .receive_counts = from},
          Deadline::in(std::chrono::seconds(20)));
    // A rank to which everything came as it expected hears of the mismatch in its next call.
    c.run({.kind = Kind::kBarrier}, soon());
    EXPECT_EQ(output, want) << "rank " << rank;
  });
}

void expect_mismatch(const std::vector<std::optional<Error>>& errors, const char* what) {
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kMismatch) << error->what();
    EXPECT_THAT(error->what(), testing::HasSubstr(what));
  }
}

TEST(UnevenExchange, PartsMayBeEmptyAndLarge) {
  const Counts sent{{1, 0, 30000}, {0, 0, 0}, {5, 20000, 2}};
  const Counts expected{{1, 0, 5}, {0, 0, 20000}, {30000, 0, 2}};
  expect_none(exchange(sent, expected));
}

TEST(UnevenExchange, APartThatNobodyExpectsIsAMismatch) {
  for (const std::size_t count : {5, 40000}) {
    expect_mismatch(exchange({{0, count}, {0, 0}}, {{0, 0}, {0, 0}}),
                    fmt::format("rank 0 sends {} elements", count).c_str());
  }
}

TEST(UnevenExchange, APartThatNobodySendsIsAMismatch) {
  for (const std::size_t count : {5, 40000}) {
    expect_mismatch(exchange({{0, 0}, {0, 0}}, {{0, 0}, {count, 0}}),
                    fmt::format("expects {}", count).c_str());
  }
}

TEST(UnevenExchange, PartsOfOtherSizesAreAMismatch) {
  expect_mismatch(exchange({{0, 5}, {0, 0}}, {{0, 0}, {4, 0}}), "rank 0 sends 5 elements");
  expect_mismatch(exchange({{0, 40000}, {0, 0}}, {{0, 0}, {40001, 0}}),
                  "rank 0 sends 40000 elements");
  expect_mismatch(exchange({{0, 40000}, {0, 0}}, {{0, 0}, {5, 0}}), "rank 0 sends 40000 elements");
}

}  // namespace
}  // namespace shoal::collective::uneven_exchange_test
