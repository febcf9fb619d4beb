// Calls that make no sense are refused alike by shared memory, by TCP and by both together: with
// the same kind of error, on every rank, before anything has begun.
#include "shoal/collective/operation_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <vector>

#include "shoal/collective/codec/error_feedback.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/host_ranks.h"
#include "tests/collective/network_ranks.h"
#include "tests/collective/on_hosts.h"

namespace shoal::collective::operation_check_test {
namespace {

constexpr int kCheckRanks = 3;

enum class Carrier { kSharedMemory, kTcp, kBoth };

void PrintTo(Carrier carrier, std::ostream* out) {
  switch (carrier) {
    case Carrier::kSharedMemory:
      *out << "shared_memory";
      return;
    case Carrier::kTcp:
      *out << "tcp";
      return;
    case Carrier::kBoth:
      *out << "both";
      return;
  }
}

class OperationCheck : public testing::TestWithParam<Carrier> {
 protected:
  /// Runs `body` on three ranks. With `usable`, every rank ends with a barrier, which fails where a
  /// refused operation has left something behind.
  void on_ranks(const std::function<void(Communicator&)>& body, bool usable = true) const {
    const auto then_barrier = [&](Communicator& c) {
      body(c);
      if (usable) c.run({.kind = Kind::kBarrier}, soon());
    };
    switch (GetParam()) {
      case Carrier::kSharedMemory:
        return on_threads(kCheckRanks, [&](HostCommunicator& c, int) { then_barrier(c); });
      case Carrier::kTcp:
        return expect_none(on_network(kCheckRanks, [&](const wire::Endpoint& store, int rank) {
          wire::StoreClient client(store, "key", soon());
          TcpCommunicator c(
              std::make_shared<wire::TcpTransport>(wire::TcpTransport::Options{.key = "key"},
                                                   client, rank, kCheckRanks, soon()),
              {});
          then_barrier(c);
        }));
      case Carrier::kBoth: {
        // It ends with a barrier of its own, which fails where the group has.
        const auto errors = on_hosts({0, 0, 1}, then_barrier);
        if (usable) return expect_none(errors);
        for (const auto& error : errors) EXPECT_TRUE(error);
        return;
      }
    }
  }
};

/// The kind of error that `start` throws; empty when it accepts the operation.
std::optional<ErrorKind> refusal(Communicator& c, const Operation& operation) {
  try {
    c.wait(c.start(operation), soon());
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

TEST_P(OperationCheck, RefusesAnExchangeInPlaceWithEqualParts) {
  on_ranks([](Communicator& c) {
    std::vector<float> data(5 * kCheckRanks);
    EXPECT_EQ(refusal(c, {.kind = Kind::kAllToAll,
                          .type = ElementType::kF32,
                          .buffer = {data.data(), data.data(), 5}}),
              ErrorKind::kUsage);
  });
}

TEST_P(OperationCheck, RefusesAnExchangeInPlaceWithPerRankCounts) {
  // More than one staged chunk: where it is accepted, it overwrites what was not sent yet.
  constexpr std::size_t kUnit = 200'000;
  on_ranks([](Communicator& c) {
    std::vector<std::size_t> counts;
    std::size_t total = 0;
    for (int r = 0; r < kCheckRanks; ++r) {
      counts.push_back(static_cast<std::size_t>(c.rank() + r) * kUnit);
      total += counts.back();
    }
    std::vector<float> data(total + 1);
    EXPECT_EQ(refusal(c, {.kind = Kind::kAllToAll,
                          .type = ElementType::kF32,
                          .buffer = {data.data(), data.data(), 0},
                          .send_counts = counts,
                          .receive_counts = counts}),
              ErrorKind::kUsage);
  });
}

TEST_P(OperationCheck, RefusesAnExchangeInPlaceAmongSeveralBuffers) {
  on_ranks([](Communicator& c) {
    std::vector<float> input(kCheckRanks);
    std::vector<float> output(kCheckRanks);
    const std::vector<Buffer> more{{input.data(), input.data(), 1}};
    EXPECT_EQ(refusal(c, {.kind = Kind::kAllToAll,
                          .type = ElementType::kF32,
                          .buffer = {input.data(), output.data(), 1},
                          .more = more}),
              ErrorKind::kUsage);
  });
}

// One rank sees the difference; the others wait for its part of the exchange.
TEST_P(OperationCheck, ARankThatSendsItselfWhatItDoesNotExpectFailsEveryRank) {
  on_ranks(
      [](Communicator& c) {
        std::vector<float> input(8);
        std::vector<float> output(8);
        const std::vector<std::size_t> send(kCheckRanks, 2);
        std::vector<std::size_t> receive(kCheckRanks, 2);
        if (c.rank() == 1) receive[1] = 1;
        EXPECT_EQ(refusal(c, {.kind = Kind::kAllToAll,
                              .type = ElementType::kF32,
                              .buffer = {input.data(), output.data(), 0},
                              .send_counts = send,
                              .receive_counts = receive}),
                  ErrorKind::kMismatch)
            << "rank " << c.rank();
      },
      false);
}

TEST_P(OperationCheck, RefusesAMessageToNobody) {
  on_ranks([](Communicator& c) {
    float data = 0;
    for (const int peer : {-1, kCheckRanks}) {
      EXPECT_EQ(refusal(c, {.kind = Kind::kSend,
                            .type = ElementType::kF32,
                            .buffer = {&data, nullptr, 1},
                            .peer = peer}),
                ErrorKind::kUsage)
          << "peer " << peer;
    }
  });
}

// Shared memory delivers a message of a rank to itself (HostMailbox's tests send some).
TEST_P(OperationCheck, RefusesAMessageToItselfOverTcp) {
  if (GetParam() == Carrier::kSharedMemory) return;
  on_ranks([](Communicator& c) {
    float data = 0;
    EXPECT_EQ(refusal(c, {.kind = Kind::kSend,
                          .type = ElementType::kF32,
                          .buffer = {&data, nullptr, 1},
                          .peer = c.rank()}),
              ErrorKind::kUsage);
  });
}

TEST_P(OperationCheck, RefusesARootThatIsNoRank) {
  on_ranks([](Communicator& c) {
    float data = 0;
    for (const int root : {-1, kCheckRanks}) {
      EXPECT_EQ(refusal(c, {.kind = Kind::kBroadcast,
                            .type = ElementType::kF32,
                            .buffer = {&data, &data, 1},
                            .peer = root}),
                ErrorKind::kUsage)
          << "root " << root;
    }
  });
}

/// The kind of error of `check_operation` itself for rank 1 of 3; empty when it accepts the call.
std::optional<ErrorKind> checked(const Operation& operation, bool to_self = false) {
  try {
    check_operation(operation, 1, kCheckRanks, "a test", to_self);
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

TEST(CheckOperation, RefusesEveryCallThatMakesNoSense) {
  const auto refused = [](const Operation& operation) {
    return checked(operation) == ErrorKind::kUsage;
  };
  const std::vector<std::size_t> counts(kCheckRanks, 2);
  const std::vector<std::size_t> few(kCheckRanks - 1, 2);
  const auto exchange = [](Kind kind, std::span<const std::size_t> send,
                           std::span<const std::size_t> receive) {
    return Operation{.kind = kind, .send_counts = send, .receive_counts = receive};
  };
  const Coding codec{Codec::kI8};
  const auto coded = [&](Kind kind, ElementType type, Reduction reduction) {
    return Operation{
        .kind = kind, .type = type, .reduction = reduction, .peer = 0, .coding = codec};
  };
  Operation usual = coded(Kind::kAllReduce, ElementType::kF32, Reduction::kSum);
  EXPECT_FALSE(refused(usual));
  EXPECT_TRUE(refused(coded(Kind::kReduce, ElementType::kF32, Reduction::kSum)));
  EXPECT_TRUE(refused(coded(Kind::kBroadcast, ElementType::kF32, Reduction::kSum)));
  EXPECT_TRUE(refused(coded(Kind::kAllReduce, ElementType::kF64, Reduction::kSum)));
  EXPECT_TRUE(refused(coded(Kind::kAllReduce, ElementType::kF32, Reduction::kAverage)));
  usual.coding.block = 33;
  EXPECT_TRUE(refused(usual));
  usual.coding = {};
  const CodedFeedback feedback;
  usual.feedback = &feedback;
  EXPECT_TRUE(refused(usual)) << "feedback without a codec";
  usual.coding = codec;
  EXPECT_FALSE(refused(usual));
  const Buffer second;
  usual.more = {&second, 1};
  EXPECT_TRUE(refused(usual)) << "two buffers";
  EXPECT_FALSE(refused({.kind = Kind::kBarrier}));
  EXPECT_TRUE(refused({.kind = Kind::kBarrier, .memory = MemoryKind::kDevice}));
  EXPECT_TRUE(refused({.kind = Kind::kAllGather, .shared_output = true}));
  EXPECT_FALSE(refused(exchange(Kind::kAllToAll, counts, counts)));
  EXPECT_TRUE(refused(exchange(Kind::kAllGather, counts, counts)));
  EXPECT_TRUE(refused(exchange(Kind::kAllToAll, few, counts)));
  EXPECT_TRUE(refused(exchange(Kind::kAllToAll, counts, few)));
  EXPECT_TRUE(refused(exchange(Kind::kAllToAll, counts, {})));
  EXPECT_TRUE(refused(exchange(Kind::kAllToAll, {}, counts)));
  for (const Kind kind : {Kind::kBroadcast, Kind::kReduce, Kind::kGather, Kind::kScatter}) {
    EXPECT_FALSE(refused({.kind = kind, .peer = 0})) << name(kind);
    EXPECT_FALSE(refused({.kind = kind, .peer = kCheckRanks - 1})) << name(kind);
    EXPECT_TRUE(refused({.kind = kind, .peer = -1})) << name(kind);
    EXPECT_TRUE(refused({.kind = kind, .peer = kCheckRanks})) << name(kind);
  }
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
    EXPECT_TRUE(refused(
        {.kind = kind, .type = ElementType::kF32, .reduction = Reduction::kBitOr, .peer = 0}))
        << name(kind);
  }
  EXPECT_FALSE(refused({.kind = Kind::kBroadcast,
                        .type = ElementType::kF32,
                        .reduction = Reduction::kBitOr,
                        .peer = 0}))
      << "it reduces nothing";
}

TEST(CheckOperation, RefusesMessagesToAndFromWhoIsNobody) {
  const auto message = [](Kind kind, int peer) { return Operation{.kind = kind, .peer = peer}; };
  for (const Kind kind : {Kind::kSend, Kind::kReceive}) {
    EXPECT_EQ(checked(message(kind, 0)), std::nullopt);
    EXPECT_EQ(checked(message(kind, kCheckRanks - 1)), std::nullopt);
    EXPECT_EQ(checked(message(kind, kCheckRanks)), ErrorKind::kUsage);
    EXPECT_EQ(checked(message(kind, -2)), ErrorKind::kUsage);
    EXPECT_EQ(checked(message(kind, 1)), ErrorKind::kUsage) << "this rank itself";
    EXPECT_EQ(checked(message(kind, 1), true), std::nullopt) << "where that is possible";
    EXPECT_EQ(checked(message(kind, kCheckRanks), true), ErrorKind::kUsage);
  }
  EXPECT_EQ(checked(message(Kind::kReceive, -1)), std::nullopt) << "from any rank";
  EXPECT_EQ(checked(message(Kind::kSend, -1)), ErrorKind::kUsage);
}

TEST(CheckOperation, TakesAnExchangeOfNothing) {
  EXPECT_EQ(checked({.kind = Kind::kAllToAll}), std::nullopt) << "null is no buffer";
}

INSTANTIATE_TEST_SUITE_P(Carriers, OperationCheck,
                         testing::Values(Carrier::kSharedMemory, Carrier::kTcp, Carrier::kBoth),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace shoal::collective::operation_check_test
