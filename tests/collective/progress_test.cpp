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

/// How ranks are connected: all in one memory, each on a host of its own, or two a host; between
/// hosts with TLS or without, by one connection or several.
struct Transport {
  const char* name;
  std::vector<int> hosts;  ///< of four ranks
  bool shares_memory;
  bool arena;  ///< false: peers see no buffer of this rank, so everything is staged
  wire::TlsMode tls = wire::TlsMode::kAuto;  ///< which leaves it out here
  int rails = 1;                             ///< connections between each two ranks
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
           .network = {.host = std::to_string(transport.hosts[static_cast<std::size_t>(rank)]),
                       .rails = transport.rails,
                       .tls = transport.tls},
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
  float* data() { return data_; }
  /// Some floats of one value.
  struct Part {
    std::size_t count;
    float value;
  };

  bool all_are(float value) const { return has({{count_, value}}); }
  /// True when the floats are these, one part behind the other.
  bool has(const std::vector<Part>& parts) const {
    const float* next = data_;
    for (const Part& part : parts) {
      for (const float* const end = next + part.count; next != end; ++next)
        if (*next != part.value) return false;
    }
    return next == data_ + count_;
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

/// A random program of collectives and messages in four groups of four ranks: all, the halves, even
/// and odd, and all once more.
class RandomProgram {
 public:
  static constexpr std::size_t kGroups = 4;
  static constexpr std::size_t kSteps = 40;

  RandomProgram(unsigned seed, const Groups& whole, wire::Arena* arena, int rank)
      : arena_(arena), rank_(rank), parts_(kGroups) {
    parts_[1] = whole[0]->split(rank / 2, rank);
    parts_[2] = whole[0]->split(rank % 2, rank);
    groups_ = {whole[0].get(), parts_[1].get(), parts_[2].get(), whole[1].get()};
    std::mt19937 random(seed);
    const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
    for (std::size_t i = 0; i < kSteps; ++i) {
      static constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter,
                                        Kind::kBroadcast, Kind::kSend,      Kind::kAllToAll};
      steps_.push_back({.group = static_cast<std::size_t>(below(kGroups)),
                        .kind = kKinds[below(6)],
                        .count = std::size_t{1} << below(17),
                        .root = below(kGroupRanks)});
    }
  }

  std::size_t group_of(std::size_t step) const { return steps_[step].group; }
  void start(std::size_t i);
  /// Waits for one of those that were started.
  void wait(std::size_t i) {
    groups_[steps_[i].group]->wait(steps_[i].handle, soon());
    EXPECT_TRUE(steps_[i].output->has(steps_[i].wanted)) << "step " << i << ", rank " << rank_;
    steps_[i].input.reset();
    steps_[i].output.reset();
  }
  bool test(std::size_t i) { return groups_[steps_[i].group]->test(steps_[i].handle); }

 private:
  struct Step {
    std::size_t group;
    Kind kind;
    std::size_t count;
    int root;
    Handle handle{};
    std::shared_ptr<Floats> input{}, output{};
    std::vector<Floats::Part> wanted{};
    std::vector<std::size_t> sent{}, received{};  ///< floats to and from each rank of an all-to-all
  };
  /// Prepares an exchange of which every pair of ranks has another number of floats, some none.
  void exchange(Step& step, Operation& operation, const std::vector<float>& values, int me);
  /// The ranks of a group of this rank.
  std::vector<int> members(std::size_t group) const {
    if (group == 1) return {rank_ / 2 * 2, rank_ / 2 * 2 + 1};
    if (group == 2) return {rank_ % 2, rank_ % 2 + 2};
    return {0, 1, 2, 3};
  }

  wire::Arena* arena_;
  int rank_;
  Groups parts_;
  std::vector<Communicator*> groups_;
  std::vector<Step> steps_;
};

void RandomProgram::exchange(Step& step, Operation& operation, const std::vector<float>& values,
                             int me) {
  const int size = static_cast<int>(values.size());
  const auto floats = [&](int from, int to) {
    return step.count / 4 * static_cast<std::size_t>((from + 2 * to) % 3);
  };
  // What a rank sends has other values for each rank that it sends to.
  const auto value = [&](int from, int to) {
    return values[static_cast<std::size_t>(from)] + 1000.0f * static_cast<float>(to);
  };
  std::size_t all_sent = 0;
  std::size_t all_received = 0;
  for (int other = 0; other < size; ++other) {
    step.sent.push_back(floats(me, other));
    step.received.push_back(floats(other, me));
    all_sent += step.sent.back();
    all_received += step.received.back();
    step.wanted.push_back({step.received.back(), value(other, me)});
  }
  step.input = std::make_shared<Floats>(arena_, all_sent, 0.0f);
  step.output = std::make_shared<Floats>(arena_, all_received, -1.0f);
  float* next = step.input->data();
  for (int to = 0; to < size; ++to) next = std::fill_n(next, floats(me, to), value(me, to));
  operation.send_counts = step.sent;
  operation.receive_counts = step.received;
}

void RandomProgram::start(std::size_t i) {
  Step& step = steps_[i];
  const std::vector<int> ranks = members(step.group);
  const int me = groups_[step.group]->rank();
  const std::size_t size = ranks.size();
  const std::size_t n = step.count;
  const auto value = [&](int member) { return static_cast<float>(8 * i + 1) + ranks[member]; };
  float sum = 0;
  for (std::size_t m = 0; m < size; ++m) sum += value(static_cast<int>(m));
  const auto floats = [&](std::size_t count, float x) {
    return std::make_shared<Floats>(arena_, count, x);
  };
  step.input = step.output = floats(n, value(me));
  Operation operation{.kind = step.kind, .type = ElementType::kF32};
  switch (step.kind) {
    case Kind::kAllGather:
      step.output = floats(size * n, -1);
      for (std::size_t m = 0; m < size; ++m) step.wanted.push_back({n, value(static_cast<int>(m))});
      break;
    case Kind::kReduceScatter:
      step.input = floats(size * n, value(me));
      step.wanted = {{n, sum}};
      break;
    case Kind::kBroadcast:
      operation.peer = step.root % static_cast<int>(size);
      step.wanted = {{n, value(operation.peer)}};
      break;
    case Kind::kSend:
      // In pairs, to the odd one.
      operation.peer = me ^ 1;
      if (me % 2 == 1) operation.kind = Kind::kReceive;
      step.wanted = {{n, value(me & ~1)}};
      break;
    case Kind::kAllToAll: {
      std::vector<float> values;
      for (std::size_t m = 0; m < size; ++m) values.push_back(value(static_cast<int>(m)));
      exchange(step, operation, values, me);
      break;
    }
    default:
      step.wanted = {{n, sum}};
  }
  operation.buffer = {step.input->data(), step.output->data(), n};
  step.handle = groups_[step.group]->start(operation);
}

/// Takes one of `waiting` away.
std::size_t take_any(std::vector<std::size_t>& waiting, std::mt19937& own) {
  const auto i = std::uniform_int_distribution<std::size_t>(0, waiting.size() - 1)(own);
  std::swap(waiting[i], waiting.back());
  const std::size_t taken = waiting.back();
  waiting.pop_back();
  return taken;
}

class RandomProgramsOver : public ProgressOf {
 protected:
  /// Runs `body` on all ranks with five programs, and random numbers of the rank's own. Other
  /// programs with --gtest_shuffle.
  void run_programs(const std::function<void(RandomProgram&, std::mt19937& own)>& body) {
    const auto first = 5 * static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed());
    for (unsigned seed = first; seed < first + 5; ++seed) {
      expect_none(run(2, [&](const Groups& groups, wire::Arena* arena, int rank) {
        RandomProgram program(seed, groups, arena, rank);
        std::mt19937 own(1000 * seed + static_cast<unsigned>(rank));
        body(program, own);
      }));
    }
  }
};

// All ranks start the same operations in one order; each waits when and for which it likes.
TEST_P(RandomProgramsOver, WithWaitsAnywhere) {
  run_programs([](RandomProgram& program, std::mt19937& own) {
    std::vector<std::size_t> waiting;
    for (std::size_t i = 0; i < RandomProgram::kSteps; ++i) {
      program.start(i);
      waiting.push_back(i);
      while (!waiting.empty() && std::bernoulli_distribution(0.5)(own))
        program.wait(take_any(waiting, own));
    }
    while (!waiting.empty()) program.wait(take_any(waiting, own));
  });
}

// Each rank goes through the groups in an order of its own, which only within a group is that of
// the others. It waits when all are started: a wait before that may be for a rank that waits for
// what this one has not started.
TEST_P(RandomProgramsOver, WithGroupsInAnyOrder) {
  run_programs([](RandomProgram& program, std::mt19937& own) {
    std::vector<std::vector<std::size_t>> to_start(RandomProgram::kGroups);
    for (std::size_t i = RandomProgram::kSteps; i-- > 0;)
      to_start[program.group_of(i)].push_back(i);
    std::vector<std::size_t> waiting;
    while (waiting.size() < RandomProgram::kSteps) {
      const auto group =
          std::uniform_int_distribution<std::size_t>(0, RandomProgram::kGroups - 1)(own);
      if (to_start[group].empty()) continue;
      program.start(to_start[group].back());
      waiting.push_back(to_start[group].back());
      to_start[group].pop_back();
      if (std::bernoulli_distribution(0.3)(own)) program.test(waiting.back());
    }
    while (!waiting.empty()) program.wait(take_any(waiting, own));
  });
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

const auto kTransports = testing::Values(
    Transport{"memory", {0, 0, 0, 0}, true, true}, Transport{"staged", {0, 0, 0, 0}, true, false},
    Transport{"tcp", {0, 1, 2, 3}, false, false}, Transport{"hierarchy", {0, 0, 1, 1}, true, true},
    Transport{"tls", {0, 1, 2, 3}, false, false, wire::TlsMode::kOn},
    Transport{"rails", {0, 1, 2, 3}, false, false, wire::TlsMode::kAuto, 3},
    Transport{"tls_rails_hierarchy", {0, 0, 1, 1}, true, true, wire::TlsMode::kOn, 2});
std::string name_of(const testing::TestParamInfo<Transport>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Transports, ProgressOf, kTransports, name_of);
INSTANTIATE_TEST_SUITE_P(Transports, RandomProgramsOver, kTransports, name_of);

}  // namespace
}  // namespace shoal::collective::progress_test
