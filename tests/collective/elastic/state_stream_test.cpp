// A joiner takes streams that no member sends, and a member sends its own.
#include "shoal/collective/elastic/state_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "tests/collective/tcp_ranks.h"

namespace shoal::collective::elastic::state_stream_test {
namespace {

using testing::HasSubstr;

enum : std::uint64_t { kBegin, kPart, kHold, kEnd, kStale };

/// A header as it travels, and the bytes that follow it.
struct Message {
  std::uint64_t head = 0;
  std::uint64_t bytes = 0;
  std::vector<std::byte> body{};
};

void pass(Communicator& pair, void* data, std::size_t bytes) {
  pair.wait(pair.start({.kind = Kind::kBroadcast,
                        .type = ElementType::kU8,
                        .buffer = {.input = data, .output = data, .count = bytes},
                        .peer = 0}));
}

struct Outcome {
  std::optional<ReceivedState> state;
  std::string error;
};

/// Returns what a joiner makes of these messages.
Outcome received(const std::vector<Message>& messages) {
  Outcome outcome;
  on_network(2, [&](const wire::Endpoint& store, int rank) {
    TcpCommunicator pair(join(store, rank, 2), {});
    if (rank == 1) {
      try {
        outcome.state = receive_state(pair, soon(), [] {});
      } catch (const Error& error) {
        outcome.error = error.what();
      }
      return;
    }
    for (const Message& message : messages) {
      // Six numbers, of which the first has four bytes and as many that are not used, and a digest.
      std::vector<std::byte> header(6 * sizeof(std::uint64_t) + sizeof(Digest));
      std::memcpy(header.data(), &message.head, sizeof message.head);
      std::memcpy(header.data() + 8, &message.bytes, sizeof message.bytes);
      std::vector<std::byte> body = message.body;
      pass(pair, header.data(), header.size());
      if (!body.empty()) pass(pair, body.data(), body.size());
    }
  });
  return outcome;
}

std::vector<std::byte> bytes(std::size_t count) { return std::vector<std::byte>(count); }

TEST(StateStream, TakesTheLastStateThatItBeginsWith) {
  const Outcome outcome = received({{kHold},
                                    {kBegin, 8},
                                    {kPart, 5, bytes(5)},
                                    {kBegin, 3},
                                    {kPart, 2, bytes(2)},
                                    {kHold},
                                    {kPart, 1, {std::byte{9}}},
                                    {kEnd}});
  EXPECT_EQ(outcome.error, "");
  ASSERT_TRUE(outcome.state);
  EXPECT_EQ(outcome.state->bytes, (std::vector{std::byte{0}, std::byte{0}, std::byte{9}}));
}

// The step ends when the joiner has been told twice that it goes on.
TEST(StateStream, WaitsForTheEndOfAStep) {
  std::atomic<int> written{0};
  StateAccess access;
  access.write = [&] {
    ++written;
    return bytes(3);
  };
  SteadyState state(access, {});
  std::optional<SteadyState::Step> step(std::in_place, &state);
  std::optional<ReceivedState> taken;
  int parts = 0;
  expect_none(on_network(2, [&](const wire::Endpoint& store, int rank) {
    TcpCommunicator pair(join(store, rank, 2), {});
    if (rank == 0) return send_state(pair, state, {.deadline = soon()});
    taken = receive_state(pair, soon(), [&] {
      if (++parts != 3) return;
      EXPECT_EQ(written, 0);
      step.reset();
    });
  }));
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->bytes, bytes(3));
  EXPECT_EQ(written, 1);
}

TEST(StateStream, EndsWithoutAStateWhereItIsStale) {
  const Outcome outcome = received({{kBegin, 8}, {kPart, 5, bytes(5)}, {kStale}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_FALSE(outcome.state);
}

// Memory is taken for what comes, in parts of 4 MiB at most, whatever was announced.
TEST(StateStream, RefusesWhatNoMemberSends) {
  EXPECT_THAT(received({{kEnd}}).error, HasSubstr("a stream ends behind 0 of 0 bytes"));
  EXPECT_THAT(received({{kPart, 1, bytes(1)}}).error, HasSubstr("a part of 1 bytes comes behind"));
  EXPECT_THAT(received({{kBegin, 2}, {kPart, 3, bytes(3)}}).error,
              HasSubstr("a part of 3 bytes comes behind 0 of 2"));
  EXPECT_THAT(received({{kBegin, 2}, {kPart, 0}}).error, HasSubstr("a part of 0 bytes"));
  EXPECT_THAT(received({{kBegin, ~std::uint64_t{0}}, {kPart, std::uint64_t{1} << 40}}).error,
              HasSubstr("in parts of at most"));
  EXPECT_THAT(received({{kBegin, 2}, {kPart, 1, bytes(1)}, {kEnd}}).error,
              HasSubstr("a stream ends behind 1 of 2 bytes"));
  EXPECT_THAT(received({{kBegin, 1}, {kBegin, 1}, {kBegin, 1}, {kBegin, 1}}).error,
              HasSubstr("a stream begins 4 times"));
  EXPECT_THAT(received({{77}}).error, HasSubstr("a part of an unknown kind"));
}

}  // namespace
}  // namespace shoal::collective::elastic::state_stream_test
