// What an inbox tells its peer, and that whoever waits for a stream gets it.
#include "shoal/wire/inbox.h"

#include <gtest/gtest.h>

#include <memory>
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

TEST(FlowMessage, IsReadAsItWasWritten) {
  const FlowMessage message{.what = FlowMessage::kAsk, .stream = {3, 4}, .bytes = 5};
  EXPECT_EQ(FlowMessage::decode(message.encode()), message);
  Bytes bytes = message.encode();
  bytes.pop_back();
  EXPECT_FALSE(FlowMessage::decode(bytes));
}

}  // namespace
}  // namespace shoal::wire::inbox_test
