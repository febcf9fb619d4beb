// Programs of hierarchical operations as data: every access stays within the caller's buffers and
// the scratch memory, which is not larger than it has to be, and every operation has what the call
// asks for.
#include "shoal/collective/hierarchy/hierarchical_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/shared_memory/contribution.h"

namespace shoal::collective::hierarchical_program_test {
namespace {

/// An address that is never used.
std::byte* address(std::uintptr_t at) {
  return reinterpret_cast<std::byte*>(at);  // NOLINT: for arithmetic alone
}

std::byte* const kInput = address(std::uintptr_t{1} << 44);
std::byte* const kOutput = address(std::uintptr_t{1} << 45);
std::byte* const kScratch = address(std::uintptr_t{1} << 46);

/// How far the accesses of a program reach into each buffer.
struct Reach {
  std::size_t input = 0;
  std::size_t output = 0;
  std::size_t scratch = 0;

  void touch(const void* begin, std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(begin);
    if (!at || bytes == 0) return;
    std::size_t& reach = at >= kScratch ? scratch : at >= kOutput ? output : input;
    const std::byte* base = at >= kScratch ? kScratch : at >= kOutput ? kOutput : kInput;
    EXPECT_GE(at, base);
    reach = std::max(reach, static_cast<std::size_t>(at - base) + bytes);
  }
  void touch(const Conversion& c) {
    const std::size_t narrow = c.count * size_of(c.type);
    const std::size_t wide = c.count * sizeof(float);
    touch(c.from, c.widens ? narrow : wide);
    touch(c.to, c.widens ? wide : narrow);
  }
};

Reach reach_of(const HierarchicalProgram& program, const HostLayout& layout) {
  Reach reach;
  for (const Phase& phase : program.phases) {
    const std::size_t ranks = phase.stage == Stage::kAcross ? layout.members.size()
                              : phase.stage == Stage::kFlat
                                  ? layout.host_of.size()
                                  : static_cast<std::size_t>(layout.local_size());
    for (const Conversion& conversion : phase.before) reach.touch(conversion);
    reach.touch(phase.copy.input, phase.copy.count);
    reach.touch(phase.copy.output, phase.copy.count);
    for (const Operation& o : phase.operations) {
      const std::size_t bytes = o.buffer.count * size_of(o.type);
      reach.touch(o.buffer.input, bytes * (for_each_rank(o.kind) ? ranks : 1));
      reach.touch(o.buffer.output, result_bytes(o.kind, bytes, static_cast<int>(ranks)));
    }
  }
  for (const Conversion& conversion : program.after) reach.touch(conversion);
  return reach;
}

const std::vector<std::vector<int>> kHostArrangements = {
    {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1}, {7, 3, 3, 3}};

TEST(HierarchicalProgram, StaysWithinItsMemoryAndUsesAllOfIt) {
  for (const std::vector<int>& hosts : kHostArrangements) {
    const std::size_t ranks = hosts.size();
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                            Kind::kReduceScatter}) {
      for (const ElementType type : {ElementType::kBF16, ElementType::kF8E4M3, ElementType::kF32,
                                     ElementType::kF64, ElementType::kI64}) {
        for (const std::size_t count : {1u, 6u, 17u, 12'000u, 12'001u}) {
          bool all_used = false;
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            const HostLayout layout(hosts, static_cast<int>(rank));
            const std::size_t bytes = count * size_of(type);
            const int root = static_cast<int>(ranks) - 1;
            // An all-gather in place, so that the call itself copies nothing.
            const bool gathers = kind == Kind::kAllGather;
            const Operation o{.kind = kind,
                              .type = type,
                              .buffer = {gathers ? kOutput + rank * bytes : kInput, kOutput, count},
                              .peer = root};
            const std::size_t scratch = hierarchical_scratch_bytes(o, layout, false);
            const Reach reach = reach_of(plan_hierarchical(o, layout, false, kScratch), layout);
            const auto what = [&] {
              return std::string(name(kind)) + " of " + std::to_string(count) + " x " + name(type) +
                     ", rank " + std::to_string(rank) + " of " + std::to_string(ranks);
            };
            EXPECT_LE(reach.input, bytes * (kind == Kind::kReduceScatter ? ranks : 1)) << what();
            EXPECT_LE(reach.output, bytes * (gathers ? ranks : 1)) << what();
            if (kind == Kind::kReduce && static_cast<int>(rank) != root) {
              EXPECT_EQ(reach.output, 0u) << what();
            }
            EXPECT_LE(reach.scratch, scratch) << what();
            all_used = all_used || reach.scratch == scratch;
            if (kind != Kind::kReduce) {
              EXPECT_EQ(reach.scratch, scratch) << what();
            }
          }
          EXPECT_TRUE(all_used) << name(kind) << " of " << name(type);
        }
      }
    }
  }
}

TEST(HierarchicalProgram, HandsOnWhatTheCallAsksFor) {
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                          Kind::kReduceScatter, Kind::kBarrier}) {
    for (int rank = 0; rank < 4; ++rank) {
      const HostLayout layout(std::vector<int>{0, 0, 1, 1}, rank);
      const std::size_t own = static_cast<std::size_t>(rank) * 400;
      const Operation o{.kind = kind,
                        .type = ElementType::kF32,
                        .reduction = Reduction::kAverage,
                        .buffer = {kind == Kind::kAllGather ? kOutput + own : kInput, kOutput, 100},
                        .peer = 2,
                        .tag = 77,
                        .priority = 5,
                        .timeout = std::chrono::seconds(3)};
      int operations = 0;
      for (const Phase& phase : plan_hierarchical(o, layout, false, kScratch).phases) {
        for (const Operation& one : phase.operations) {
          ++operations;
          EXPECT_EQ(one.tag, 77u);
          EXPECT_EQ(one.priority, 5);
          EXPECT_EQ(one.timeout, std::chrono::seconds(3));
          if (!reduces(one.kind)) continue;
          const bool first = phase.stage == Stage::kLocalIn;
          EXPECT_EQ(one.reduction, first ? Reduction::kPremulSum : Reduction::kSum);
          EXPECT_EQ(one.scale, first ? 0.25 : 1);
        }
      }
      EXPECT_GT(operations, 0) << name(kind);
    }
  }
}

std::vector<Stage> stages(const Operation& o, const HostLayout& layout, bool in_rank_order) {
  std::vector<Stage> result;
  for (const Phase& phase : plan_hierarchical(o, layout, in_rank_order, kScratch).phases)
    result.push_back(phase.stage);
  return result;
}

TEST(HierarchicalProgram, ABarrierCrossesOnceANode) {
  const std::vector<int> hosts{0, 0, 1, 1};
  using S = std::vector<Stage>;
  EXPECT_EQ(stages({.kind = Kind::kBarrier}, HostLayout(hosts, 2), false),
            (S{Stage::kLocalIn, Stage::kAcross, Stage::kLocalOut}));
  EXPECT_EQ(stages({.kind = Kind::kBarrier}, HostLayout(hosts, 3), true),
            (S{Stage::kLocalIn, Stage::kLocalOut}));
}

TEST(HierarchicalProgram, IsFlatWhereNothingIsGained) {
  const HostLayout blocks(std::vector<int>{0, 0, 1, 1}, 0);
  const HostLayout mixed(std::vector<int>{0, 1, 0, 1}, 0);
  const auto flat = [](const Operation& o, const HostLayout& layout, bool in_rank_order) {
    const auto all = stages(o, layout, in_rank_order);
    if (all != std::vector<Stage>{Stage::kFlat}) return false;
    EXPECT_EQ(hierarchical_scratch_bytes(o, layout, in_rank_order), 0u);
    return true;
  };
  const auto of = [](Kind kind, std::size_t count) {
    return Operation{
        .kind = kind, .type = ElementType::kBF16, .buffer = {kOutput, kOutput, count}, .peer = 0};
  };
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
    EXPECT_TRUE(flat(of(kind, 0), blocks, false)) << name(kind);
    EXPECT_TRUE(flat(of(kind, 5), blocks, true)) << name(kind);
    EXPECT_FALSE(flat(of(kind, 5), blocks, false)) << name(kind);
    EXPECT_EQ(flat(of(kind, 5), mixed, false), kind == Kind::kReduceScatter) << name(kind);
  }
  EXPECT_TRUE(flat(of(Kind::kAllGather, 5), mixed, false));
  EXPECT_FALSE(flat(of(Kind::kAllGather, 5), blocks, true)) << "nothing is added";
  EXPECT_FALSE(flat(of(Kind::kBroadcast, 5), mixed, true));
  EXPECT_TRUE(flat(of(Kind::kGather, 5), blocks, false));
}

// Messages between the ranks of a node, each with its part of the buffers.
TEST(MessagesOnHost, NameLocalRanksAndTheirParts) {
  const HostLayout layout(std::vector<int>{0, 1, 0, 0}, 2);  // ranks 0, 2 and 3; this is local 1
  using Message = std::tuple<Kind, int, const void*, void*, std::size_t>;
  const auto messages = [&](const Operation& o) {
    std::vector<Message> result;
    for (const Operation& m : messages_on_host(o, layout)) {
      EXPECT_EQ(m.type, ElementType::kF32);
      EXPECT_EQ(m.priority, 5);
      EXPECT_EQ(m.timeout, std::chrono::seconds(3));
      result.emplace_back(m.kind, m.peer, m.buffer.input, m.buffer.output, m.buffer.count);
    }
    return result;
  };
  Operation o{.kind = Kind::kAllToAll,
              .type = ElementType::kF32,
              .buffer = {kInput, kOutput, 10},
              .priority = 5,
              .timeout = std::chrono::seconds(3)};
  EXPECT_EQ(messages(o), (std::vector<Message>{
                             {Kind::kSend, 2, kInput + 120, nullptr, 10},
                             {Kind::kReceive, 2, nullptr, kOutput + 120, 10},
                             {Kind::kSend, 0, kInput, nullptr, 10},
                             {Kind::kReceive, 0, nullptr, kOutput, 10},
                         }));
  const std::vector<std::size_t> send{1, 2, 4, 0};
  const std::vector<std::size_t> receive{3, 5, 4, 6};
  o.send_counts = send;
  o.receive_counts = receive;
  o.buffer.count = 0;
  EXPECT_EQ(messages(o), (std::vector<Message>{
                             {Kind::kReceive, 2, nullptr, kOutput + 4 * 12, 6},
                             {Kind::kSend, 0, kInput, nullptr, 1},
                             {Kind::kReceive, 0, nullptr, kOutput, 3},
                         }));
  o = {.kind = Kind::kGather,
       .type = ElementType::kF32,
       .buffer = {kInput, kOutput, 10},
       .peer = 3,
       .priority = 5,
       .timeout = std::chrono::seconds(3)};
  EXPECT_EQ(messages(o), (std::vector<Message>{{Kind::kSend, 2, kInput, nullptr, 10}}));
  o.kind = Kind::kScatter;
  EXPECT_EQ(messages(o), (std::vector<Message>{{Kind::kReceive, 2, nullptr, kOutput, 10}}));
  o.peer = 2;
  EXPECT_EQ(messages(o), (std::vector<Message>{{Kind::kSend, 2, kInput + 120, nullptr, 10},
                                               {Kind::kSend, 0, kInput, nullptr, 10}}));
  o.kind = Kind::kGather;
  EXPECT_EQ(messages(o), (std::vector<Message>{{Kind::kReceive, 2, nullptr, kOutput + 120, 10},
                                               {Kind::kReceive, 0, nullptr, kOutput, 10}}));
  o.peer = 1;
  EXPECT_TRUE(messages(o).empty()) << "its root is on another node";
}

TEST(HostLayout, ARankThatIsNoneIsRefused) {
  const std::vector<int> hosts{0, 0};
  for (const int rank : {-1, 2}) EXPECT_THROW(HostLayout(hosts, rank), Error);
  const HostLayout layout(std::vector<int>{3, 3, 1, 1, 1}, 4);
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_EQ(layout.local_size(), 3);
  EXPECT_EQ(layout.host_of, (std::vector<int>{0, 0, 1, 1, 1}));
  EXPECT_EQ(layout.local_of, (std::vector<int>{0, 1, 0, 1, 2}));
  EXPECT_FALSE(HostLayout(std::vector<int>{0, 1, 1, 0}, 0).in_blocks) << "equal, but not in a row";
}

}  // namespace
}  // namespace shoal::collective::hierarchical_program_test
