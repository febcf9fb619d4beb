// A rank that waits in one group advances its others: ranks may use several groups in any order.
#include "shoal/collective/progress.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "shoal/collective/fabric.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::progress_test {
namespace {

/// How ranks are connected: all in one memory, each on a host of its own, or two a host.
struct Transport {
  const char* name;
  std::vector<int> hosts;  ///< of four ranks
  bool shares_memory;
  bool arena;  ///< false: peers see no buffer of this rank, so everything is staged
};

void PrintTo(const Transport& transport, std::ostream* out) { *out << transport.name; }

constexpr int kGroupRanks = 4;

using Groups = std::vector<std::unique_ptr<Communicator>>;

class ProgressOf : public testing::TestWithParam<Transport> {
 protected:
  /// Runs `body` on all ranks, threads here, with `groups` groups of all of them. Returns what each
  /// rank threw.
  std::vector<std::optional<Error>> run(
      std::size_t groups, const std::function<void(const Groups&, wire::Arena*, int rank)>& body) {
    const Transport& transport = GetParam();
    static std::atomic<int> runs = 0;
    const std::string name = fmt::format("progress-{}-{}", getpid(), ++runs);
    return on_network(kGroupRanks, [&](const wire::Endpoint& store, int rank) {
      wire::StoreClient client(store, "key", soon());
      std::shared_ptr<wire::Arena> arena;
      const auto arena_for = [&](int) {
        if (transport.arena) arena = std::make_shared<wire::Arena>(wire::Arena::Options{});
        return arena;
      };
      const auto fabric = Fabric::on_hosts(
          {.name = name,
           .key = "key",
           .rank = rank,
           .size = kGroupRanks,
           .shares_memory = transport.shares_memory,
           .network = {.host = std::to_string(transport.hosts[static_cast<std::size_t>(rank)])},
           .timeout = std::chrono::seconds(20),
           .progress = std::make_shared<Progress>()},
          client, arena_for, soon());
      Groups all;
      all.push_back(fabric->group_of_all());
      while (all.size() < groups) all.push_back(all.front()->split(0, rank));
      body(all, arena.get(), rank);
      for (const auto& group : all) group->run({.kind = Kind::kBarrier}, soon());
      fabric->leave();
    });
  }
};

/// Floats that peers can see where there is an arena.
class Floats {
 public:
  Floats(wire::Arena* arena, std::size_t count, float value) : arena_(arena), count_(count) {
    data_ = static_cast<float*>(arena ? arena->allocate(4 * count) : ::operator new(4 * count));
    std::fill_n(data_, count, value);
  }
  ~Floats() { arena_ ? arena_->free(data_) : ::operator delete(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  Operation all_reduce() {
    return {.kind = Kind::kAllReduce, .type = ElementType::kF32, .buffer = {data_, data_, count_}};
  }
  bool all_are(float value) const {
    return std::all_of(data_, data_ + count_, [&](float x) { return x == value; });
  }

 private:
  wire::Arena* arena_;
  std::size_t count_;
  float* data_;
};

// Even ranks start in the first group, use the second, and only then wait in the first; odd ranks
// wait in the first at once. Each needs what the others do in the group that they do not wait in.
TEST_P(ProgressOf, TwoGroupsUsedInDifferentOrders) {
  for (const std::size_t count : {1000, 300'000}) {
    expect_none(run(2, [&](const Groups& groups, wire::Arena* arena, int rank) {
      Floats x(arena, count, 1);
      Floats y(arena, count, 2);
      const Handle first = groups[0]->start(x.all_reduce());
      if (rank % 2 == 0) {
        groups[1]->run(y.all_reduce(), soon());
        groups[0]->wait(first, soon());
      } else {
        groups[0]->wait(first, soon());
        groups[1]->run(y.all_reduce(), soon());
      }
      EXPECT_TRUE(x.all_are(kGroupRanks));
      EXPECT_TRUE(y.all_are(2 * kGroupRanks));
    }));
  }
}

// As above, by ranks that ask again and again in place of waiting.
TEST_P(ProgressOf, ATestOfOneGroupAdvancesTheOthers) {
  expect_none(run(2, [&](const Groups& groups, wire::Arena* arena, int rank) {
    Floats x(arena, 300'000, 1);
    Floats y(arena, 300'000, 2);
    const auto until_complete = [](Communicator& group, Handle handle) {
      for (const Deadline end = soon(); !group.test(handle);) ASSERT_FALSE(end.passed());
    };
    const Handle first = groups[0]->start(x.all_reduce());
    if (rank % 2 != 0) until_complete(*groups[0], first);
    until_complete(*groups[1], groups[1]->start(y.all_reduce()));
    until_complete(*groups[0], first);
    EXPECT_TRUE(x.all_are(kGroupRanks));
    EXPECT_TRUE(y.all_are(2 * kGroupRanks));
  }));
}

// Ranks 2 and 3 wait for messages whose senders wait in another group, for them.
TEST_P(ProgressOf, AMessageIsSentWhileItsSenderWaitsInAnotherGroup) {
  expect_none(run(2, [&](const Groups& groups, wire::Arena* arena, int rank) {
    const bool sends = rank < 2;
    Floats message(arena, 1 << 20, sends ? 7 : 0);
    Floats y(arena, 1000, 1);
    Operation operation = message.all_reduce();
    operation.kind = sends ? Kind::kSend : Kind::kReceive;
    operation.peer = kGroupRanks - 1 - rank;
    const Handle handle = groups[0]->start(operation);
    if (!sends) groups[0]->wait(handle, soon());
    groups[1]->run(y.all_reduce(), soon());
    if (sends) groups[0]->wait(handle, soon());
    EXPECT_TRUE(message.all_are(7));
    EXPECT_TRUE(y.all_are(kGroupRanks));
  }));
}

// All ranks start the same operations in one order; each waits when and for which it likes.
TEST_P(ProgressOf, RandomWaitsInFourGroups) {
  constexpr std::size_t kGroups = 4;
  constexpr std::size_t kOperations = 40;
  for (const unsigned seed : {1u, 2u}) {
    expect_none(run(kGroups, [&](const Groups& groups, wire::Arena* arena, int rank) {
      std::mt19937 common(seed);
      std::mt19937 own(1000 * seed + static_cast<unsigned>(rank));
      struct Started {
        std::size_t group;
        Handle handle;
        float value;
        std::unique_ptr<Floats> floats;
      };
      std::vector<Started> waiting;
      const auto wait_for_any = [&] {
        const auto i = std::uniform_int_distribution<std::size_t>(0, waiting.size() - 1)(own);
        std::swap(waiting[i], waiting.back());
        const Started one = std::move(waiting.back());
        waiting.pop_back();
        groups[one.group]->wait(one.handle, soon());
        EXPECT_TRUE(one.floats->all_are(kGroupRanks * one.value));
      };
      for (std::size_t i = 0; i < kOperations; ++i) {
        const auto group = std::uniform_int_distribution<std::size_t>(0, kGroups - 1)(common);
        const auto count = std::size_t{1} << std::uniform_int_distribution<int>(0, 17)(common);
        const auto value = static_cast<float>(i + 1);
        auto floats = std::make_unique<Floats>(arena, count, value);
        const Handle handle = groups[group]->start(floats->all_reduce());
        waiting.push_back({group, handle, value, std::move(floats)});
        while (!waiting.empty() && std::bernoulli_distribution(0.5)(own)) wait_for_any();
      }
      while (!waiting.empty()) wait_for_any();
    }));
  }
}

// What fails in a group that is advanced on the side ends the wait of this one, with its cause.
TEST_P(ProgressOf, AFailureOfAnotherGroupEndsTheWait) {
  const auto errors = run(2, [&](const Groups& groups, wire::Arena* arena, int rank) {
    Floats x(arena, 1000, 1);
    Floats y(arena, rank == 3 ? 2000 : 3000, 1);
    const Handle wrong = groups[1]->start(y.all_reduce());
    // Rank 0 never comes to this one: it meets the mismatch in its own wait.
    if (rank == 0) groups[1]->wait(wrong, soon());
    groups[0]->run(x.all_reduce(), soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kMismatch) << error->what();
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ProgressOf,
                         testing::Values(Transport{"memory", {0, 0, 0, 0}, true, true},
                                         Transport{"staged", {0, 0, 0, 0}, true, false},
                                         Transport{"tcp", {0, 1, 2, 3}, false, false},
                                         Transport{"hierarchy", {0, 0, 1, 1}, true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shoal::collective::progress_test
