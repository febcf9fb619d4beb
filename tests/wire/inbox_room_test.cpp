// What a transport holds of messages that nobody waits for.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/wire/store.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/wire/soon.h"

namespace shoal::wire::inbox_room_test {
namespace {

/// Two ranks with little room for messages that nobody waits for.
class RanksWithLittleRoom : public testing::Test {
 protected:
  static constexpr std::uint64_t kRoom = 1 << 20;
  explicit RanksWithLittleRoom(int rails = 1, std::uint64_t room = kRoom) {
    const TcpTransport::Options options{.key = "key", .inbox_bytes = room, .rails = rails};
    auto other = std::async(std::launch::async, [&] {
      StoreClient client(store_.endpoint(), "key", soon());
      return std::make_unique<TcpTransport>(options, client, 1, 2, soon());
    });
    StoreClient client(store_.endpoint(), "key", soon());
    zero_ = std::make_unique<TcpTransport>(options, client, 0, 2, soon());
    one_ = other.get();
  }
  /// Takes a message of `bytes` of a stream that rank 1 has sent, and returns what differs.
  std::size_t wrong_bytes(Stream stream, std::size_t bytes, std::byte value) {
    std::size_t wrong = 0;
    for (const Deadline end = soon(); bytes > 0 && !end.passed();) {
      const auto seen = zero_->events();
      if (const auto chunk = zero_->take(1, stream)) {
        bytes -= chunk->bytes();
        for (std::size_t i = 0; i < chunk->bytes(); ++i) wrong += chunk->data()[i] != value;
      } else {
        zero_->wait_for_event(seen, std::chrono::milliseconds(50));
      }
    }
    return wrong + bytes;
  }

  StoreServer store_{"127.0.0.1", {0, 0}, "key"};
  std::unique_ptr<TcpTransport> zero_;
  std::unique_ptr<TcpTransport> one_;
};

// 64 MiB are sent to a rank that takes nothing. What arrives is bounded by its room and by what
// was in the kernels and under way before it said so.
TEST_F(RanksWithLittleRoom, ARankThatTakesNothingIsSentNoMoreThanItHasRoomFor) {
  constexpr std::uint64_t kMessages = 64;
  const Bytes body(1 << 20, std::byte{5});
  std::vector<Released> released;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    released.push_back(std::make_shared<std::atomic<bool>>(false));
    one_->send(0, {1, i}, 0, {}, body, released.back());
  }
  one_->flush();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(zero_->bytes_received(1), 24u << 20);
  // A question and a cause get through all the same.
  one_->answer_for(7, [] { return Bytes(1); });
  EXPECT_TRUE(zero_->ask(7, std::chrono::minutes(1))[1]);
  // Everything arrives, whatever the order in which it is wanted.
  for (std::uint64_t i = kMessages; i-- > 0;)
    EXPECT_EQ(wrong_bytes({1, i}, body.size(), std::byte{5}), 0u) << i;
  for (const auto& flag : released) EXPECT_TRUE(*flag);
}

/// Numbers of connections, and of bytes of the messages that nobody wants. The window is larger
/// than what the kernels hold, so that the one can be told from the other.
class RanksWithRoom : public RanksWithLittleRoom,
                      public testing::WithParamInterface<std::pair<int, std::size_t>> {
 protected:
  static constexpr std::uint64_t kWindow = 32 << 20;
  RanksWithRoom() : RanksWithLittleRoom(GetParam().first, kWindow) {}
  ~RanksWithRoom() override {
    // What was never wanted is dropped, and its memory is not read any more.
    one_->abort(Error(ErrorKind::kAborted, "test", "enough"));
    zero_.reset();
    one_.reset();
  }
  const Bytes body_ = Bytes(GetParam().second, std::byte{5});
};
INSTANTIATE_TEST_SUITE_P(Rails, RanksWithRoom,
                         testing::Values(std::pair{1, 8000}, std::pair{1, 1 << 20},
                                         std::pair{2, 1 << 20}, std::pair{5, 8000},
                                         std::pair{5, 1 << 20}));

// What lies beyond the window is what the kernels had when the peer read the pause: with loopback's
// buffers up to 6 MiB at the receiver and 4 MiB at the sender, and what is written at a time.
TEST_P(RanksWithRoom, OfWhatNobodyWantsNoMoreWaitsThanTheWindowAndWhatIsOnItsWay) {
  constexpr std::uint64_t kSent = 160 << 20;
  constexpr std::uint64_t kOnItsWay = 14 << 20;
  for (std::uint64_t i = 0; i * body_.size() < kSent; ++i)
    one_->send(0, {1, i}, 0, {}, body_, nullptr);
  one_->flush();
  std::uint64_t most = 0;
  // Until hardly anything more comes: the threads of both move the bytes.
  for (std::uint64_t before = 0, more = kSent; more > 10'000; before += more) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    more = zero_->bytes_received(1) - before;
    most = std::max(most, zero_->waiting_bytes(1));
  }
  std::printf("%d connections, messages of %zu bytes: %.1f MiB wait, the window has 32\n",
              GetParam().first, body_.size(), static_cast<double>(most) / (1 << 20));
  EXPECT_GE(most, kWindow);
  EXPECT_LE(most, kWindow + kOnItsWay * static_cast<std::uint64_t>(GetParam().first));
}

// A receive that was posted before the room was used up, for a message that comes last.
TEST_F(RanksWithLittleRoom, APostedReceiveIsServedBehindMessagesThatNobodyWants) {
  Bytes memory(3 << 20, std::byte{0});
  const auto receive = std::make_shared<PostedReceive>(memory.data(), memory.size());
  zero_->post_receive(1, {2, 1}, receive);
  const Bytes unwanted(24 << 20, std::byte{5});
  const Bytes wanted(3 << 20, std::byte{6});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  one_->send(0, {1, 1}, 9, {}, unwanted, released);
  one_->flush();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  one_->send(0, {2, 1}, 0, {}, wanted, nullptr);
  one_->flush();
  for (const Deadline end = soon(); receive->arrived < memory.size() && !end.passed();)
    zero_->wait_for_event(zero_->events(), std::chrono::milliseconds(1));
  EXPECT_EQ(memory, wanted);
  EXPECT_FALSE(*released);
  one_->abort(Error(ErrorKind::kData, "read", "the shard is truncated"));
  EXPECT_TRUE(*released);
  for (const Deadline end = soon(); !end.passed();) {
    try {
      zero_->check();
      zero_->wait_for_event(zero_->events(), std::chrono::milliseconds(1));
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "the shard is truncated");
      break;
    }
  }
}

// Messages that nobody wants yet, each way, and receives in the opposite order.
TEST_F(RanksWithLittleRoom, ReceivesInTheOppositeOrderDoNotBlock) {
  constexpr std::uint64_t kMessages = 1000;
  const auto run = [&](TcpTransport& own, int peer) {
    for (std::uint64_t i = 0; i < kMessages; ++i)
      own.send(peer, {1, i}, 0, Bytes(10000, std::byte{static_cast<unsigned char>(i)}));
    own.flush();
    std::size_t wrong = 0;
    for (std::uint64_t i = kMessages; i-- > 0;) {
      std::optional<ReceivedChunk> chunk;
      for (const Deadline end = soon(); !chunk && !end.passed();) {
        const auto seen = own.events();
        chunk = own.take(peer, {1, i});
        if (!chunk) own.wait_for_event(seen, std::chrono::milliseconds(50));
      }
      const bool right = chunk && chunk->bytes() == 10000 &&
                         chunk->data()[9999] == std::byte{static_cast<unsigned char>(i)};
      wrong += !right;
    }
    return wrong;
  };
  auto other = std::async(std::launch::async, [&] { return run(*one_, 0); });
  EXPECT_EQ(run(*zero_, 1), 0u);
  EXPECT_EQ(other.get(), 0u);
}

}  // namespace
}  // namespace shoal::wire::inbox_room_test
