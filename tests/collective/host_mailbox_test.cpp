#include "shoal/collective/shared_memory/host_mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tests/collective/host_ranks.h"

namespace shoal::collective::host_mailbox_test {
namespace {

using std::chrono::milliseconds;

Operation sending(const std::vector<int>& data, int peer, std::uint32_t tag = 0) {
  return {.kind = Kind::kSend,
          .type = ElementType::kI32,
          .buffer = {data.data(), nullptr, data.size()},
          .peer = peer,
          .tag = tag};
}
Operation receiving(std::vector<int>& data, int peer, std::uint32_t tag = 0) {
  return {.kind = Kind::kReceive,
          .type = ElementType::kI32,
          .buffer = {nullptr, data.data(), data.size()},
          .peer = peer,
          .tag = tag};
}
/// The message that `from` sends to `to` as its `i`-th, told apart from every other.
std::vector<int> message(int from, int to, int i, std::size_t count) {
  std::vector<int> data(count);
  std::iota(data.begin(), data.end(), from * 1'000'000 + to * 100'000 + i * 1000);
  return data;
}

constexpr std::size_t kMessageCounts[] = {0, 1, 255, 256, 257, 70'000, 200'001};

// Vectors are private memory of a process (staged) and visible to threads (direct): both ways,
// around the limit of small messages.
TEST(HostMailbox, AnyRankReachesAnyOtherWithAnySize) {
  const auto exchange = [](HostCommunicator& c) {
    for (const std::size_t count : kMessageCounts) {
      std::vector<std::vector<int>> out;
      std::vector<std::vector<int>> in;
      std::vector<Handle> handles;
      for (int r = 0; r < c.size(); ++r)
        out.push_back(message(c.rank(), r, 7, count)), in.emplace_back(count, -1);
      for (int r = 0; r < c.size(); ++r) {
        handles.push_back(c.start(receiving(in[r], r)));
        handles.push_back(c.start(sending(out[r], r)));
      }
      for (const Handle handle : handles) c.wait(handle);
      for (int r = 0; r < c.size(); ++r)
        if (in[r] != message(r, c.rank(), 7, count)) return false;
    }
    return true;
  };
  for (const int ranks : {1, 2, 5})
    on_threads(ranks, [&](HostCommunicator& c, int) { EXPECT_TRUE(exchange(c)); });
  EXPECT_EQ(
      on_processes(3, [&](HostCommunicator& c, wire::Arena&, int) { return exchange(c) ? 0 : 1; }),
      std::vector<int>(3, 0));
}

TEST(HostMailbox, ArenaMemoryIsReadInPlace) {
  const auto codes = on_processes(2, [](HostCommunicator& c, wire::Arena& arena, int rank) {
    constexpr std::size_t kCount = 500'000;
    auto* data = static_cast<int*>(arena.allocate(kCount * sizeof(int)));
    if (rank == 0) {
      std::iota(data, data + kCount, 3);
      c.wait(c.start({.kind = Kind::kSend,
                      .type = ElementType::kI32,
                      .buffer = {data, nullptr, kCount},
                      .peer = 1}));
      return 0;
    }
    c.wait(c.start({.kind = Kind::kReceive,
                    .type = ElementType::kI32,
                    .buffer = {nullptr, data, kCount},
                    .peer = 0}));
    for (std::size_t i = 0; i < kCount; ++i)
      if (data[i] != static_cast<int>(i) + 3) return 1;
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// The receiver asks for the last tag first; within a tag the order is that of the sends. 60
// messages are more than a ring holds.
TEST(HostMailbox, TagsOvertakeAndOneTagKeepsItsOrder) {
  const auto body = [](HostCommunicator& c, int rank) {
    constexpr int kMessages = 60;
    constexpr int kTags = 3;
    std::vector<std::vector<int>> data;
    std::vector<Handle> handles;
    for (int i = 0; i < kMessages; ++i) {
      data.push_back(rank == 0 ? message(0, 1, i, i % 2 ? 10 : 400)
                               : std::vector<int>(i % 2 ? 10 : 400));
    }
    if (rank == 0) {
      for (int i = 0; i < kMessages; ++i)
        handles.push_back(c.start(sending(data[i], 1, i % kTags)));
    } else {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int i = tag; i < kMessages; i += kTags)
          handles.push_back(c.start(receiving(data[i], 0, tag)));
      }
    }
    for (const Handle handle : handles) c.wait(handle);
    for (int i = 0; rank == 1 && i < kMessages; ++i)
      if (data[i] != message(0, 1, i, data[i].size())) return false;
    return true;
  };
  on_threads(2, [&](HostCommunicator& c, int rank) { EXPECT_TRUE(body(c, rank)); });
  EXPECT_EQ(on_processes(2, [&](HostCommunicator& c, wire::Arena&,
                                int rank) { return body(c, rank) ? 0 : 1; }),
            std::vector<int>(2, 0));
}

TEST(HostMailbox, AnySourceSaysWhoseMessageItWas) {
  on_threads(4, [](HostCommunicator& c, int rank) {
    if (rank != 0) {
      const auto data = message(rank, 0, 0, 300);
      return c.wait(c.start(sending(data, 0, 9)));
    }
    std::vector<bool> received(4);
    for (int i = 1; i < 4; ++i) {
      std::vector<int> data(300);
      const Handle handle = c.start(receiving(data, -1, 9));
      c.wait(handle);
      const int source = c.take_source(handle);
      ASSERT_GT(source, 0);
      EXPECT_EQ(data, message(source, 0, 0, 300));
      EXPECT_FALSE(received[source]);
      received[source] = true;
      EXPECT_EQ(c.take_source(handle), -1);
    }
  });
}

TEST(HostMailbox, CollectivesGoOnWhileAMessageWaits) {
  on_threads(3, [](HostCommunicator& c, int rank) {
    std::vector<int> late(1);
    std::vector<int> data = message(rank, (rank + 1) % 3, 1, 1);
    const Handle receive = c.start(receiving(late, (rank + 2) % 3));
    for (int i = 0; i < 200; ++i) {
      int one = 1;
      c.wait(c.start(
          {.kind = Kind::kAllReduce, .type = ElementType::kI32, .buffer = {&one, &one, 1}}));
      ASSERT_EQ(one, 3);
    }
    const Handle send = c.start(sending(data, (rank + 1) % 3));
    c.wait(receive);
    c.wait(send);
    EXPECT_EQ(late, message((rank + 2) % 3, rank, 1, 1));
  });
}

TEST(HostMailbox, RandomTrafficArrivesWhole) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    const auto body = [&](HostCommunicator& c) {
      std::mt19937 everyone(seed);  // the same plan on all ranks
      struct Planned {
        int from, to;
        std::uint32_t tag;
        std::size_t count;
      };
      std::vector<Planned> plan;
      for (int i = 0; i < 300; ++i) {
        const auto draw = [&](int n) {
          return static_cast<unsigned>(everyone() % static_cast<unsigned>(n));
        };
        plan.push_back({static_cast<int>(draw(c.size())), static_cast<int>(draw(c.size())), draw(3),
                        draw(10) == 0 ? std::size_t{90'000} : draw(600)});
      }
      std::vector<std::vector<int>> data;
      std::vector<std::size_t> mine;
      for (std::size_t i = 0; i < plan.size(); ++i) {
        data.push_back(plan[i].from == c.rank()
                           ? message(plan[i].from, plan[i].to, static_cast<int>(i), plan[i].count)
                           : std::vector<int>());
        if (plan[i].from == c.rank() || plan[i].to == c.rank()) mine.push_back(i);
      }
      std::vector<std::vector<int>> got(plan.size());
      std::vector<Handle> handles;
      for (const std::size_t i : mine) {
        if (plan[i].from == c.rank())
          handles.push_back(c.start(sending(data[i], plan[i].to, plan[i].tag)));
        if (plan[i].to == c.rank()) {
          got[i].resize(plan[i].count),
              handles.push_back(c.start(receiving(got[i], plan[i].from, plan[i].tag)));
        }
      }
      for (const Handle handle : handles) c.wait(handle);
      for (const std::size_t i : mine) {
        if (plan[i].to == c.rank() &&
            got[i] != message(plan[i].from, plan[i].to, static_cast<int>(i), plan[i].count))
          return 1;
      }
      return 0;
    };
    on_threads(4, [&](HostCommunicator& c, int) { EXPECT_EQ(body(c), 0); });
    EXPECT_EQ(on_processes(3, [&](HostCommunicator& c, wire::Arena&, int) { return body(c); }),
              std::vector<int>(3, 0));
  }
}

/// What `body` throws; kind kInternal and empty words when it throws nothing.
template <class Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "none", "no error");
}

TEST(HostMailbox, AMessageThatDoesNotFitIsAnErrorOnBothSides) {
  on_threads(2, [](HostCommunicator& c, int rank) {
    std::vector<int> data(rank == 0 ? 400 : 300);
    const Error error =
        error_of([&] { c.wait(c.start(rank == 0 ? sending(data, 1, 4) : receiving(data, 0, 4))); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what())
                  .find("rank 0 sends 400 x i32 with tag 4, rank 1 receives 300 x i32"),
              std::string::npos)
        << error.what();
  });
}

TEST(HostMailbox, AReceiveThatNobodyAnswersTimesOutAndSaysWhatArrivedInstead) {
  std::atomic<bool> sent = false;
  on_threads(2, [&](HostCommunicator& c, int rank) {
    std::vector<int> data(3);
    if (rank == 0) {
      c.wait(c.start(sending(data, 1, 5)));
      sent = true;
      return;
    }
    while (!sent) std::this_thread::sleep_for(milliseconds(1));
    Operation operation = receiving(data, 0, 6);
    operation.timeout = milliseconds(50);
    const Error error = error_of([&] { c.wait(c.start(operation)); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 0 has sent nothing with tag 6"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0 has sent 3 x i32 with tag 5, which nobody receives"),
              std::string::npos)
        << text;
  });
}

TEST(HostMailbox, AbortEndsAReceive) {
  on_threads(2, [](HostCommunicator& c, int rank) {
    std::vector<int> data(3);
    if (rank == 0) return c.abort(Error(ErrorKind::kAborted, "test", "enough"));
    const Error error = error_of([&] { c.wait(c.start(receiving(data, 0))); });
    EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
  });
}

TEST(HostMailbox, ARankThatLeftIsNotWaitedFor) {
  const auto codes = on_processes(3, [](HostCommunicator& c, wire::Arena&, int rank) {
    std::vector<int> data(3);
    if (rank == 0) return c.world().leave(), 0;
    if (rank == 1) {  // rank 0 is gone in good order: that ends no exchange of others
      std::this_thread::sleep_for(milliseconds(700));
      c.wait(c.start(sending(data, 2)));
      c.wait(c.start(receiving(data, 2)));
      return error_of([&] { c.wait(c.start(receiving(data, 0))); }).kind() == ErrorKind::kPeerLost
                 ? 0
                 : 1;
    }
    c.wait(c.start(receiving(data, 1)));
    c.wait(c.start(sending(data, 1)));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace shoal::collective::host_mailbox_test
