// All-reduces whose values travel in a codec, against a plain loop over the ranks that encodes with
// plain_codec.h: over TCP, shared memory and both, of 1 to 9 ranks; what they send, to the byte;
// their residuals, also after an abort; and calls that do not agree.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "shoal/collective/codec/error_feedback.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/assembler.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/host_ranks.h"
#include "tests/collective/network_ranks.h"
#include "tests/collective/on_hosts.h"
#include "tests/collective/plain_codec.h"
#include "tests/error_of.h"

namespace shoal::collective::coded_all_reduce_test {
namespace {

using Floats = std::vector<float>;

/// The first value of each rank's part, and behind the last the count: blocks are dealt out as
/// evenly as possible, the larger shares first.
std::vector<std::size_t> cuts(std::size_t block, std::size_t count, int ranks) {
  const std::size_t blocks = (count + block - 1) / block;
  const auto p = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> result{0};
  for (std::size_t r = 0; r < p; ++r) {
    const std::size_t own = blocks / p + (r < blocks % p ? 1 : 0);
    result.push_back(std::min(result.back() + own * block, count));
  }
  return result;
}

/// The plain loop: what every rank must end with, and the residuals that each rank keeps.
struct Plain {
  std::vector<Floats> contribution;  ///< residuals, by rank; empty: none
  std::vector<Floats> sum;

  Floats all_reduce(const Coding& coding, const std::vector<Floats>& inputs) {
    const int ranks = static_cast<int>(inputs.size());
    const std::size_t count = inputs[0].size();
    const bool feedback = !contribution.empty();
    std::vector<Floats> contributed;
    for (int r = 0; r < ranks; ++r) {
      Coding own = coding;
      own.key = coding.key.child("contribution").child(static_cast<std::uint64_t>(r));
      PlainCodec codec(own);
      Floats next;
      contributed.push_back(codec.decode(
          codec.encode(0, inputs[r], feedback ? contribution[r] : Floats(), next), count));
      if (feedback) contribution[r] = next;
    }
    Coding last = coding;
    last.key = coding.key.child("sum");
    PlainCodec codec(last);
    Floats result;
    const auto cut = cuts(coding.block, count, ranks);
    for (int r = 0; r < ranks; ++r) {
      Floats part;
      for (std::size_t i = cut[r]; i < cut[r + 1]; ++i) {
        float total = contributed[0][i];
        for (int s = 1; s < ranks; ++s) total += contributed[s][i];
        part.push_back(total);
      }
      Floats next;
      const Floats got =
          codec.decode(codec.encode(cut[r], part, feedback ? sum[r] : Floats(), next), part.size());
      if (feedback) sum[r] = next;
      result.insert(result.end(), got.begin(), got.end());
    }
    return result;
  }
};

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// One call: its coding, what each rank has, and what comes out.
struct Case {
  Coding coding;
  std::vector<Floats> inputs;
  Floats expected;
};

std::vector<Floats> inputs_of(int ranks, std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Floats> inputs(static_cast<std::size_t>(ranks), Floats(count));
  for (Floats& input : inputs)
    for (float& value : input) value = normal(random) * 0.01f;
  return inputs;
}

/// All codecs; fewer blocks than ranks and more, whole blocks and others, values that are negative
/// everywhere, an outlier, an infinity on one rank, sums that depend on their order.
std::vector<Case> cases_of(int ranks) {
  std::vector<Case> cases;
  const auto p = static_cast<std::size_t>(ranks);
  for (const Codec codec : kCodecs) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{127},
                                    std::size_t{128}, std::size_t{129}, 64 * p * 3 + 17}) {
      Case c{{codec, count > 1 && count != 128, 64, Key(count).child("step")}, {}, {}};
      c.inputs = inputs_of(ranks, count, static_cast<unsigned>(count));
      if (count == 127)
        for (Floats& input : c.inputs)
          for (float& value : input) value = -std::abs(value);
      if (count == 129) c.inputs[p - 1][70] = 1e6f;
      // Two large values that cancel, before a small one: in another order it would be lost.
      if (count == 1 && ranks > 2) {
        c.inputs[0][0] = 0x1p40f;
        c.inputs[1][0] = -0x1p40f;
      }
      if (count == 128) c.inputs[0][3] = std::numeric_limits<float>::infinity();
      c.expected = Plain().all_reduce(c.coding, c.inputs);
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

std::string run(Communicator& c, const Case& what, bool in_place) {
  Floats input = what.inputs[static_cast<std::size_t>(c.rank())];
  const Floats before = input;
  Floats output(input.size(), 5);
  Floats& result = in_place ? input : output;
  c.run({.kind = Kind::kAllReduce,
         .type = ElementType::kF32,
         .buffer = {input.data(), result.data(), input.size()},
         .coding = what.coding},
        soon());
  if (same_bits(result, what.expected) && (in_place || same_bits(input, before))) return {};
  return fmt::format("{} x {}{}: rank {} of {}", what.inputs[0].size(), name(what.coding.codec),
                     in_place ? " in place" : "", c.rank(), c.size());
}

std::string run_all(Communicator& c, const std::vector<Case>& cases) {
  std::string wrong;
  for (const bool in_place : {false, true})
    for (const Case& one : cases) wrong += run(c, one, in_place);
  // Several in flight, with others between them.
  std::vector<Floats> results;
  std::vector<Floats> plain(cases.size(), Floats(3, 1));
  std::vector<Handle> handles;
  for (const Case& one : cases) results.emplace_back(one.expected.size(), 5);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Floats& input = cases[i].inputs[static_cast<std::size_t>(c.rank())];
    handles.push_back(c.start({.kind = Kind::kAllReduce,
                               .type = ElementType::kF32,
                               .buffer = {input.data(), results[i].data(), input.size()},
                               .priority = static_cast<int>(i % 3),
                               .coding = cases[i].coding}));
    handles.push_back(c.start({.kind = Kind::kAllReduce,
                               .type = ElementType::kF32,
                               .buffer = {plain[i].data(), plain[i].data(), 3}}));
  }
  for (const Handle handle : handles) c.wait(handle, soon());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!same_bits(results[i], cases[i].expected)) wrong += fmt::format("case {} in flight; ", i);
    if (plain[i] != Floats(3, static_cast<float>(c.size()))) wrong += "a plain sum; ";
  }
  return wrong;
}

/// Connects the ranks of `body` over loopback, each on a host of its own.
std::vector<std::optional<Error>> on_tcp(int ranks,
                                         const std::function<void(TcpCommunicator&)>& body,
                                         const std::string& algorithms = "") {
  std::vector<int> hosts(static_cast<std::size_t>(ranks));
  std::iota(hosts.begin(), hosts.end(), 0);
  return on_network(ranks, [&](const wire::Endpoint& store, int rank) {
    wire::StoreClient client(store, "key", soon());
    TcpCommunicator c(std::make_shared<wire::TcpTransport>(
                          wire::TcpTransport::Options{.key = "key"}, client, rank, ranks, soon()),
                      {.hosts = hosts, .algorithms = algorithms});
    body(c);
    c.run({.kind = Kind::kBarrier}, soon());
  });
}

/// Collects what ranks on threads find wrong.
class Findings {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ += text;
  }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

TEST(CodedAllReduce, InSharedMemoryHasTheBitsOfThePlainLoop) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const auto cases = cases_of(ranks);
    Findings wrong;
    on_threads(ranks, [&](HostCommunicator& c, int) { wrong.add(run_all(c, cases)); });
    EXPECT_EQ(wrong.text(), "") << ranks << " ranks";
  }
}

TEST(CodedAllReduce, AmongProcessesHasTheBitsOfThePlainLoop) {
  const auto cases = cases_of(3);
  const auto statuses = on_processes(
      3, [&](HostCommunicator& c, wire::Arena&, int) { return run_all(c, cases).empty() ? 0 : 1; });
  EXPECT_THAT(statuses, ::testing::Each(0));
}

TEST(CodedAllReduce, OverTcpHasTheBitsOfThePlainLoop) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const auto cases = cases_of(ranks);
    Findings wrong;
    expect_none(on_tcp(ranks, [&](TcpCommunicator& c) { wrong.add(run_all(c, cases)); }));
    EXPECT_EQ(wrong.text(), "") << ranks << " ranks";
  }
}

TEST(CodedAllReduce, OnHostsWithSeveralRanksHasTheBitsOfThePlainLoop) {
  const auto cases = cases_of(5);
  Findings wrong;
  expect_none(on_hosts({0, 1, 0, 1, 1},
                       [&](HierarchicalCommunicator& c) { wrong.add(run_all(c, cases)); }));
  EXPECT_EQ(wrong.text(), "");
}

/// Bytes of a payload on the wire: the call, chunk headers, and a message of its own for what does
/// not fit beside the call.
std::size_t on_wire(std::size_t payload) {
  constexpr std::size_t kCall = 32;
  constexpr std::size_t kHeader = 32;
  constexpr std::size_t kChunk = 256 << 10;
  if (payload == 0) return 0;
  if (payload <= 64 << 10) return kHeader + kCall + payload;
  return kHeader + kCall + payload + kHeader * ((payload + kChunk - 1) / kChunk);
}

// Each rank sends its contribution to the parts of the others, and the sum of its own part to each:
// as many bytes as the formula of the codec says, and the headers.
TEST(CodedAllReduce, SendsTheBytesOfTheFormula) {
  for (const int ranks : {2, 3, 4}) {
    Findings wrong;
    expect_none(on_tcp(ranks, [&](TcpCommunicator& c) {
      for (const Codec codec : kCodecs) {
        for (const std::size_t count : {std::size_t{100}, std::size_t{300007}}) {
          const Coding coding{codec, true, 128, Key(1)};
          Floats values(count, 0.25f);
          const auto cut = cuts(128, count, ranks);
          const auto bytes_of = [&](int r) {
            const std::size_t n = cut[r + 1] - cut[r];
            const std::map<Codec, std::size_t> bits{{Codec::kBF16, 16}, {Codec::kF8E4M3, 8},
                                                    {Codec::kI8, 8},    {Codec::kI4, 4},
                                                    {Codec::kE3M0, 4},  {Codec::kE2M0, 3}};
            const std::size_t units = codec == Codec::kBF16 ? 0 : 2 * ((n + 127) / 128);
            return units + (n * bits.at(codec) + 7) / 8;
          };
          // Each call announces itself to the successor.
          std::size_t expected = 32 + 32;
          for (int r = 0; r < ranks; ++r) {
            if (r == c.rank()) continue;
            expected += on_wire(bytes_of(r)) + on_wire(bytes_of(c.rank()));
          }
          const auto before = c.bytes_between_hosts();
          c.run({.kind = Kind::kAllReduce,
                 .type = ElementType::kF32,
                 .buffer = {values.data(), values.data(), count},
                 .coding = coding},
                soon());
          const auto sent = c.bytes_between_hosts() - before;
          if (sent != expected) {
            wrong.add(fmt::format("{} x {}: rank {} of {} sent {}, not {}; ", count, name(codec),
                                  c.rank(), ranks, sent, expected));
          }
        }
      }
    }));
    EXPECT_EQ(wrong.text(), "");
  }
}

/// One step with error feedback of a rank.
void step(Communicator& c, ErrorFeedback& residuals, const Coding& coding, const Floats& input,
          Floats& output) {
  const CodedFeedback feedback = residuals.begin(coding, c.size(), c.rank());
  c.run({.kind = Kind::kAllReduce,
         .type = ElementType::kF32,
         .buffer = {input.data(), output.data(), input.size()},
         .coding = coding,
         .feedback = &feedback},
        soon());
}

Coding coding_of_step(int number) {
  return {Codec::kI4, true, 32, Key(5).child(static_cast<std::uint64_t>(number))};
}

// The third step fails on its first attempt, after some ranks have sent all they had. Its second
// attempt, in a new job, must be that of an undisturbed run.
TEST(CodedAllReduce, ResidualsChangeAtTheCommitOnly) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 32 * 7 + 5;
  std::vector<ErrorFeedback> residuals(kRanks, ErrorFeedback(kCount));
  Plain plain{std::vector<Floats>(kRanks, Floats(kCount, 0)), {}};
  for (const std::size_t n : {32 * 3, 32 * 3, 32 + 5}) plain.sum.emplace_back(n, 0.0f);
  Findings wrong;
  const auto steps = [&](Communicator& c, int from, int to) {
    const auto me = static_cast<std::size_t>(c.rank());
    for (int number = from; number < to; ++number) {
      Floats output(kCount);
      step(c, residuals[me], coding_of_step(number),
           inputs_of(kRanks, kCount, static_cast<unsigned>(number))[me], output);
      residuals[me].commit();
      Plain copy;
      Floats expected;
      for (int i = 0; i <= number; ++i) {
        if (i == 0) copy = plain;
        expected =
            copy.all_reduce(coding_of_step(i), inputs_of(kRanks, kCount, static_cast<unsigned>(i)));
      }
      if (!same_bits(output, expected)) wrong.add(fmt::format("step {} on rank {}; ", number, me));
      if (!same_bits(residuals[me].contribution(), copy.contribution[me]) ||
          !same_bits(residuals[me].sum(), copy.sum[me]))
        wrong.add(fmt::format("residuals after step {} on rank {}; ", number, me));
    }
  };
  on_threads(kRanks, [&](HostCommunicator& c, int) { steps(c, 0, 2); });
  const auto errors = on_tcp(kRanks, [&](TcpCommunicator& c) {
    if (c.rank() == 2) {
      // Rank 2 fails when the others have begun, and never contributes.
      c.run({.kind = Kind::kReceive, .buffer = {nullptr, nullptr, 0}, .peer = 0}, soon());
      c.abort(Error(ErrorKind::kNonFinite, "test", "rank 2 gives up"));
      throw Error(ErrorKind::kNonFinite, "test", "rank 2 gives up");
    }
    const auto me = static_cast<std::size_t>(c.rank());
    const ErrorFeedback saved = residuals[me];
    const Floats input = inputs_of(kRanks, kCount, 2)[me];
    Floats output(kCount);
    const CodedFeedback feedback = residuals[me].begin(coding_of_step(2), kRanks, c.rank());
    const Handle handle = c.start({.kind = Kind::kAllReduce,
                                   .type = ElementType::kF32,
                                   .buffer = {input.data(), output.data(), kCount},
                                   .coding = coding_of_step(2),
                                   .feedback = &feedback});
    if (c.rank() == 0) c.run({.kind = Kind::kSend, .peer = 2}, soon());
    const Error error = error_of([&] { c.wait(handle, soon()); });
    if (!same_bits(residuals[me].contribution(), saved.contribution()) ||
        !same_bits(residuals[me].sum(), saved.sum()))
      wrong.add(fmt::format("residuals of rank {} after the abort; ", me));
    throw error;
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kNonFinite) << error->what();
  }
  expect_none(on_tcp(kRanks, [&](TcpCommunicator& c) { steps(c, 2, 4); }));
  EXPECT_EQ(wrong.text(), "");
}

TEST(ErrorFeedback, AnotherDivisionBeginsItsSumsAtZero) {
  ErrorFeedback residuals(100);
  const Coding coding{Codec::kI8, true, 32, Key()};
  const auto fill = [](const CodedFeedback& f, std::size_t own, float value) {
    std::fill_n(f.contribution.next, 100, value);
    std::fill_n(f.sum.next, own, value);
  };
  fill(residuals.begin(coding, 2, 0), 64, 1);
  residuals.commit();
  EXPECT_EQ(residuals.sum(), Floats(64, 1));
  EXPECT_EQ(residuals.begin(coding, 2, 0).sum.residual[63], 1);
  // Three ranks: this one has 64 values again, but another division never keeps residuals. It is
  // not committed, so the old division finds its own again.
  const CodedFeedback other = residuals.begin(coding, 3, 0);
  fill(other, 64, 2);
  EXPECT_EQ(other.sum.residual[0], 0);
  EXPECT_EQ(other.contribution.residual[0], 1) << "contributions are not divided";
  EXPECT_EQ(residuals.begin(coding, 2, 0).sum.residual[0], 1);
  fill(residuals.begin(coding, 3, 0), 64, 2);
  residuals.commit();
  EXPECT_EQ(residuals.sum(), Floats(64, 2));
  EXPECT_EQ(residuals.begin(coding, 2, 0).sum.residual[0], 0);
}

/// The messages of ranks of which the last makes another call.
template <class On>
std::vector<std::string> disagreement(On&& on, const Coding& usual, const Coding& other) {
  std::vector<std::string> texts(3);
  on([&](Communicator& c) {
    Floats values(100, 1);
    texts[static_cast<std::size_t>(c.rank())] =
        error_of([&] {
          c.run({.kind = Kind::kAllReduce,
                 .type = ElementType::kF32,
                 .buffer = {values.data(), values.data(), 100},
                 .coding = c.rank() == 2 ? other : usual},
                soon());
        }).what();
  });
  return texts;
}

TEST(CodedAllReduce, RanksThatDisagreeAreTold) {
  using ::testing::AllOf;
  using ::testing::Each;
  using ::testing::HasSubstr;
  const Coding usual{Codec::kI8, true, 32, Key(0xabc)};
  const Coding another_codec{Codec::kF8E4M3, true, 32, Key(0xabc)};
  const Coding another_block{Codec::kI8, true, 64, Key(0xabc)};
  const Coding another_key{Codec::kI8, true, 32, Key(0xabd)};
  const Coding nearest{Codec::kI8, false, 32, Key(0xabc)};
  const std::string first = "all_reduce by sum of 100 x f32 in i8, blocks of 32, key abc";
  const std::vector<std::pair<Coding, std::string>> others{
      {another_codec, "in f8e4m3, blocks of 32, key abc"},
      {another_block, "in i8, blocks of 64, key abc"},
      {another_key, "in i8, blocks of 32, key abd"},
      {nearest, "in i8 to the nearest, blocks of 32, key abc"},
      {Coding{}, "100 x f32 (direct)"}};
  const auto tcp = [](const std::function<void(Communicator&)>& body) {
    on_tcp(
        3, [&](TcpCommunicator& c) { body(c); }, "all_reduce=direct");
  };
  const auto host = [](const std::function<void(Communicator&)>& body) {
    on_threads(3, [&](HostCommunicator& c, int) { body(c); });
  };
  for (const auto& [other, text] : others) {
    EXPECT_THAT(disagreement(tcp, usual, other),
                Each(AllOf(HasSubstr("ranks call different operations"), HasSubstr(first),
                           HasSubstr(text))));
    const std::string there = other.codec == Codec::kNone ? "100 x f32 by sum" : text;
    EXPECT_THAT(
        disagreement(host, usual, other),
        Each(AllOf(HasSubstr("[all_reduce]"), HasSubstr("ranks call different collectives"),
                   HasSubstr("100 x f32 by sum in i8, blocks of 32, key abc"), HasSubstr(there))));
  }
}

TEST(CodedAllReduce, OtherAlgorithmsRefuseACodec) {
  Findings wrong;
  expect_none(on_tcp(
      2,
      [&](TcpCommunicator& c) {
        Floats values(10, 1);
        const Error error = error_of([&] {
          c.start({.kind = Kind::kAllReduce,
                   .type = ElementType::kF32,
                   .buffer = {values.data(), values.data(), 10},
                   .coding = {Codec::kI8}});
        });
        if (error.kind() != ErrorKind::kUsage ||
            error.message().find("values in i8 travel by the direct algorithm only, and ring is "
                                 "set") == std::string::npos)
          wrong.add(error.what());
      },
      "all_reduce=ring"));
  EXPECT_EQ(wrong.text(), "");
}

}  // namespace
}  // namespace shoal::collective::coded_all_reduce_test
