// The limits of keys and values, numbers, and what a store says of calls that fail.
#include "shoal/wire/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "tests/error_of.h"
#include "tests/resident_memory.h"
#include "tests/wire/soon.h"

namespace shoal::wire::store_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::size_t kMostKey = 4096;
constexpr std::size_t kMostValue = 16 << 20;

class StoreOfOneRank : public testing::Test {
 protected:
  StoreClient connect() { return {server_->endpoint(), "secret", soon()}; }

  std::optional<StoreServer> server_{std::in_place, "127.0.0.1", PortRange{}, "secret"};
  StoreClient client_ = connect();
};

TEST_F(StoreOfOneRank, TakesTheLongestKeyWithTheLargestValue) {
  const std::string key(kMostKey, 'k');
  const std::string value(kMostValue, 'v');
  client_.set(key, value, soon());
  EXPECT_EQ(client_.get(key, soon()), value);
  EXPECT_EQ(error_of([&] { client_.set(key + "k", "", soon()); }).kind(), ErrorKind::kUsage);
  EXPECT_EQ(error_of([&] { client_.set("k", value + "v", soon()); }).kind(), ErrorKind::kUsage);
  client_.set("", "of no key", soon());
  EXPECT_EQ(client_.get("", soon()), "of no key");
}

TEST_F(StoreOfOneRank, AddsOnlyToNumbers) {
  EXPECT_EQ(client_.add("n", 5, soon()), 5);
  EXPECT_EQ(client_.add("n", -7, soon()), -2);
  EXPECT_EQ(client_.get("n", soon()), "-2");
  for (const char* text : {"", "x", "1x", " 1", "1 ", "99999999999999999999"}) {
    client_.set("n", text, soon());
    const Error error = error_of([&] { client_.add("n", 1, soon()); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
    EXPECT_THAT(error.what(), HasSubstr("key 'n' holds no number: '" + std::string(text) + "'"));
    EXPECT_EQ(client_.get("n", soon()), text) << "it is left as it was";
  }
}

TEST_F(StoreOfOneRank, AnswersAllThatWait) {
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      StoreClient other = connect();
      EXPECT_EQ(other.wait("late", soon()), "here");
    });
  }
  client_.set("late", "here", soon());
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(client_.wait("late", soon()), "here");
}

// It had asked, gave up and ended. Its connection is no longer there when the answer is.
// One answer when the last key is there, in the order in which they were asked for.
TEST_F(StoreOfOneRank, AnswersForManyKeysAtOnce) {
  client_.set("b", "2", soon());
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      StoreClient other = connect();
      const auto values = other.wait_all({"c", "b", "a", "c"}, soon(), [] {});
      EXPECT_THAT(values, testing::ElementsAre("3", "2", "", "3"));
    });
  }
  std::this_thread::sleep_for(milliseconds(50));
  client_.set("a", "", soon());
  client_.set("c", "3", soon());
  for (auto& waiter : waiters) waiter.join();
  EXPECT_TRUE(client_.wait_all({}, soon(), [] {}).empty());
  EXPECT_THAT(client_.wait_all({"a", "b"}, soon(), [] {}), testing::ElementsAre("", "2"));
}

TEST_F(StoreOfOneRank, SaysWhichOfManyKeysAreMissing) {
  client_.set("a", "1", soon());
  int checks = 0;
  const auto values =
      client_.wait_all({"a", "b"}, Deadline::in(milliseconds(50)), [&] { ++checks; });
  EXPECT_THAT(values, testing::ElementsAre(std::optional<std::string>("1"), std::nullopt));
  EXPECT_GT(checks, 0);
  // What comes later disturbs nobody.
  client_.set("b", "2", soon());
  EXPECT_EQ(client_.get("b", soon()), "2");
  EXPECT_THROW(client_.wait_all({"c"}, soon(), [] { throw Error(ErrorKind::kAborted, "", ""); }),
               Error);
}

// Each rank of a large job waits for the keys of all: rank 0 keeps none of these lists.
TEST_F(StoreOfOneRank, KeepsLittleForManyThatWaitForManyKeys) {
  constexpr int kWaiting = 50;
  constexpr std::size_t kKeys = 30000;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kKeys; ++i) keys.push_back("of the rank " + std::to_string(i));
  client_.set(keys.front(), "here", soon());
  std::vector<StoreClient> ranks;
  for (int i = 0; i < kWaiting; ++i) ranks.push_back(connect());
  const auto ask = [&](StoreClient& rank) {
    // The second question is answered behind the first one, which waits on.
    const auto values = rank.wait_all(keys, Deadline::in(milliseconds(1)), [] {});
    EXPECT_EQ(values.front(), "here");
    EXPECT_EQ(values.back(), std::nullopt);
  };
  ask(ranks.front());
  const double before = resident_megabytes();
  for (StoreClient& rank : ranks) ask(rank);
    // AddressSanitizer keeps what is freed.
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(resident_megabytes() - before, 50) << "for " << kWaiting << " ranks";
#else
  EXPECT_GT(resident_megabytes(), before / 2);
#endif
}

// Together they are larger than an answer may be.
TEST_F(StoreOfOneRank, AsksOneByOneForWhatIsTooMuchAtOnce) {
  const std::string half(kMostValue / 2, 'v');
  client_.set("a", half, soon());
  client_.set("b", half, soon());
  EXPECT_THAT(client_.wait_all({"a", "b"}, soon(), [] {}), testing::ElementsAre(half, half));
}

TEST_F(StoreOfOneRank, ForgetsTheQuestionsOfWhoIsGone) {
  {
    StoreClient other = connect();
    const Error error = error_of([&] { other.wait("late", Deadline::in(milliseconds(20))); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("no answer for key 'late'"));
  }
  for (int i = 0; i < 20; ++i) client_.get("x", soon());  // the server has seen the end by then
  client_.set("late", "here", soon());
  EXPECT_EQ(client_.get("late", soon()), "here");
}

// The answer to a question that was given up lies in front of the next one.
TEST_F(StoreOfOneRank, AnAnswerBelongsToItsQuestion) {
  EXPECT_EQ(error_of([&] { client_.wait("late", Deadline::in(milliseconds(20))); }).kind(),
            ErrorKind::kTimeout);
  StoreClient other = connect();
  other.set("late", "here", soon());
  for (int i = 0; i < 20; ++i) other.get("x", soon());  // the answer has been written by then
  EXPECT_EQ(client_.get("x", soon()), std::nullopt);
  EXPECT_EQ(client_.get("late", soon()), "here");
}

TEST_F(StoreOfOneRank, ThatEndsIsNamed) {
  server_.reset();
  const Error error = error_of([&] { client_.wait("x", soon()); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
}

TEST_F(StoreOfOneRank, KnowsTheAddressThatLeadsToIt) { EXPECT_EQ(client_.address(), "127.0.0.1"); }

}  // namespace
}  // namespace shoal::wire::store_test
