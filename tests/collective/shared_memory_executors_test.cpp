// The three paths of shared memory, each by itself: one thread plays all ranks, in an order of the
// test's own, and compares every element with the definition of the collective.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "shoal/collective/shared_memory/direct_executor.h"
#include "shoal/collective/shared_memory/inline_executor.h"
#include "shoal/collective/shared_memory/staged_executor.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/one_block.h"

namespace shoal::collective::shared_memory_executors_test {
namespace {

constexpr int kExecutorRanks = 3;
constexpr int kRoot = 2;

/// Small integers, so that sums are exact in any order.
float element(int rank, std::size_t i) {
  return static_cast<float>(100 * (rank + 1)) + static_cast<float>(i % 37);
}

/// Element `i` of the result of `rank`, by the definition; -1 where it has none.
float expected(Kind kind, int rank, std::size_t i, std::size_t count) {
  const std::size_t own = static_cast<std::size_t>(rank) * count;
  const int from = count > 0 ? static_cast<int>(i / count) : 0;
  const auto sum = [](std::size_t at) {
    float total = 0;
    for (int r = 0; r < kExecutorRanks; ++r) total += element(r, at);
    return total;
  };
  switch (kind) {
    case Kind::kAllReduce:
      return sum(i);
    case Kind::kReduce:
      return rank == kRoot ? sum(i) : -1;
    case Kind::kReduceScatter:
      return sum(own + i);
    case Kind::kBroadcast:
      return element(kRoot, i);
    case Kind::kScatter:
      return element(kRoot, own + i);
    case Kind::kGather:
      return rank == kRoot ? element(from, i % count) : -1;
    case Kind::kAllGather:
      return element(from, i % count);
    case Kind::kAllToAll:
      return element(from, own + i % count);
    default:
      return -1;
  }
}

/// One operation of every rank, announced by all, with memory of its own.
struct Announced {
  Announced(OneBlock& block, Kind kind, std::size_t count, std::uint64_t sequence)
      : kind(kind), count(count) {
    const std::size_t parts_in = for_each_rank(kind) ? kExecutorRanks : 1;
    const std::size_t parts_out = result_bytes(kind, 1, kExecutorRanks);
    for (int r = 0; r < kExecutorRanks; ++r) {
      std::vector<float>& in = inputs.emplace_back(count * parts_in);
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = element(r, i);
      outputs.emplace_back(count * parts_out, -1.0f);
    }
    for (int r = 0; r < kExecutorRanks; ++r) {
      block.publish(r, sequence,
                    {.kind = kind,
                     .type = ElementType::kF32,
                     .buffer = {inputs[r].data(), outputs[r].data(), count},
                     .peer = has_root(kind) ? kRoot : -1});
    }
  }
  void check() const {
    for (int r = 0; r < kExecutorRanks; ++r) {
      for (std::size_t i = 0; i < outputs[r].size(); ++i) {
        ASSERT_EQ(outputs[r][i], expected(kind, r, i, count))
            << name(kind) << " of " << count << ", rank " << r << ", element " << i;
      }
    }
  }

  Kind kind;
  std::size_t count;
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs;
};

TEST(InlineExecutor, EveryKindEqualsItsDefinition) {
  for (const Kind kind : kKinds) {
    OneBlock block(kExecutorRanks);
    // Payloads inside the descriptor and beside it.
    constexpr std::size_t kCounts[] = {1, 7, 80};
    for (std::uint64_t s = 1; s <= 3; ++s) {
      const std::size_t count = kCounts[s - 1];
      const Announced all(block, kind, count, s);
      for (int r = kExecutorRanks - 1; r >= 0; --r) {
        ASSERT_TRUE(block.own(r, s).small);
        InlineExecutor(block.block(), r, kExecutorRanks).run(s, block.own(r, s));
      }
      all.check();
    }
  }
}

TEST(DirectExecutor, EveryKindEqualsItsDefinition) {
  for (const Kind kind : kKinds) {
    OneBlock block(kExecutorRanks);
    const Announced all(block, kind, 5003, 1);
    for (int r = 0; r < kExecutorRanks; ++r) {
      DirectExecutor executor(block.block(), block.worlds[r]->memory(), r, kExecutorRanks);
      EXPECT_EQ(executor.run(1, block.own(r, 1), WorkLimit::kAll), Outcome::kDone);
    }
    all.check();
  }
}

// Chunk by chunk, with other ranks in between, the result is the same.
TEST(DirectExecutor, LeavesALargeOperationAfterEveryChunk) {
  for (const Kind kind : kKinds) {
    OneBlock block(kExecutorRanks);
    const Announced all(block, kind, 1'200'007, 1);
    std::vector<DirectExecutor> executors;
    std::vector<int> calls(kExecutorRanks);
    for (int r = 0; r < kExecutorRanks; ++r)
      executors.emplace_back(block.block(), block.worlds[r]->memory(), r, kExecutorRanks);
    for (int open = kExecutorRanks; open > 0;) {
      open = 0;
      for (int r = 0; r < kExecutorRanks; ++r) {
        PendingOperation& own = block.own(r, 1);
        if (own.executed) continue;
        ++calls[r];
        own.executed = executors[r].run(1, own, WorkLimit::kOneChunk) == Outcome::kDone;
        if (!own.executed) ++open;
      }
    }
    all.check();
    for (int r = 0; r < kExecutorRanks; ++r) {
      const bool has_result = kind != Kind::kGather || r == kRoot;
      EXPECT_GT(calls[r], has_result ? 2 : 0) << name(kind);
    }
  }
}

/// Lets the ranks act in turn until all are done.
void run_in_turns(OneBlock& block, std::vector<StagedExecutor>& executors, std::uint64_t sequence,
                  WorkLimit limit) {
  std::vector<bool> done(kExecutorRanks);
  for (int turn = 0; turn < 10'000; ++turn) {
    const int r = (turn * 2 + turn / 7) % kExecutorRanks;
    if (done[r]) continue;
    done[r] = executors[r].run(sequence, block.own(r, sequence), limit) == Outcome::kDone;
  }
  for (int r = 0; r < kExecutorRanks; ++r) ASSERT_TRUE(done[r]) << "rank " << r;
}

std::vector<StagedExecutor> staged_executors(const OneBlock& block) {
  std::vector<StagedExecutor> executors;
  for (int r = 0; r < kExecutorRanks; ++r) executors.emplace_back(block.block(), r, kExecutorRanks);
  return executors;
}

// Several operations after each other, of one chunk and of several: the halves of the staging
// memory are used in turn across operations.
TEST(StagedExecutor, EveryKindEqualsItsDefinition) {
  OneBlock block(kExecutorRanks);
  std::vector<StagedExecutor> executors = staged_executors(block);
  std::uint64_t sequence = 0;
  for (const WorkLimit limit : {WorkLimit::kAll, WorkLimit::kOneChunk}) {
    for (const Kind kind : kKinds) {
      for (const std::size_t count : {301u, 200'003u}) {
        const Announced all(block, kind, count, ++sequence);
        run_in_turns(block, executors, sequence, limit);
        all.check();
      }
    }
  }
}

// A rank alone offers one chunk and waits; it offers the second only after it has read the first of
// every peer.
TEST(StagedExecutor, NoRankIsMoreThanOneChunkAhead) {
  OneBlock block(kExecutorRanks);
  std::vector<StagedExecutor> executors = staged_executors(block);
  const Announced all(block, Kind::kAllReduce, 200'003, 1);
  const auto chunks = [&](int r) { return block.block().line(r).chunks.load(); };
  const auto run = [&](int r) { return executors[r].run(1, block.own(r, 1), WorkLimit::kAll); };
  EXPECT_EQ(run(0), Outcome::kBlocked);
  EXPECT_EQ(run(0), Outcome::kBlocked);
  EXPECT_EQ(run(1), Outcome::kBlocked);
  EXPECT_EQ(chunks(0), 1u);
  EXPECT_EQ(chunks(1), 1u);
  EXPECT_EQ(run(2), Outcome::kBlocked);
  EXPECT_EQ(chunks(2), 2u) << "it has read the first chunk of all";
  run_in_turns(block, executors, 1, WorkLimit::kAll);
  all.check();
}

TEST(StagedExecutor, ACounterThatCannotBeIsAnError) {
  OneBlock block(kExecutorRanks);
  std::vector<StagedExecutor> executors = staged_executors(block);
  const Announced all(block, Kind::kAllReduce, 200'003, 1);
  block.block().line(0).chunks.store(1);
  block.block().line(1).chunks.store(3);
  try {
    executors[0].run(1, block.own(0, 1), WorkLimit::kAll);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(error.sequence(), 1u);
  }
}

// What only this rank can see must be staged, so its first chunk need not wait for the others.
TEST(StagedExecutor, OffersTheFirstChunkEarlyOnce) {
  OneBlock block(kExecutorRanks);
  std::vector<StagedExecutor> executors = staged_executors(block);
  std::vector<float> memory(4000);
  // Rank 1's result would overwrite its input, which lies where another rank's part belongs.
  const Operation overlapping{.kind = Kind::kAllGather,
                              .type = ElementType::kF32,
                              .buffer = {memory.data(), memory.data(), 1000}};
  const Operation visible{.kind = Kind::kAllReduce,
                          .type = ElementType::kF32,
                          .buffer = {memory.data(), memory.data(), 1000}};
  const auto chunks = [&](int r) { return block.block().line(r).chunks.load(); };
  PendingOperation& p = block.publish(1, 1, overlapping);
  executors[1].offer_early(1, p);
  executors[1].offer_early(1, p);
  EXPECT_EQ(chunks(1), 1u);
  executors[2].offer_early(1, block.publish(2, 1, visible));
  EXPECT_EQ(chunks(2), 0u) << "whether this one is staged is not known yet";
}

}  // namespace
}  // namespace shoal::collective::shared_memory_executors_test
