// A communicator over a library that does what the test says.
#include "shoal/comm/library_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::comm::library_communicator_test {
namespace {

using collective::Handle;
using collective::Kind;
using collective::Operation;
using collective::Reduction;
using std::chrono::milliseconds;
using testing::HasSubstr;

Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

/// Two ranks, or three, of which this is one. Transfers are complete when `answers` is set.
class FakeLibrary final : public LibraryCommunicator {
 public:
  explicit FakeLibrary(bool reduce_scatter = true, int rank = 1, int size = 2,
                       Duration timeout = std::chrono::minutes(10))
      : LibraryCommunicator("fake", rank, size, timeout,
                            {.integers = Integers::kBasic, .reduce_scatter = reduce_scatter}) {}

  bool answers = true;
  std::optional<Error> refuses;        ///< thrown by the call of the library
  std::optional<Error> peers_failure;  ///< why another rank has stopped
  std::function<void(const Request&)> carry = [](const Request& r) {
    // Every other rank contributes zeros.
    if (r.output && r.input && r.output != r.input)
      std::memcpy(r.output, r.input, r.count * size_of(r.type));
  };
  std::vector<Request> requests;
  std::vector<Error> published;
  std::vector<int> members;

 protected:
  class Answer final : public Transfer {
   public:
    Answer(FakeLibrary& library, Request request)
        : library_(library), request_(std::move(request)) {}
    bool done() override {
      if (library_.answers && !carried_) library_.carry(request_);
      carried_ = carried_ || library_.answers;
      return carried_;
    }
    bool wait_briefly(Duration) override { return done(); }

   private:
    FakeLibrary& library_;
    Request request_;
    bool carried_ = false;
  };
  std::unique_ptr<Transfer> post(const Request& request) override {
    requests.push_back(request);
    if (refuses) throw Error(*refuses);
    return std::make_unique<Answer>(*this, request);
  }
  std::unique_ptr<collective::Communicator> part(int, int, const std::vector<int>& m) override {
    members = m;
    return nullptr;
  }
  void publish_failure(const Error& cause) override { published.push_back(cause); }
  std::optional<Error> poll_failure(bool) override { return peers_failure; }
};

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "none", "no error");
}

Operation sum(std::vector<float>& x) {
  return {.kind = Kind::kAllReduce,
          .type = ElementType::kF32,
          .buffer = {x.data(), x.data(), x.size()}};
}

TEST(LibraryCommunicator, SendsBytesWithCountsInBytes) {
  FakeLibrary c;
  std::vector<float> in(5);
  std::vector<float> out(5);
  const std::vector<std::size_t> send{2, 3};
  const std::vector<std::size_t> receive{2, 3};
  c.run({.kind = Kind::kAllToAll,
         .type = ElementType::kF32,
         .buffer = {in.data(), out.data(), 0},
         .send_counts = send,
         .receive_counts = receive,
         .timeout = milliseconds(7000)},
        soon());
  ASSERT_EQ(c.requests.size(), 1u);
  EXPECT_EQ(c.requests[0].type, ElementType::kU8);
  EXPECT_EQ(c.requests[0].send_counts, (std::vector<std::size_t>{8, 12}));
  EXPECT_EQ(c.requests[0].receive_counts, (std::vector<std::size_t>{8, 12}));
  EXPECT_EQ(c.requests[0].timeout, milliseconds(7000));
  c.run({.kind = Kind::kSend,
         .type = ElementType::kF64,
         .buffer = {in.data(), nullptr, 2},
         .peer = 0,
         .tag = 9},
        soon());
  EXPECT_EQ(c.requests[1].count, 16u);
  EXPECT_EQ(c.requests[1].peer, 0);
  EXPECT_EQ(c.requests[1].tag, 9u);
  EXPECT_EQ(c.requests[1].timeout, std::chrono::minutes(10)) << "the default";
  EXPECT_EQ(c.sequence(), 2u);
}

// The root's values are in the output before the library is called.
TEST(LibraryCommunicator, ABroadcastGoesOutFromItsOutput) {
  FakeLibrary c;
  c.carry = [](const Request&) {};
  std::vector<float> in{1, 2};
  std::vector<float> out{0, 0};
  const auto broadcast = [&](int root) {
    c.run({.kind = Kind::kBroadcast,
           .type = ElementType::kF32,
           .buffer = {in.data(), out.data(), 2},
           .peer = root},
          soon());
  };
  broadcast(0);
  EXPECT_EQ(out, (std::vector<float>{0, 0})) << "another rank's";
  broadcast(1);
  EXPECT_EQ(out, in);
}

TEST(LibraryCommunicator, SeveralTensorsAreReducedInOneCall) {
  FakeLibrary c;
  std::vector<float> x{2, 4};
  std::vector<float> y{6};
  const collective::Buffer second{y.data(), y.data(), 1};
  Operation o = sum(x);
  o.reduction = Reduction::kAverage;
  o.more = {&second, 1};
  c.run(o, soon());
  ASSERT_EQ(c.requests.size(), 1u);
  EXPECT_EQ(c.requests[0].count, 3u);
  EXPECT_EQ(x, (std::vector<float>{1, 2})) << "halves: the other rank has zeros";
  EXPECT_EQ(y, std::vector<float>{3});
}

// Without a reduce-scatter of the library's own each rank gets all contributions to its part.
TEST(LibraryCommunicator, AnExchangeStandsInForAReduceScatter) {
  FakeLibrary c(false);
  const std::vector<float> in{1, 2, 10, 20};
  std::vector<float> out(2);
  c.carry = [](const Request& r) { std::memcpy(r.output, r.input, 2 * r.count); };
  c.run({.kind = Kind::kReduceScatter,
         .type = ElementType::kF32,
         .buffer = {in.data(), out.data(), 2}},
        soon());
  ASSERT_EQ(c.requests.size(), 1u);
  EXPECT_EQ(c.requests[0].kind, Kind::kAllToAll);
  EXPECT_EQ(c.requests[0].count, 8u);
  EXPECT_EQ(out, (std::vector<float>{11, 22}));
}

TEST(LibraryCommunicator, ARefusalThatBeginsNothingLeavesTheGroupUsable) {
  FakeLibrary c;
  std::vector<float> x{1};
  c.refuses = Error(ErrorKind::kUsage, "all_reduce", "the library has none");
  EXPECT_EQ(error_of([&] { c.start(sum(x)); }).kind(), ErrorKind::kUsage);
  EXPECT_TRUE(c.idle());
  EXPECT_TRUE(c.published.empty());
  c.refuses.reset();
  EXPECT_NO_THROW(c.run(sum(x), soon()));
}

TEST(LibraryCommunicator, AnyOtherErrorEndsTheGroupOnAllRanks) {
  FakeLibrary c;
  std::vector<float> x{1};
  c.refuses = Error(ErrorKind::kPeerLost, "all_reduce", "connection reset").at(1, 2);
  EXPECT_EQ(error_of([&] { c.start(sum(x)); }).message(), "connection reset");
  ASSERT_EQ(c.published.size(), 1u);
  EXPECT_EQ(c.published[0].message(), "connection reset");
  c.refuses.reset();
  EXPECT_EQ(error_of([&] { c.start(sum(x)); }).message(), "connection reset") << "and stays";
  c.abort(Error(ErrorKind::kData, "x", "a later cause"));
  EXPECT_EQ(c.published.size(), 1u);
  EXPECT_EQ(error_of([&] { c.start(sum(x)); }).message(), "connection reset");
}

// The library's error is a consequence of it.
TEST(LibraryCommunicator, TheCauseOfAnotherRankComesFirst) {
  FakeLibrary c;
  std::vector<float> x{1};
  c.answers = false;
  const Handle handle = c.start(sum(x));
  c.carry = [](const Request&) { throw Error(ErrorKind::kPeerLost, "x", "connection reset"); };
  c.peers_failure = Error(ErrorKind::kData, "read", "the shard is truncated").at(0, 2);
  c.answers = true;
  const Error error = error_of([&] { c.wait(handle, soon()); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.rank(), 0);
}

TEST(LibraryCommunicator, AWaitSeesThatAnotherRankHasStopped) {
  FakeLibrary c;
  std::vector<float> x{1};
  c.answers = false;
  const Handle handle = c.start(sum(x));
  EXPECT_FALSE(c.test(handle));
  EXPECT_FALSE(c.complete(handle));
  EXPECT_FALSE(c.idle());
  c.peers_failure = Error(ErrorKind::kData, "read", "the shard is truncated").at(0, 2);
  EXPECT_EQ(error_of([&] { c.wait(handle, soon()); }).kind(), ErrorKind::kData);
  EXPECT_EQ(error_of([&] { c.test(handle); }).kind(), ErrorKind::kData);
}

TEST(LibraryCommunicator, TimesOutByTheWaitTheOperationOrTheGroup) {
  std::vector<float> x{1};
  const auto timed_out = [&](FakeLibrary& c, Duration own, Deadline deadline) {
    c.answers = false;
    Operation o = sum(x);
    o.timeout = own;
    const Handle handle = c.start(o);
    const Error error = error_of([&] { c.wait(handle, deadline); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.size(), 2);
    EXPECT_EQ(error.sequence(), 1u);
    EXPECT_THAT(error.what(),
                HasSubstr("all_reduce of 1 x f32 did not complete in time over fake"));
    EXPECT_EQ(c.published.size(), 1u);
  };
  FakeLibrary by_wait;
  timed_out(by_wait, Duration::zero(), Deadline::in(milliseconds(5)));
  FakeLibrary by_operation;
  timed_out(by_operation, milliseconds(5), soon());
  FakeLibrary by_group(true, 1, 2, milliseconds(5));
  timed_out(by_group, Duration::zero(), soon());
  FakeLibrary tested(true, 1, 2, milliseconds(5));
  tested.answers = false;
  const Handle handle = tested.start(sum(x));
  EXPECT_EQ(error_of([&] {
              for (const Deadline end = soon(); !end.passed();) tested.test(handle);
            }).kind(),
            ErrorKind::kTimeout);
}

TEST(LibraryCommunicator, PollsUntilNothingIsLeft) {
  FakeLibrary c;
  std::vector<float> x{1};
  std::vector<float> y{1};
  c.answers = false;
  const Handle first = c.start(sum(x));
  const Handle second = c.start(sum(y));
  c.poll(Duration::zero());
  EXPECT_FALSE(c.idle());
  c.answers = true;
  c.wait(second, soon());
  EXPECT_TRUE(c.complete(second));
  EXPECT_FALSE(c.complete(first)) << "nobody has looked";
  c.poll(std::chrono::minutes(1));
  EXPECT_TRUE(c.idle());
  EXPECT_EQ(error_of([&] { c.wait(second + 1, soon()); }).kind(), ErrorKind::kInternal)
      << "never started";
}

// What a communicator does that does not say otherwise.
TEST(Communicator, WaitsBrieflyByTests) {
  FakeLibrary c;
  std::vector<float> x{1};
  c.answers = false;
  const Handle handle = c.start(sum(x));
  const auto before = Clock::now();
  EXPECT_FALSE(c.wait_briefly(handle, milliseconds(5)));
  EXPECT_GE(Clock::now() - before, milliseconds(5));
  c.answers = true;
  EXPECT_TRUE(c.wait_briefly(handle, Duration::zero()));
  EXPECT_EQ(c.take_source(handle), -1);
  EXPECT_EQ(c.node(), 1) << "a node of its own";
  EXPECT_EQ(c.shared_memory(), nullptr);
  EXPECT_TRUE(c.has_room());
  EXPECT_EQ(c.report(), "");
}

TEST(LibraryCommunicator, APartHasItsMembersByKeyAndRank) {
  FakeLibrary c(true, 1, 4);
  const auto members = [&](int color) {
    c.carry = [](const Request& r) {
      const std::int32_t all[] = {7, 3, 7, 1, 5, 0, 7, 1};
      std::memcpy(r.output, all, sizeof all);
    };
    c.split(color, 1);
    return c.members;
  };
  EXPECT_EQ(members(7), (std::vector<int>{1, 3, 0}));
  EXPECT_EQ(members(5), (std::vector<int>{2}));
  EXPECT_EQ(members(-1), std::vector<int>());
}

}  // namespace
}  // namespace shoal::comm::library_communicator_test
