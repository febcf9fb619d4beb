// What a rank says last arrives over long links, whatever is before it; and a link that is full in
// both directions, and loses packets, is no dead peer.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/base/number.h"
#include "tests/emulation/ranks_at_sites.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/sanitized.h"

namespace shoal::emulation::last_words_over_wan_test {
namespace {

using collective::Handle;
using collective::Kind;
using collective::soon;
using collective::TcpCommunicator;
using std::chrono::milliseconds;
using testing::HasSubstr;

/// What `make test` does is short; SHOAL_SOAK_ROUNDS and SHOAL_SOAK_SECONDS ask for more.
int asked(const char* variable, int in_tests) {
  const char* text = std::getenv(variable);
  return text == nullptr ? in_tests : parse_number<int>(text).value_or(in_tests);
}

constexpr double kRate = 100e6;
constexpr std::size_t kMegabyte = std::size_t{1} << 20;

/// Heartbeats and silence as they are where nobody sets them.
const Meeting kDefaults{.heartbeat = wire::TcpTransport::Options().heartbeat,
                        .silence = wire::TcpTransport::Options().silence};

/// The two scenarios of a rank that ends while megabytes that it has sent lie in kernels, on a link
/// of 100 Mbit/s and 50 ms each way: 16 MiB take 1.3 s of it.
class LastWordsOverWan : public testing::Test {
 protected:
  void SetUp() override {
    wan_.set_all({.delay = milliseconds(50), .bits_per_second = kRate});
    ASSERT_EQ(when_quiet([&] { return why_void(wan_, 0, 1); }), "");
  }
  static int rounds() { return asked("SHOAL_SOAK_ROUNDS", 2); }
  /// As many as the round trip asks for, and one alone in every second round.
  static int rails_of(int round) { return round % 2; }

  Wan wan_{2, {.packets = Wan::Packets::kFast}};
};

TEST_F(LastWordsOverWan, WhatARankHasSentArrivesThoughTheRankIsDone) {
  const std::vector<std::uint8_t> sent(16 * kMegabyte, 7);
  for (int round = 0; round < rounds(); ++round) {
    collective::expect_none(at_sites(wan_, {.rails = rails_of(round)}, [&](TcpCommunicator& c) {
      if (c.rank() == 0) {
        return c.run({.kind = Kind::kSend,
                      .type = ElementType::kU8,
                      .buffer = {sent.data(), nullptr, sent.size()},
                      .peer = 1},
                     soon());
      }
      std::vector<std::uint8_t> received(sent.size());
      c.run({.kind = Kind::kReceive,
             .type = ElementType::kU8,
             .buffer = {nullptr, received.data(), received.size()},
             .peer = 0},
            soon());
      EXPECT_EQ(received, sent);
    }));
  }
}

// With a sanitizer on a busy machine a rank may take bytes as slowly as they come, and be busy with
// them until the sum is complete: then it may be tried again.
TEST_F(LastWordsOverWan, ThePeerLearnsTheCauseInTheMiddleOfAnAllReduce) {
  for (int round = 0; round < rounds(); ++round) {
    std::atomic<bool> too_late{true};
    Errors errors;
    for (int tries = 0; tries < 3 && too_late; ++tries) {
      errors = at_sites(wan_, {.rails = rails_of(round)}, [&](TcpCommunicator& c) {
        std::vector<std::uint8_t> own(64 * kMegabyte, 1);
        const Handle handle = c.start({.kind = Kind::kAllReduce,
                                       .type = ElementType::kU8,
                                       .buffer = {own.data(), own.data(), own.size()}});
        if (c.rank() == 0) {
          too_late = c.wait_briefly(handle, milliseconds(300));
          if (!too_late)
            c.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(0, 2));
        }
        c.wait(handle, soon());
      });
    }
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->rank(), 0) << error->what();
      EXPECT_THAT(error->what(), HasSubstr("the shard is truncated"));
    }
  }
}

constexpr double kMostSeconds = kSanitized ? 30 : 5;

/// Cuts rank 0 off in the middle of an all-reduce of three, with the settings that nobody has
/// changed. Returns the seconds until the slowest rank has noticed, and checks what they say.
double seconds_until_a_cut_is_named() {
  constexpr int kRanks = 3;
  Wan wan(kRanks);
  wan.set_all(
      {.delay = milliseconds(10), .bits_per_second = 20e6, .queue_bytes = std::size_t{128} << 10});
  EXPECT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  std::array<double, kRanks> noticed{};
  std::atomic<int> over{0};
  Clock::time_point cut;
  const auto bytes_of_rank_0 = [&] {
    return wan.between(0, 1).delivered.bytes + wan.between(0, 2).delivered.bytes;
  };
  const std::uint64_t before = bytes_of_rank_0();
  const auto errors = at_sites(
      wan, kDefaults,
      [&](TcpCommunicator& c) {
        std::vector<float> x(2 * kMegabyte, 1);
        try {
          c.run({.kind = Kind::kAllReduce,
                 .type = ElementType::kF32,
                 .buffer = {x.data(), x.data(), x.size()}},
                soon());
        } catch (const Error&) {
          noticed[static_cast<std::size_t>(c.rank())] = to_seconds(Clock::now() - cut);
          ++over;
          throw;
        }
      },
      [&] {
        const Deadline end = soon();
        while (bytes_of_rank_0() < before + 500000 && !end.passed())
          std::this_thread::sleep_for(milliseconds(1));
        cut = Clock::now();
        wan.cut({0});
        while (over < kRanks && !end.passed()) std::this_thread::sleep_for(milliseconds(1));
        wan.heal();
      });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(error);
    if (!error) continue;
    EXPECT_EQ(error->kind(), ErrorKind::kPeerLost) << error->what();
    // Those on the other side name the rank that is cut off, whichever of them noticed it first.
    EXPECT_EQ(error->rank() == 0, rank == 0) << error->what();
    EXPECT_EQ(error->peer() == 0, rank > 0) << error->what();
  }
  return *std::max_element(noticed.begin(), noticed.end());
}

// Where the machine is busy it may be tried again.
TEST(CutOverWan, IsNamedOnBothSidesWithinFiveSeconds) {
  double taken = kMostSeconds;
  for (int tries = 0; tries < 3 && taken >= kMostSeconds && !HasFailure(); ++tries)
    taken = seconds_until_a_cut_is_named();
  fmt::print("all three ranks named the cut after {:.2f} s\n", taken);
  EXPECT_LT(taken, kMostSeconds);
}

// Two ranks keep a link that loses packets full in both directions. Their heartbeats are
// behind what kernels hold, and time and again behind a packet that is sent a second time.
TEST(SaturationOverWan, IsNoSilence) {
  constexpr double kShare = 0.25;
  constexpr int kInTests = 2;
  constexpr std::size_t kSums = 8;
  const int seconds = asked("SHOAL_SOAK_SECONDS", kInTests);
  Wan wan(2);
  LinkSpec link{.delay = milliseconds(150), .bits_per_second = 20e6};
  wan.set_all(link);
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  link.loss = 0.01;
  // Packets are lost once all connections are there: 26 of themselves.
  Meeting meeting = kDefaults;
  meeting.rails = seconds > kInTests ? 0 : 4;
  std::array<Counters, 2> before;
  std::array<Counters, 2> after;
  double taken = 0;
  collective::expect_none(at_sites(wan, meeting, [&](TcpCommunicator& c) {
    const bool first = c.rank() == 0;
    c.run({.kind = Kind::kBarrier}, soon());
    if (first) {
      wan.set_all(link);
      before = {wan.between(0, 1), wan.between(1, 0)};
    }
    const auto begin = Clock::now();
    // Rank 0 says when it is over, which both learn from the same sum. Several are under way at a
    // time, so that the link has something to carry at the end of each.
    std::array<std::vector<float>, kSums> sums;
    std::array<Handle, kSums> handles{};
    const auto start = [&](std::size_t i) {
      const bool is_over = first && to_seconds(Clock::now() - begin) > seconds;
      sums[i].assign(kMegabyte / 8, 1);
      sums[i][0] = is_over ? 100 : 0;
      handles[i] = c.start({.kind = Kind::kAllReduce,
                            .type = ElementType::kF32,
                            .buffer = {sums[i].data(), sums[i].data(), sums[i].size()}});
    };
    for (std::size_t i = 0; i < kSums; ++i) start(i);
    std::size_t last = 0;
    for (;; last = (last + 1) % kSums) {
      c.wait(handles[last], soon());
      ASSERT_EQ(std::count(sums[last].begin() + 1, sums[last].end(), 2.0F),
                static_cast<std::ptrdiff_t>(sums[last].size() - 1));
      if (sums[last][0] > 0) break;
      start(last);
    }
    for (std::size_t i = 1; i < kSums; ++i) c.wait(handles[(last + i) % kSums], soon());
    if (!first) return;
    taken = to_seconds(Clock::now() - begin);
    after = {wan.between(0, 1), wan.between(1, 0)};
  }));
  for (std::size_t way = 0; way < 2; ++way) {
    const double bits =
        8.0 * static_cast<double>(after[way].delivered.bytes - before[way].delivered.bytes);
    fmt::print("{:.1f} of 20 Mbit/s in one direction for {:.1f} s, {} packets lost\n",
               bits / taken * 1e-6, taken, after[way].lost.packets - before[way].lost.packets);
    EXPECT_GT(bits / taken, kShare * 20e6) << "the link was not full";
    EXPECT_GT(after[way].lost.packets, before[way].lost.packets);
  }
}

}  // namespace
}  // namespace shoal::emulation::last_words_over_wan_test
