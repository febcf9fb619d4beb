// What ranks compare of their calls, which reductions round once, and the priorities and bytes of
// the messages that carry them.
#include "shoal/collective/tcp/tcp_call.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::tcp_call_test {
namespace {

TcpCall call_of(const Operation& operation) { return TcpCall::of(operation, Algorithm::kDirect); }

TEST(TcpCall, HoldsWhatMustAgreeAndNothingElse) {
  const Operation sum{.kind = Kind::kAllReduce,
                      .type = ElementType::kF32,
                      .buffer = {nullptr, nullptr, 5},
                      .tag = 3};
  const auto same = [&](const std::function<void(Operation&)>& change) {
    Operation changed = sum;
    change(changed);
    return call_of(changed) == call_of(sum);
  };
  EXPECT_TRUE(same([](Operation& o) { o.priority = 9; }));
  EXPECT_TRUE(same([](Operation& o) { o.peer = 2; })) << "it has no root";
  EXPECT_TRUE(same([](Operation& o) { o.scale = 2; })) << "it scales nothing";
  EXPECT_FALSE(same([](Operation& o) { o.kind = Kind::kReduceScatter; }));
  EXPECT_FALSE(same([](Operation& o) { o.type = ElementType::kI32; }));
  EXPECT_FALSE(same([](Operation& o) { o.reduction = Reduction::kMax; }));
  EXPECT_FALSE(same([](Operation& o) { o.buffer.count = 6; }));
  EXPECT_FALSE(same([](Operation& o) { o.tag = 4; }));
  EXPECT_NE(TcpCall::of(sum, Algorithm::kRing), call_of(sum));
  EXPECT_TRUE(same([](Operation& o) { o.coding.key = Key(3); })) << "it encodes nothing";
  EXPECT_FALSE(same([](Operation& o) { o.coding.codec = Codec::kI4; }));

  Operation scaled = sum;
  scaled.reduction = Reduction::kPremulSum;
  Operation other = scaled;
  other.scale = 2;
  EXPECT_NE(call_of(scaled), call_of(other));
  Operation rooted{.kind = Kind::kBroadcast, .peer = 1};
  other = rooted;
  other.reduction = Reduction::kMin;
  EXPECT_EQ(call_of(rooted), call_of(other)) << "it reduces nothing";
  other.peer = 2;
  EXPECT_NE(call_of(rooted), call_of(other));
}

// Both ends of a message have one call; the tag is in the name of their stream.
TEST(TcpCall, OfASendIsThatOfItsReceive) {
  const Operation send{.kind = Kind::kSend, .buffer = {nullptr, nullptr, 4}, .peer = 1, .tag = 7};
  const Operation receive{
      .kind = Kind::kReceive, .buffer = {nullptr, nullptr, 4}, .peer = -1, .tag = 7};
  EXPECT_EQ(call_of(send), call_of(receive));
  EXPECT_EQ(call_of(send).tag, 0u);
}

TEST(TcpCall, ReadsAsItWasWritten) {
  const TcpCall call = call_of({.kind = Kind::kReduce,
                                .type = ElementType::kF64,
                                .reduction = Reduction::kPremulSum,
                                .buffer = {nullptr, nullptr, 12},
                                .peer = 3,
                                .tag = 8,
                                .scale = 0.25});
  std::byte bytes[TcpCall::kBytes];
  call.write(bytes);
  EXPECT_EQ(TcpCall::read(bytes), call);
  EXPECT_EQ(call.text(), "reduce by premul_sum of 12 x f64 with root 3 with label 8 (direct)");
}

TEST(TcpCall, TextsOfOtherCalls) {
  const std::vector<std::size_t> counts{1, 2};
  EXPECT_EQ(call_of({.kind = Kind::kAllToAll,
                     .type = ElementType::kI32,
                     .send_counts = counts,
                     .receive_counts = counts})
                .text(),
            "all_to_all of i32 with per-rank counts (direct)");
  EXPECT_EQ(call_of({.kind = Kind::kGather,
                     .type = ElementType::kC128,
                     .buffer = {nullptr, nullptr, 1},
                     .peer = 0})
                .text(),
            "gather of 1 x c128 with root 0 (direct)");
  TcpCall unknown;
  unknown.type = 17;
  EXPECT_EQ(unknown.text(), "an unknown call");
}

TEST(TcpCall, NarrowFloatsAndScaledSumsFoldOnce) {
  const auto operation = [](Kind kind, ElementType type, Reduction reduction) {
    return Operation{.kind = kind, .type = type, .reduction = reduction};
  };
  for (const ElementType type :
       {ElementType::kF16, ElementType::kBF16, ElementType::kF8E4M3, ElementType::kF8E5M2}) {
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kProduct, Reduction::kAverage, Reduction::kPremulSum}) {
      EXPECT_TRUE(must_round_once(operation(Kind::kAllReduce, type, reduction)));
      EXPECT_TRUE(must_fold_once(operation(Kind::kReduceScatter, type, reduction)));
      EXPECT_FALSE(must_round_once(operation(Kind::kAllGather, type, reduction)));
    }
    for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
      EXPECT_FALSE(must_round_once(operation(Kind::kReduce, type, reduction)));
      EXPECT_FALSE(must_fold_once(operation(Kind::kReduce, type, reduction)));
    }
  }
  for (const ElementType type :
       {ElementType::kF32, ElementType::kF64, ElementType::kC64, ElementType::kC128}) {
    EXPECT_FALSE(must_round_once(operation(Kind::kAllReduce, type, Reduction::kAverage)));
    EXPECT_TRUE(must_fold_once(operation(Kind::kAllReduce, type, Reduction::kAverage)));
    EXPECT_TRUE(must_fold_once(operation(Kind::kAllReduce, type, Reduction::kPremulSum)));
    EXPECT_FALSE(must_fold_once(operation(Kind::kAllReduce, type, Reduction::kSum)));
    EXPECT_FALSE(must_fold_once(operation(Kind::kBroadcast, type, Reduction::kAverage)));
  }
  EXPECT_FALSE(must_fold_once(operation(Kind::kAllReduce, ElementType::kI8, Reduction::kSum)));
}

/// A transport that carries nothing and notes what it was to send.
class Noting final : public wire::Transport {
 public:
  struct Sent {
    int peer;
    wire::Stream stream;
    int priority;
    std::size_t head;
    std::size_t body;
  };
  explicit Noting(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool send(int peer, wire::Stream stream, int priority, wire::Bytes head,
            std::span<const std::byte> body, wire::Released released) override {
    sent.push_back({peer, stream, priority, head.size(), body.size()});
    kept.push_back(std::move(released));
    return true;
  }
  void flush() override { ++flushes; }
  std::optional<wire::ReceivedChunk> take(int, wire::Stream) override { return std::nullopt; }
  bool has_arrived(int, wire::Stream) override { return false; }
  void post_receive(int, wire::Stream, std::shared_ptr<wire::PostedReceive>) override {}
  void release_buffers(wire::Stream stream) override { dropped.push_back(stream); }
  std::uint64_t bytes_sent(int peer) const override {
    return static_cast<std::uint64_t>(1000 * (peer + 1));
  }
  bool gone(int) const override { return false; }
  void check() const override {}
  void abort(const Error&) override {}
  std::uint64_t events() const override { return 0; }
  void wait_for_event(std::uint64_t, Duration) override {}
  void answer_for(std::uint64_t, std::function<wire::Bytes()>) override {}
  std::vector<std::optional<wire::Bytes>> ask(std::uint64_t, Duration) override { return {}; }

  std::vector<Sent> sent;
  std::vector<wire::Released> kept;
  std::vector<wire::Stream> dropped;
  int flushes = 0;

 private:
  int rank_;
  int size_;
};

// Up to 64 KiB travel behind the call in one message; of more than 1 KiB the bytes are not copied.
TEST(TcpMessages, AreCutByTheirSize) {
  const auto peers = std::make_shared<Noting>(1, 3);
  TcpCommunicator c(peers, {});
  const std::vector<std::byte> data(80 << 10);
  const auto send = [&](std::size_t bytes) {
    peers->sent.clear();
    c.start({.kind = Kind::kSend,
             .buffer = {data.data(), nullptr, bytes},
             .peer = 2,
             .tag = 6,
             .priority = 4});
    std::vector<std::pair<std::size_t, std::size_t>> sizes;
    for (const Noting::Sent& one : peers->sent) {
      EXPECT_EQ(one.peer, 2);
      EXPECT_EQ(one.priority, 4);
      EXPECT_EQ(one.stream, (wire::Stream{1, (std::uint64_t{1} << 63) | 6}));
      sizes.emplace_back(one.head, one.body);
    }
    return sizes;
  };
  using Sizes = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(send(0), (Sizes{{32, 0}}));
  EXPECT_EQ(send(1024), (Sizes{{32 + 1024, 0}}));
  EXPECT_EQ(send(1025), (Sizes{{32, 1025}}));
  EXPECT_EQ(send(64 << 10), (Sizes{{32, 64 << 10}}));
  EXPECT_EQ(send((64 << 10) + 1), (Sizes{{32, 0}, {0, (64 << 10) + 1}}));
  EXPECT_GT(peers->flushes, 0);
}

TEST(TcpMessages, OfACollectiveCarryItsPriorityAndNumber) {
  const auto peers = std::make_shared<Noting>(1, 3);
  TcpCommunicator c(peers, {.algorithms = "broadcast=direct"});
  const std::vector<std::byte> data(10);
  std::vector<std::byte> out(10);
  c.start({.kind = Kind::kBroadcast,
           .buffer = {data.data(), out.data(), 10},
           .peer = 1,
           .priority = -2});
  ASSERT_EQ(peers->sent.size(), 3u);
  EXPECT_EQ(peers->sent[0].peer, 2) << "the call goes to the successor";
  EXPECT_EQ(peers->sent[0].stream, (wire::Stream{1, (std::uint64_t{1} << 62) | 1}));
  EXPECT_EQ(peers->sent[1].stream, (wire::Stream{1, 1}));
  for (const Noting::Sent& one : peers->sent) EXPECT_EQ(one.priority, -2);
}

// Headers of messages and chunks included: 32 bytes each.
TEST(TcpMessages, BetweenHostsAreCounted) {
  const auto peers = std::make_shared<Noting>(0, 3);
  TcpCommunicator c(peers, {.hosts = {5, 5, 6}});
  const std::vector<std::byte> data(300 << 10);
  const auto sent = [&](int peer, std::size_t bytes) {
    const auto before = c.bytes_between_hosts();
    c.start({.kind = Kind::kSend, .buffer = {data.data(), nullptr, bytes}, .peer = peer});
    return c.bytes_between_hosts() - before;
  };
  EXPECT_EQ(sent(1, 1000), 0u) << "on this host";
  EXPECT_EQ(sent(2, 100), 32 + 32 + 100u);
  EXPECT_EQ(sent(2, 256 << 10), 64u + 32u + (256u << 10)) << "the call, and one chunk";
  EXPECT_EQ(sent(2, 300 << 10), 64u + 2 * 32u + (300u << 10)) << "and two";
  EXPECT_EQ(c.bytes_between_hosts_of_all(), 3000u) << "to rank 2 alone";
}

// An operation that ends early, with its communicator, takes the caller's memory from the
// transport.
TEST(TcpMessages, ThatAreUnderWayAreTakenBack) {
  const auto peers = std::make_shared<Noting>(0, 2);
  const std::vector<std::byte> data(2000);
  {
    TcpCommunicator c(peers, {});
    c.start({.kind = Kind::kSend, .buffer = {data.data(), nullptr, 1000}, .peer = 1, .tag = 1});
    c.start({.kind = Kind::kSend, .buffer = {data.data(), nullptr, 2000}, .peer = 1, .tag = 2});
    EXPECT_FALSE(c.idle());
  }
  EXPECT_EQ(peers->dropped, (std::vector<wire::Stream>{{1, (std::uint64_t{1} << 63) | 2}}));
}

TEST(TcpCommunicator, GroupsOfMembersNeedANumberAndThisRank) {
  const auto peers = std::make_shared<Noting>(1, 3);
  const auto kind_of = [&](const std::vector<int>& members, std::uint64_t group) {
    try {
      TcpCommunicator::of_members(peers, {}, members, group);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of({0, 2}, 7), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({1, 2}, 1), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({1, 2}, 0), ErrorKind::kUsage);
  const auto group = TcpCommunicator::of_members(peers, {}, {2, 1}, 2);
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->size(), 2);
  try {
    group->wait(1, soon());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal) << "it was never started";
  }
}

}  // namespace
}  // namespace shoal::collective::tcp_call_test
