// What an inbox tells its peer, and that whoever waits for a stream gets it.
#include "shoal/wire/inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace shoal::wire::inbox_test {
namespace {

constexpr std::uint64_t kWindow = 1 << 20;
constexpr std::size_t kChunk = Assembler::kChunkBytes;
constexpr Stream kUnwanted{1, 1};
constexpr Stream kWanted{1, 2};

class InboxOfOneMegabyte : public testing::Test {
 protected:
  void arrive(Stream stream, std::size_t bytes, std::uint64_t total = 0, std::uint64_t offset = 0) {
    inbox_.arrived(stream, ReceivedChunk(pool_, total > 0 ? total : bytes, offset, bytes), bytes);
  }
  /// Four chunks of 256 KiB and their headers are more than the window.
  void fill() {
    for (int i = 0; i < 4; ++i) arrive(kUnwanted, kChunk);
    EXPECT_EQ(inbox_.flow_messages(), (Messages{{.what = FlowMessage::kPause}}));
  }

  using Messages = std::vector<FlowMessage>;
  std::shared_ptr<ChunkPool> pool_ = std::make_shared<ChunkPool>(kChunk);
  Inbox inbox_{kWindow};
};

TEST_F(InboxOfOneMegabyte, SaysNothingBelowItsWindow) {
  for (int i = 0; i < 3; ++i) arrive(kUnwanted, kChunk);
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_FALSE(inbox_.contains(kWanted));
  EXPECT_FALSE(inbox_.has_flow_messages());
  EXPECT_EQ(inbox_.bytes(), 3 * (kChunk + Assembler::kHeaderBytes));
}

TEST_F(InboxOfOneMegabyte, PausesWhenItIsFullAndResumesWhenHalfIsFree) {
  fill();
  arrive(kUnwanted, kChunk);
  EXPECT_FALSE(inbox_.has_flow_messages()) << "it has paused already";
  for (int left = 4; left > 0; --left) {
    EXPECT_FALSE(inbox_.has_flow_messages()) << left + 1 << " are left";
    EXPECT_TRUE(inbox_.take(kUnwanted));
  }
  EXPECT_EQ(inbox_.flow_messages(), (Messages{{.what = FlowMessage::kResume}}));
}

// Chunks without bytes fill memory too.
TEST_F(InboxOfOneMegabyte, EmptyMessagesCount) {
  for (std::uint64_t i = 0; i < kWindow / Assembler::kHeaderBytes; ++i) arrive({2, i}, 0);
  EXPECT_FALSE(inbox_.has_flow_messages());
  arrive({3, 1}, 0);
  EXPECT_TRUE(inbox_.has_flow_messages());
}

TEST_F(InboxOfOneMegabyte, AsksForWhatIsLookedForAndAgainWhenThatHasCome) {
  fill();
  const Messages asks{{.what = FlowMessage::kAsk, .stream = kWanted, .bytes = Inbox::kAskedBytes}};
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_EQ(inbox_.flow_messages(), asks);
  EXPECT_FALSE(inbox_.contains(kWanted));
  EXPECT_FALSE(inbox_.has_flow_messages()) << "it has asked already";
  for (int i = 0; i < 4; ++i) {
    arrive(kWanted, kChunk);
    EXPECT_TRUE(inbox_.take(kWanted));
  }
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_EQ(inbox_.flow_messages(), asks);
}

TEST_F(InboxOfOneMegabyte, AsksForTheRestOfAPostedReceive) {
  std::vector<std::byte> memory(3 * kChunk);
  arrive(kWanted, kChunk, memory.size());
  const auto receive = std::make_shared<PostedReceive>(memory.data(), memory.size());
  inbox_.post(kWanted, receive);
  EXPECT_FALSE(inbox_.has_flow_messages());
  for (int i = 0; i < 5; ++i) arrive(kUnwanted, kChunk);
  auto messages = inbox_.flow_messages();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].what, FlowMessage::kPause);
  EXPECT_EQ(messages[1].what, FlowMessage::kAsk);
  EXPECT_EQ(messages[1].stream, kWanted);
  EXPECT_GE(messages[1].bytes, 2 * window_cost(kChunk));

  // A receive that is posted later asks at once.
  const auto later = std::make_shared<PostedReceive>(memory.data(), 10);
  inbox_.post({1, 9}, later);
  messages = inbox_.flow_messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].stream, (Stream{1, 9}));
  EXPECT_GE(messages[0].bytes, window_cost(10));
}

TEST_F(InboxOfOneMegabyte, ResumesAtHalfOfItsWindowAndPausesAgain) {
  for (int i = 0; i < 6; ++i) arrive(kUnwanted, 200'000);
  EXPECT_EQ(inbox_.flow_messages(), (Messages{{.what = FlowMessage::kPause}}));
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_EQ(inbox_.flow_messages().size(), 1u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(inbox_.take(kUnwanted));
  EXPECT_FALSE(inbox_.has_flow_messages()) << "600000 are more than half of it";
  EXPECT_TRUE(inbox_.take(kUnwanted));
  EXPECT_EQ(inbox_.flow_messages(), (Messages{{.what = FlowMessage::kResume}}));
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_FALSE(inbox_.has_flow_messages()) << "all streams are sent";
  for (int i = 0; i < 4; ++i) arrive(kUnwanted, 200'000);
  EXPECT_EQ(inbox_.flow_messages(), (Messages{{.what = FlowMessage::kPause}}));
  // What was asked for before the peer resumed is forgotten.
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_EQ(inbox_.flow_messages().size(), 1u);
}

// The peer counts what it was asked for, so a question names only what exceeds that.
TEST_F(InboxOfOneMegabyte, AsksForNothingTwice) {
  std::vector<std::byte> memory(2 << 20);
  const auto post = [&](Stream stream, std::size_t bytes) {
    inbox_.forget_posted(stream);
    inbox_.post(stream, std::make_shared<PostedReceive>(memory.data(), bytes));
    std::uint64_t asked = 0;
    for (const FlowMessage& message : inbox_.flow_messages()) {
      EXPECT_EQ(message.what, FlowMessage::kAsk);
      EXPECT_EQ(message.stream, stream);
      asked += message.bytes;
    }
    return asked;
  };
  fill();
  // Each chunk has a header, and so has a last one that is not whole.
  const std::uint64_t whole =
      memory.size() + (memory.size() / kChunk + 1) * Assembler::kHeaderBytes;
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_EQ(inbox_.flow_messages().size(), 1u);
  EXPECT_EQ(post(kWanted, 10), 0u) << "a megabyte is on its way";
  EXPECT_EQ(post(kWanted, memory.size()), whole - Inbox::kAskedBytes);
  const Stream other{1, 3};
  EXPECT_EQ(post(other, 10), window_cost(10));
  inbox_.forget_posted(other);
  EXPECT_FALSE(inbox_.take(other));
  EXPECT_FALSE(inbox_.contains(other));
  EXPECT_FALSE(inbox_.has_flow_messages()) << "whoever only looks waits for what was asked for";
  inbox_.post(other, std::make_shared<PostedReceive>(memory.data(), 10));
  EXPECT_FALSE(inbox_.has_flow_messages());
  // A part of what was asked for has come: the rest still may.
  inbox_.forget_posted();
  arrive(kWanted, 10, 20);
  EXPECT_TRUE(inbox_.take(kWanted));
  EXPECT_FALSE(inbox_.take(kWanted));
  EXPECT_FALSE(inbox_.has_flow_messages());
}

/// A message of three chunks, of which the last has ten bytes, each with its own values.
class MessageOfThreeChunks : public InboxOfOneMegabyte {
 protected:
  static constexpr std::size_t kTotal = 2 * kChunk + 10;

  MessageOfThreeChunks() : memory_(kTotal), want_(kTotal) {
    for (std::size_t i = 0; i < kTotal; ++i) want_[i] = static_cast<std::byte>(i / kChunk + i % 7);
  }
  /// Its `index`-th chunk comes with memory of its own, as from a connection that found no receive.
  void arrive_apart(std::size_t index) {
    const std::size_t offset = index * kChunk;
    const std::size_t bytes = std::min(kChunk, kTotal - offset);
    ReceivedChunk chunk(pool_, kTotal, offset, bytes);
    std::memcpy(chunk.data(), want_.data() + offset, bytes);
    inbox_.arrived(kWanted, std::move(chunk), bytes);
  }
  /// It comes where the inbox says.
  void arrive_in_place(std::size_t index) {
    const std::size_t offset = index * kChunk;
    const std::size_t bytes = std::min(kChunk, kTotal - offset);
    std::byte* const to = inbox_.place(kWanted, kTotal, offset);
    ASSERT_EQ(to, memory_.data() + offset);
    std::memcpy(to, want_.data() + offset, bytes);
    inbox_.arrived(kWanted, ReceivedChunk(kTotal, offset), bytes);
  }
  std::shared_ptr<PostedReceive> post(std::size_t bytes = kTotal) {
    auto receive = std::make_shared<PostedReceive>(memory_.data(), bytes);
    inbox_.post(kWanted, receive);
    return receive;
  }

  std::vector<std::byte> memory_;
  std::vector<std::byte> want_;
};

// A chunk may come before the receive is posted, begin to come before, or come after.
TEST_F(MessageOfThreeChunks, LandsInTheReceiveHoweverItComes) {
  arrive_apart(0);
  EXPECT_EQ(inbox_.bytes(), window_cost(kChunk));
  const auto receive = post();
  EXPECT_EQ(receive->arrived, kChunk);
  EXPECT_EQ(inbox_.bytes(), 0u);
  arrive_apart(1);
  EXPECT_EQ(receive->arrived, 2 * kChunk);
  arrive_in_place(2);
  EXPECT_EQ(receive->arrived, kTotal);
  EXPECT_EQ(memory_, want_);
  EXPECT_EQ(inbox_.bytes(), 0u);
  EXPECT_EQ(receive->actual, 0u);
  // The receive is complete: what comes next on the stream waits.
  EXPECT_EQ(inbox_.place(kWanted, kTotal, 0), nullptr);
  arrive_apart(0);
  EXPECT_TRUE(inbox_.contains(kWanted));
  EXPECT_EQ(receive->arrived, kTotal);
}

// Of two messages that wait on a stream, a receive takes the first.
TEST_F(MessageOfThreeChunks, IsTakenWholeAndNoMore) {
  for (const std::size_t index : {0, 1, 2, 0}) arrive_apart(index);
  EXPECT_EQ(post()->arrived, kTotal);
  EXPECT_EQ(memory_, want_);
  EXPECT_EQ(inbox_.bytes(), window_cost(kChunk));
  const auto next = inbox_.take(kWanted);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->offset(), 0u);
  EXPECT_FALSE(inbox_.contains(kWanted));
}

// The receive learns the size, and the message is left for `take`.
TEST_F(MessageOfThreeChunks, OfAnotherSizeThanTheReceiveIsLeftForTake) {
  arrive_apart(0);
  EXPECT_EQ(post(10)->actual, kTotal);
  EXPECT_TRUE(inbox_.take(kWanted));
  const auto begun_before = post(10);
  arrive_apart(1);
  EXPECT_EQ(begun_before->actual, kTotal);
  EXPECT_TRUE(inbox_.take(kWanted));
  EXPECT_EQ(inbox_.place(kWanted, 10, 0), nullptr) << "its memory may be gone";
  const auto posted_before = post(10);
  EXPECT_EQ(inbox_.place({9, 9}, kTotal, 0), nullptr) << "of another stream";
  EXPECT_EQ(posted_before->actual, 0u);
  EXPECT_EQ(inbox_.place(kWanted, kTotal, 0), nullptr);
  EXPECT_EQ(posted_before->actual, kTotal);
  EXPECT_EQ(inbox_.place(kWanted, 10, 0), nullptr);
  arrive_apart(2);
  EXPECT_TRUE(inbox_.take(kWanted));
  for (const auto& receive : {begun_before, posted_before}) EXPECT_EQ(receive->arrived, 0u);
  EXPECT_EQ(memory_, std::vector<std::byte>(kTotal));
}

TEST_F(MessageOfThreeChunks, WaitsWhenItsReceiveIsForgotten) {
  post();
  inbox_.forget_posted(kUnwanted);
  EXPECT_NE(inbox_.place(kWanted, kTotal, 0), nullptr);
  inbox_.forget_posted(kWanted);
  EXPECT_EQ(inbox_.place(kWanted, kTotal, 0), nullptr);
}

TEST(FlowMessage, IsReadAsItWasWritten) {
  const FlowMessage message{.what = FlowMessage::kAsk, .stream = {3, 4}, .bytes = 5};
  EXPECT_EQ(FlowMessage::decode(message.encode()), message);
  Bytes bytes = message.encode();
  bytes.pop_back();
  EXPECT_FALSE(FlowMessage::decode(bytes));
}

}  // namespace
}  // namespace shoal::wire::inbox_test
