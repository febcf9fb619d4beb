// Counts beyond 2^31 and bytes beyond 2^32, without so much memory. Tables and programs must equal
// those of a small count with every range so many times larger; code that handles ranges, headers
// and messages is tested at the far end of them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/direct.h"
#include "shoal/collective/hierarchy/hierarchical_program.h"
#include "shoal/collective/shared_memory/contribution.h"
#include "shoal/collective/tcp/tcp_call.h"
#include "shoal/collective/work_vector.h"
#include "shoal/wire/chunk_header.h"

namespace shoal::collective::large_counts_test {
namespace {

constexpr std::size_t kUnit =
    20160;  // any number of parts up to ten divides it, and parts of parts
constexpr std::size_t kTimes = std::size_t{1} << 20;
constexpr std::size_t kFar = (std::size_t{1} << 33) + 5;

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast,
                           Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                           Kind::kGather,    Kind::kScatter};

TEST(LargeCounts, PartsAreWholeAndEven) {
  for (const std::size_t count :
       {kFar, (std::size_t{1} << 31) - 1, std::size_t{1} << 32, (std::size_t{1} << 40) + 3}) {
    for (int parts = 1; parts <= 64; ++parts) {
      std::size_t at = 0;
      for (int i = 0; i < parts; ++i) {
        const Range part = part_of(count, parts, i);
        ASSERT_EQ(part.begin, at) << count << " in " << parts;
        ASSERT_TRUE(part.size() == count / parts || part.size() == count / parts + 1);
        at = part.end;
      }
      ASSERT_EQ(at, count);
    }
  }
}

TEST(LargeCounts, TablesGrowWithTheCount) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<int> hosts(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) hosts[static_cast<std::size_t>(rank)] = rank / 2;
    for (const Kind kind : kKinds) {
      for (const Algorithm algorithm : algorithms_for(kind)) {
        StepTable expected = make_table(algorithm, kind, kUnit, ranks - 1, hosts);
        for (auto& steps : expected) {
          for (Step& step : steps)
            step.range = {step.range.begin * kTimes, step.range.end * kTimes};
        }
        EXPECT_EQ(make_table(algorithm, kind, kUnit * kTimes, ranks - 1, hosts), expected)
            << name(algorithm) << " " << name(kind) << " of " << ranks;
      }
    }
  }
}

TEST(LargeCounts, ExchangesOfAnySizesKnowTheirPlaces) {
  const std::vector<std::size_t> send{kFar, 3, 2 * kFar};
  const std::vector<std::size_t> receive{kFar, kFar + 1, 7};
  const auto steps = exchange_steps(0, send, receive);
  const std::size_t sent = 3 * kFar + 3;
  EXPECT_EQ(steps, (std::vector<Step>{
                       {Action::kSend, 1, {kFar, kFar + 3}},
                       {Action::kSend, 2, {kFar + 3, sent}},
                       {Action::kReceiveCopy, 2, {sent + 2 * kFar + 1, sent + 2 * kFar + 8}},
                       {Action::kReceiveCopy, 1, {sent + kFar, sent + 2 * kFar + 1}}}));
}

TEST(LargeCounts, TheChoiceIsMadeForAnySize) {
  const Choice choose({0, 0, 1, 1}, {});
  for (const Kind kind : kKinds) {
    const auto known = algorithms_for(kind);
    EXPECT_NE(std::find(known.begin(), known.end(), choose(kind, 8 * kFar)), known.end())
        << name(kind);
  }
}

// Two calls whose counts agree in 32 bits are two calls.
TEST(LargeCounts, CallsTellThemApart) {
  const auto call = [](std::size_t count) {
    return TcpCall::of(
        {.kind = Kind::kAllReduce, .type = ElementType::kU8, .buffer = {nullptr, nullptr, count}},
        Algorithm::kRing);
  };
  std::byte bytes[TcpCall::kBytes];
  call(kFar).write(bytes);
  EXPECT_EQ(TcpCall::read(bytes), call(kFar));
  EXPECT_NE(TcpCall::read(bytes), call(5));
  EXPECT_EQ(TcpCall::read(bytes).text(), "all_reduce by sum of 8589934597 x u8 (ring)");
}

/// An address from which nothing is read and to which nothing is written.
std::byte* address(std::uintptr_t at) {
  return reinterpret_cast<std::byte*>(at);  // NOLINT: for arithmetic alone
}

TEST(LargeCounts, WorkVectorsFindTheFarEnd) {
  std::byte* in = address(std::uintptr_t{1} << 44);
  std::byte* out = address(std::uintptr_t{1} << 45);
  const auto lies_at = [](const Operation& operation, int rank, int ranks, std::size_t begin) {
    return WorkVector(operation, rank, ranks, false).at({begin, begin + 1});
  };
  const auto operation = [](Kind kind, const std::byte* input, std::byte* output) {
    return Operation{
        .kind = kind, .type = ElementType::kF64, .buffer = {input, output, kFar}, .peer = 0};
  };
  // In place, so that nothing is copied.
  EXPECT_EQ(lies_at(operation(Kind::kAllReduce, out, out), 1, 3, kFar - 1), out + 8 * (kFar - 1));
  EXPECT_EQ(lies_at(operation(Kind::kAllGather, out + 8 * kFar, out), 1, 3, 3 * kFar - 1),
            out + 8 * (3 * kFar - 1));
  EXPECT_EQ(lies_at(operation(Kind::kReduceScatter, in, in + 16 * kFar), 2, 3, 2 * kFar + 1),
            in + 8 * (2 * kFar + 1));
  EXPECT_EQ(lies_at(operation(Kind::kScatter, nullptr, out), 2, 3, 3 * kFar - 1),
            out + 8 * (kFar - 1));
  EXPECT_EQ(lies_at(operation(Kind::kSend, in, nullptr), 0, 2, kFar - 1), in + 8 * (kFar - 1));
}

/// A program with every count, and every distance from the buffers' beginnings, so many times as
/// large.
struct Place {
  int buffer;
  std::size_t distance;
  bool operator==(const Place&) const = default;
};
using Flow = std::vector<std::tuple<Stage, Kind, ElementType, int, std::size_t, Place, Place>>;

Flow flow_of(const HierarchicalProgram& program, const std::vector<std::byte*>& buffers,
             std::size_t times) {
  const auto place = [&](const void* p) {
    for (int i = static_cast<int>(buffers.size()) - 1; i >= 0; --i) {
      if (p && p >= buffers[static_cast<std::size_t>(i)]) {
        return Place{i, static_cast<std::size_t>(static_cast<const std::byte*>(p) -
                                                 buffers[static_cast<std::size_t>(i)]) *
                            times};
      }
    }
    return Place{-1, 0};
  };
  Flow flow;
  for (const Phase& phase : program.phases) {
    for (const Conversion& c : phase.before) {
      flow.emplace_back(phase.stage, Kind::kBarrier, c.type, c.widens, c.count * times,
                        place(c.from), place(c.to));
    }
    for (const Operation& o : phase.operations) {
      flow.emplace_back(phase.stage, o.kind, o.type, o.peer, o.buffer.count * times,
                        place(o.buffer.input), place(o.buffer.output));
    }
  }
  return flow;
}

TEST(LargeCounts, HierarchicalProgramsGrowWithTheCount) {
  const std::vector<std::byte*> buffers{address(std::uintptr_t{1} << 44),
                                        address(std::uintptr_t{1} << 45),
                                        address(std::uintptr_t{1} << 46)};
  const std::vector<int> hosts{0, 0, 1, 1};
  for (int rank = 0; rank < 4; ++rank) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16}) {
      for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                              Kind::kReduceScatter}) {
        const HostLayout layout(hosts, rank);
        const auto program = [&](std::size_t count) {
          // An all-gather in place, so that nothing is copied.
          const std::size_t own =
              kind == Kind::kAllGather ? static_cast<std::size_t>(rank) * count * size_of(type) : 0;
          const std::byte* input = kind == Kind::kAllGather ? buffers[1] + own : buffers[0];
          return plan_hierarchical(
              {.kind = kind, .type = type, .buffer = {input, buffers[1], count}, .peer = 3}, layout,
              false, buffers[2]);
        };
        EXPECT_EQ(flow_of(program(kUnit * kTimes), buffers, 1),
                  flow_of(program(kUnit), buffers, kTimes))
            << name(kind) << " of " << name(type);
      }
    }
  }
}

/// Zeros that take memory only where they are touched.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Error(ErrorKind::kResource, "mmap", fmt::format("{} bytes", bytes));
    data_ = static_cast<std::byte*>(p);
  }
  ~Sparse() { munmap(data_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  std::byte* at(std::size_t offset) const { return data_ + offset; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

// The last chunk of an all-reduce of 2^33 bytes, as staging passes it.
TEST(LargeCounts, ContributionsReachTheFarEnd) {
  const Sparse in(kFar);
  const Sparse out(kFar);
  std::byte offered[2][16];
  std::byte* others[2] = {offered[0], offered[1]};
  for (std::size_t i = 0; i < 16; ++i) {
    *in.at(kFar - 16 + i) = static_cast<std::byte>(i),
                       offered[1][i] = static_cast<std::byte>(10 * i);
  }
  const Operation o{
      .kind = Kind::kAllReduce, .type = ElementType::kU8, .buffer = {in.at(0), out.at(0), kFar}};
  const RankCall call{o, {&o.buffer, 1}, {}, {}, 0, 2};
  write_contribution(call, kFar - 16, kFar, offered[0]);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(offered[0][i], static_cast<std::byte>(i));
  copy_own_part(call, kFar - 16, kFar);
  combine_contributions(call, kFar - 16, kFar, others);
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_EQ(*out.at(kFar - 16 + i), static_cast<std::byte>(11 * i)) << i;
}

// Rank 1 of 2: the part that it receives from rank 0 lies before the part that it keeps.
TEST(LargeCounts, ExchangedPartsReachTheFarEnd) {
  const Sparse in(kFar + 16);
  const Sparse out(16 + kFar);
  std::byte given[2][16] = {};
  const std::byte* offered[2] = {given[0], given[1]};
  for (std::size_t i = 0; i < 16; ++i)
    *in.at(i) = static_cast<std::byte>(i + 1), *in.at(kFar + i) = static_cast<std::byte>(i + 101);
  const std::vector<std::size_t> send{16, kFar};
  const std::vector<std::size_t> receive{16, kFar};
  const Operation o{
      .kind = Kind::kAllToAll, .type = ElementType::kU8, .buffer = {in.at(0), out.at(0), 0}};
  const RankCall call{o, {&o.buffer, 1}, send, receive, 1, 2};
  std::byte to[32] = {};
  write_contribution(call, 0, 16, to);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(to[i], static_cast<std::byte>(i + 1));
  copy_own_part(call, kFar - 16, kFar);
  combine_contributions(call, kFar - 16, kFar, offered);
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_EQ(*out.at(kFar + i), static_cast<std::byte>(i + 101));
}

/// Records where bytes belong, and drops them.
class Noted final : public wire::ChunkSink {
 public:
  std::byte* place(wire::Stream, std::uint64_t total, std::uint64_t offset,
                   std::size_t bytes) override {
    in_order = in_order && offset == next && offset + bytes <= total;
    next = offset + bytes;
    return memory_.data();
  }
  void arrived(wire::Stream, wire::ReceivedChunk piece, std::size_t) override {
    ++chunks;
    complete = complete || (piece.total() > 0 && next == piece.total());
  }
  std::uint64_t next = 0, chunks = 0;
  bool in_order = true, complete = false;

 private:
  wire::Bytes memory_ = wire::Bytes(wire::Assembler::kChunkBytes);
};

// The bytes themselves are not there: the assembler is told that they are.
TEST(LargeCounts, MessagesArriveChunkByChunkToTheEnd) {
  wire::Assembler assembler;
  Noted noted;
  for (std::uint64_t at = 0; at < kFar; at += wire::Assembler::kChunkBytes) {
    const auto length = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(wire::Assembler::kChunkBytes, kFar - at));
    const wire::ChunkHeader header{.length = length, .stream = {1, 7}, .total = kFar};
    const auto to = assembler.wanted();
    ASSERT_EQ(to.size(), sizeof header);
    std::memcpy(to.data(), &header, sizeof header);
    assembler.took(sizeof header, noted);
    ASSERT_EQ(assembler.wanted().size(), length);
    assembler.took(length, noted);
  }
  EXPECT_TRUE(noted.in_order);
  EXPECT_TRUE(noted.complete);
  EXPECT_EQ(noted.next, kFar);
  EXPECT_EQ(noted.chunks, (kFar + wire::Assembler::kChunkBytes - 1) / wire::Assembler::kChunkBytes);
}

}  // namespace
}  // namespace shoal::collective::large_counts_test
