// Thousands of schedules of a network that lives in one thread: random operations, types, sizes,
// algorithms and orders of everything that a network is free to reorder, against plain folds; and
// in every phase of them a rank that is killed, stopped, delayed, cut off or lies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstring>
#include <thread>

#include "shoal/base/narrow_float.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "tests/collective/simulated_network.h"
#include "tests/support/fold_plain.h"

namespace shoal::collective::simulated_schedules_test {
namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

constexpr ElementType kTypes[] = {ElementType::kBool, ElementType::kU8,     ElementType::kI8,
                                  ElementType::kU16,  ElementType::kI16,    ElementType::kU32,
                                  ElementType::kI32,  ElementType::kU64,    ElementType::kI64,
                                  ElementType::kF16,  ElementType::kBF16,   ElementType::kF32,
                                  ElementType::kF64,  ElementType::kF8E4M3, ElementType::kF8E5M2,
                                  ElementType::kC64,  ElementType::kC128};
constexpr Reduction kReductions[] = {Reduction::kSum,   Reduction::kProduct, Reduction::kMin,
                                     Reduction::kMax,   Reduction::kAverage, Reduction::kBitAnd,
                                     Reduction::kBitOr, Reduction::kBitXor,  Reduction::kPremulSum};
constexpr Kind kKinds[] = {
    Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather, Kind::kReduceScatter,
    Kind::kAllToAll,  Kind::kGather, Kind::kScatter,   Kind::kBarrier,   Kind::kSend};

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

/// 1, 2 or 3 of the type: sums and products of nine are exact from fp32 on.
void put_number(ElementType type, std::byte* to, int number) {
  const auto real = static_cast<float>(number);
  switch (type) {
    case ElementType::kBool:
      return store(to, static_cast<std::uint8_t>(number % 2));
    case ElementType::kU8:
    case ElementType::kI8:
      return store(to, static_cast<std::uint8_t>(number));
    case ElementType::kU16:
    case ElementType::kI16:
      return store(to, static_cast<std::uint16_t>(number));
    case ElementType::kU32:
    case ElementType::kI32:
      return store(to, static_cast<std::uint32_t>(number));
    case ElementType::kU64:
    case ElementType::kI64:
      return store(to, static_cast<std::uint64_t>(number));
    case ElementType::kF8E4M3:
      return store(to, narrow_e4m3(real));
    case ElementType::kF8E5M2:
      return store(to, narrow_e5m2(real));
    case ElementType::kF16:
      return store(to, narrow_f16(real));
    case ElementType::kBF16:
      return store(to, narrow_bf16(real));
    case ElementType::kF32:
      return store(to, real);
    case ElementType::kF64:
      return store(to, static_cast<double>(number));
    case ElementType::kC64:
      return store(to, std::complex<float>(real, real + 1));
    case ElementType::kC128:
      return store(to, std::complex<double>(real, real + 1));
  }
}

/// One call that every rank makes; kSend: every rank sends to its successor and receives from its
/// predecessor.
struct Planned {
  Operation operation;
  std::vector<Bytes> in, out, expected;  ///< by rank
};

std::size_t parts_in(Kind kind, std::size_t ranks) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter ? ranks
                                                                                           : 1;
}
std::size_t parts_out(Kind kind, std::size_t ranks) {
  return kind == Kind::kAllGather || kind == Kind::kAllToAll || kind == Kind::kGather ? ranks : 1;
}

/// What must be in the outputs, made without the code under test but for the fold of one element at
/// a time.
void expect_results(Planned& p, std::size_t ranks) {
  const Operation& o = p.operation;
  const std::size_t bytes = o.buffer.count * size_of(o.type);
  const std::size_t root = static_cast<std::size_t>(std::max(o.peer, 0));
  const auto part = [&](const Bytes& from, std::size_t i) { return from.data() + i * bytes; };
  const auto copy = [&](Bytes& to, std::size_t at, const std::byte* from) {
    if (bytes > 0) std::memcpy(to.data() + at * bytes, from, bytes);
  };
  std::vector<const void*> sources;
  for (const Bytes& in : p.in) sources.push_back(in.data());
  Bytes folded(p.in.front().size());
  void* target = folded.data();
  if (reduces(o.kind)) {
    fold_plain(o.type, o.reduction, sources.data(), static_cast<int>(ranks), &target, 1,
               o.buffer.count * parts_in(o.kind, ranks), o.scale);
  }
  p.expected = p.out;
  for (std::size_t r = 0; r < ranks; ++r) {
    Bytes& to = p.expected[r];
    if (o.kind == Kind::kAllReduce || (o.kind == Kind::kReduce && r == root))
      copy(to, 0, folded.data());
    if (o.kind == Kind::kReduceScatter) copy(to, 0, part(folded, r));
    if (o.kind == Kind::kBroadcast) copy(to, 0, p.in[root].data());
    if (o.kind == Kind::kScatter) copy(to, 0, part(p.in[root], r));
    if (o.kind == Kind::kSend) copy(to, 0, p.in[(r + ranks - 1) % ranks].data());
    for (std::size_t s = 0; s < ranks; ++s) {
      if (o.kind == Kind::kAllGather || (o.kind == Kind::kGather && r == root))
        copy(to, s, p.in[s].data());
      if (o.kind == Kind::kAllToAll) copy(to, s, part(p.in[s], r));
    }
  }
}

Planned plan_call(Random& random, std::size_t ranks, bool large) {
  Planned p;
  Operation& o = p.operation;
  const std::size_t counts[] = {0, 1, 2, ranks - 1, ranks, ranks + 1, 17, 33, 257, 1000};
  o.kind = kKinds[random() % std::size(kKinds)];
  o.type = kTypes[random() % std::size(kTypes)];
  o.reduction = kReductions[random() % std::size(kReductions)];
  if (!supports_fold(o.type, o.reduction)) o.reduction = Reduction::kSum;
  o.buffer.count =
      large ? (70'000 + random() % 1000) / size_of(o.type) : counts[random() % std::size(counts)];
  if (o.kind == Kind::kBarrier) o.buffer.count = 0;
  if (has_root(o.kind)) o.peer = static_cast<int>(random() % ranks);
  if (o.kind == Kind::kSend && ranks == 1) o.kind = Kind::kBarrier, o.buffer.count = 0;
  o.priority = static_cast<int>(random() % 3);
  o.scale = 0.5;
  o.tag = static_cast<std::uint32_t>(random() % 2);
  const std::size_t element = size_of(o.type);
  for (std::size_t r = 0; r < ranks; ++r) {
    Bytes in(o.buffer.count * parts_in(o.kind, ranks) * element);
    for (std::size_t at = 0; at < in.size(); at += element)
      put_number(o.type, &in[at], 1 + static_cast<int>((r * 5 + at / element * 3) % 3));
    p.in.push_back(std::move(in));
    p.out.emplace_back(o.buffer.count * parts_out(o.kind, ranks) * element, std::byte{0x55});
  }
  expect_results(p, ranks);
  return p;
}

std::string plan_overrides(Random& random) {
  std::string words;
  for (const Kind kind : kKinds) {
    const auto algorithms = algorithms_for(kind);
    if (algorithms.empty() || random() % 3 == 0) continue;
    words += fmt::format("{}{}={}", words.empty() ? "" : ",", name(kind),
                         name(algorithms[random() % algorithms.size()]));
  }
  return words;
}

enum class Fault { kNone, kKilled, kStopped, kDelayed, kCut, kLying };
constexpr Fault kFaults[] = {Fault::kKilled, Fault::kStopped, Fault::kDelayed, Fault::kCut,
                             Fault::kLying};

/// One job on a simulated network. Everything follows from the seed; time plays a part only where
/// somebody lies.
class Simulation {
 public:
  struct Rank {
    std::unique_ptr<TcpCommunicator> communicator;
    std::vector<Operation> operations;
    std::size_t next = 0;
    std::vector<Handle> open;
    std::optional<Error> error;
    bool acts = true;
    bool done() const { return error || !acts || (next == operations.size() && open.empty()); }
  };

  Simulation(std::uint64_t seed, int ranks, int calls, Duration timeout = std::chrono::minutes(5))
      : random_(seed),
        network_(ranks, seed ^ 0x9e3779b97f4a7c15u),
        ranks_(static_cast<std::size_t>(ranks)) {
    const bool large = seed % 16 == 0;
    for (int i = 0; i < calls; ++i)
      planned_.push_back(plan_call(random_, ranks_.size(), large && i < 2));
    const std::string overrides = plan_overrides(random_);
    for (int r = 0; r < ranks; ++r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      rank.communicator = std::make_unique<TcpCommunicator>(
          network_.end(r),
          TcpCommunicator::Options{.timeout = timeout, .hosts = {}, .algorithms = overrides});
      for (Planned& p : planned_) add_operations(p, r, rank.operations);
    }
  }

  /// Runs until every rank is through. `fault` comes after `when` turns. Returns the turns; nothing
  /// when ranks hang.
  std::optional<int> run(Fault fault = Fault::kNone, int when = 0) {
    victim_ = static_cast<int>(random_() % ranks_.size()), other_ = (victim_ + 1) % size();
    std::vector<std::pair<int, std::function<void()>>> events;
    for (int turn = 0; turn < kMostTurns; ++turn) {
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.done(); }))
        return turn;
      if (fault != Fault::kNone && turn == when) events = begin(fault, turn);
      for (auto& [at, event] : events)
        if (at == turn) event();
      // Who was lied to waits for what may never come: its time runs out.
      if (fault == Fault::kLying && turn % 2000 == 1999)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (random_() % 2 == 0 && network_.step()) continue;
      act(ranks_[random_() % ranks_.size()]);
    }
    return std::nullopt;
  }

  /// What is wrong with the results of ranks that met no error.
  std::string wrong() const {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].error || !ranks_[r].acts) continue;
      for (std::size_t i = 0; i < planned_.size(); ++i) {
        const Operation& o = planned_[i].operation;
        const bool looks =
            !(o.kind == Kind::kReduce || o.kind == Kind::kGather) || o.peer == static_cast<int>(r);
        if (looks && planned_[i].out[r] != planned_[i].expected[r]) {
          return fmt::format("call {}, {} by {} of {} x {}, rank {} of {}", i, name(o.kind),
                             name(o.reduction), o.buffer.count, name(o.type), r, ranks_.size());
        }
      }
    }
    return {};
  }

  const std::vector<Rank>& ranks() const { return ranks_; }
  int victim() const { return victim_; }
  int other() const { return other_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  void abort(int rank, const Error& cause) {
    ranks_[static_cast<std::size_t>(rank)].communicator->abort(cause);
  }

 private:
  static constexpr int kMostTurns = 300'000;

  static void add_operations(Planned& p, int r, std::vector<Operation>& operations) {
    const auto rank = static_cast<std::size_t>(r);
    const int ranks = static_cast<int>(p.in.size());
    Operation o = p.operation;
    o.buffer.input = p.in[rank].data(), o.buffer.output = p.out[rank].data();
    if (o.kind != Kind::kSend) return operations.push_back(o);
    o.kind = Kind::kReceive, o.peer = (r + ranks - 1) % ranks;
    operations.push_back(o);
    o.kind = Kind::kSend, o.peer = (r + 1) % ranks;
    operations.push_back(o);
  }

  void act(Rank& rank) {
    if (rank.done()) return;
    try {
      if (rank.next < rank.operations.size() && (rank.open.empty() || random_() % 3 == 0)) {
        rank.open.push_back(rank.communicator->start(rank.operations[rank.next]));
        ++rank.next;
        return;
      }
      const auto at = rank.open.begin() + static_cast<std::ptrdiff_t>(random_() % rank.open.size());
      if (rank.communicator->test(*at)) rank.open.erase(at);
    } catch (const Error& error) {
      rank.error = error;
    }
  }

  std::vector<std::pair<int, std::function<void()>>> begin(Fault fault, int turn) {
    std::vector<std::pair<int, std::function<void()>>> events;
    const auto later = [&] { return turn + 1 + static_cast<int>(random_() % 500); };
    const auto noticed_by = [&](int rank, int lost) {
      events.emplace_back(later(), [=, this] { network_.notice(rank, lost); });
    };
    if (fault == Fault::kKilled || fault == Fault::kStopped) {
      ranks_[static_cast<std::size_t>(victim_)].acts = false;
      if (fault == Fault::kKilled) network_.lose(victim_);
      for (int r = 0; r < size(); ++r)
        if (r != victim_) noticed_by(r, victim_);
    }
    if ((fault == Fault::kDelayed || fault == Fault::kCut) && other_ != victim_)
      network_.stand_still(victim_, other_, true);
    if (fault == Fault::kDelayed)
      events.emplace_back(turn + 3000, [this] { network_.stand_still(victim_, other_, false); });
    if (fault == Fault::kCut && other_ != victim_)
      noticed_by(victim_, other_), noticed_by(other_, victim_);
    if (fault == Fault::kLying) network_.lie(victim_, 1 + random_() % 6);
    return events;
  }

  Random random_;
  std::vector<Planned> planned_;  // outlives the communicators, which may read it when they go
  SimulatedNetwork network_;
  std::vector<Rank> ranks_;
  int victim_ = 0, other_ = 0;
};

int ranks_of(std::uint64_t seed) { return 1 + static_cast<int>(seed % 9); }

TEST(SimulatedSchedules, GiveThePlainResultsWhateverTheNetworkReorders) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Simulation simulation(seed, ranks_of(seed), 4);
    ASSERT_TRUE(simulation.run()) << "seed " << seed << " hangs";
    for (const auto& rank : simulation.ranks())
      ASSERT_FALSE(rank.error) << "seed " << seed << ": " << rank.error->what();
    ASSERT_EQ(simulation.wrong(), "") << "seed " << seed;
  }
}

// Whoever was through before is right, everybody else has an error; nobody waits on.
TEST(SimulatedSchedules, AFaultInAnyPhaseEndsEverySurvivorWithItsName) {
  std::array<int, std::size(kFaults)> errors{};
  std::array<int, std::size(kFaults)> completed{};
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    const std::size_t which = seed % std::size(kFaults);
    const Fault fault = kFaults[which];
    const int ranks = 2 + static_cast<int>(seed / 5 % 6);
    const auto begin = Clock::now();
    const auto turns = Simulation(seed, ranks, 3).run();
    ASSERT_TRUE(turns);
    // Where nobody lies all is done in less time, on this machine and now.
    const Duration enough = std::clamp<Duration>(
        2 * (Clock::now() - begin), std::chrono::milliseconds(3), std::chrono::milliseconds(40));
    const Duration timeout = fault == Fault::kLying ? enough : Duration(std::chrono::minutes(5));
    Simulation simulation(seed, ranks, 3, timeout);
    const int when = static_cast<int>(seed * 2654435761u % static_cast<std::uint64_t>(*turns + 1));
    ASSERT_TRUE(simulation.run(fault, when)) << "seed " << seed << " hangs after fault " << which;
    if (fault != Fault::kLying) {
      ASSERT_EQ(simulation.wrong(), "") << "seed " << seed;
    }
    for (int r = 0; r < ranks; ++r) {
      const auto& error = simulation.ranks()[static_cast<std::size_t>(r)].error;
      ++(error ? errors : completed)[which];
      if (!error || fault == Fault::kLying) continue;
      ASSERT_NE(fault, Fault::kDelayed) << "seed " << seed << ": " << error->what();
      ASSERT_EQ(error->kind(), ErrorKind::kPeerLost) << error->what();
      ASSERT_TRUE(error->peer() == simulation.victim() ||
                  (fault == Fault::kCut && error->peer() == simulation.other()))
          << "seed " << seed << ": " << error->what();
    }
  }
  for (std::size_t i = 0; i < std::size(kFaults); ++i) {
    EXPECT_GT(completed[i], 0);
    EXPECT_EQ(errors[i] > 0, kFaults[i] != Fault::kDelayed) << "faults came where they hurt";
  }
}

TEST(SimulatedSchedules, AThousandInFlightEndTogetherWhenOneAborts) {
  for (const bool aborts : {false, true}) {
    Simulation simulation(7, 3, 1000);
    if (aborts) {
      simulation.abort(1,
                       Error(ErrorKind::kNonFinite, "train", "the loss is not a number").at(1, 3));
    }
    ASSERT_TRUE(simulation.run());
    for (const auto& rank : simulation.ranks()) {
      EXPECT_EQ(rank.error.has_value(), aborts);
      if (rank.error) {
        EXPECT_EQ(rank.error->kind(), ErrorKind::kNonFinite);
      }
    }
    EXPECT_EQ(simulation.wrong(), "");
  }
}

}  // namespace
}  // namespace shoal::collective::simulated_schedules_test
