// Members that train by themselves and meet: against synchronous training, a plain loop in double,
// and formulas of bytes and of memory.
#include "shoal/optim/outer_optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "shoal/comm/allocator.h"
#include "shoal/optim/optimizer.h"
#include "tests/error_of.h"
#include "tests/optim/low_communication/quadratic_members.h"

namespace shoal::optim::outer_optimizer_test {
namespace {

using collective::Codec;
using collective::Coding;

constexpr double kRate = 0.1;

/// SGD of optim/ on a member's parameters, with gradients that `slope(x, i)` gives in float.
template <class Slope>
void sgd_step(Optimizer& sgd, const Member& member, const Slope& slope) {
  std::vector<at::Tensor> gradients;
  std::int64_t i = 0;
  for (const at::Tensor& parameter : member.parameters) {
    at::Tensor gradient = at::empty_like(parameter);
    for (std::int64_t j = 0; j < parameter.numel(); ++j, ++i) {
      gradient.data_ptr<float>()[j] =
          static_cast<float>(slope(parameter.const_data_ptr<float>()[j], i));
    }
    gradients.push_back(gradient);
  }
  sgd.step(gradients, kRate);
}

std::unique_ptr<Optimizer> sgd_of(const Member& member) {
  return make_optimizer({{"a", member.parameters[0]}, {"b", member.parameters[1]}}, SgdOptions());
}

// The mean of x - rate g_m over the members is x - rate mean(g). A step rounds a handful of times,
// each time by half a unit in the last place of a value below 4 (2^-22), and descent shrinks
// errors.
TEST(OuterOptimizer, AveragingAfterEachStepIsSynchronousSgd) {
  constexpr int kSteps = 30;
  for (const int ranks : {2, 3, 4}) {
    const Member reference(0);
    const auto reference_sgd = sgd_of(reference);
    for (int step = 0; step < kSteps; ++step) {
      sgd_step(*reference_sgd, reference, [&](double x, std::int64_t i) {
        double slope = 0;
        for (int m = 0; m < ranks; ++m) slope += curvature_of(i) * (x - target_of(m, i)) / ranks;
        return slope;
      });
    }
    const std::vector<float> expected = reference.values();
    comm::run_on_threads(threads(ranks), [&](const comm::Group& group) {
      const Member member(group.rank());
      const auto sgd = sgd_of(member);
      OuterOptimizer outer(member.parameters, group, plain_average());
      for (int step = 1; step <= kSteps; ++step) {
        sgd_step(*sgd, member, [&](double x, std::int64_t i) {
          return curvature_of(i) * (x - target_of(group.rank(), i));
        });
        outer.synchronise(step);
      }
      const std::vector<float> found = member.values();
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], kSteps * 0x1p-22) << i;
      EXPECT_FALSE(outer.in_flight());
      EXPECT_EQ(outer.states().size(), 1u) << "no momentum, and nothing kept for it";
    });
  }
}

/// Returns the anchor after some rounds of DiLoCo, in double and in the words of the paper.
std::vector<double> diloco(int members, int rounds, int every, double rate, double momentum) {
  std::vector<double> anchor(kValues);
  std::vector<double> buffer(kValues, 0);
  for (std::int64_t i = 0; i < kValues; ++i) anchor[i] = start_of(i);
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t i = 0; i < kValues; ++i) {
      double gradient = 0;
      for (int m = 0; m < members; ++m) {
        double x = anchor[i];
        for (int step = 0; step < every; ++step)
          x -= kRate * curvature_of(i) * (x - target_of(m, i));
        gradient += (anchor[i] - x) / members;
      }
      buffer[i] = momentum * buffer[i] + gradient;
      anchor[i] -= rate * (gradient + momentum * buffer[i]);
    }
  }
  return anchor;
}

// Forty inner and eight outer steps round some two hundred times, by half a unit in the last place
// of values below 8 (2^-22). Without Nesterov's term, without the mean or with a momentum of 0.8
// values differ by more than 0.1.
TEST(OuterOptimizer, IsTheDiLoCoOfThePaper) {
  constexpr int kRounds = 8, kEvery = 5;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<double> expected = diloco(ranks, kRounds, kEvery, 0.7, 0.9);
    comm::run_on_threads(threads(ranks), [&](const comm::Group& group) {
      const Member member(group.rank());
      OuterOptimizer outer(member.parameters, group);
      for (int step = 1; step <= kRounds * kEvery; ++step) {
        member.descend(kRate);
        if (step % kEvery == 0) outer.synchronise(step);
      }
      const std::vector<float> found = member.values();
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 200 * 0x1p-22) << i;
      EXPECT_EQ(std::memcmp(found.data(), outer.anchor().const_data_ptr(), 4 * kValues), 0);
    });
  }
}

// The norm is that of the mean difference. A member that has not moved counts, too.
TEST(OuterOptimizer, TellsTheNormOfTheMeanDifference) {
  comm::run_on_threads(threads(4), [](const comm::Group& group) {
    const Member member(0);
    OuterOptimizer outer(member.parameters, group);
    if (group.rank() == 1) member.for_values([](float& x, std::int64_t) { x += 2; });
    EXPECT_NEAR(outer.synchronise(1), 0.5 * std::sqrt(kValues), 1e-5);
  });
}

/// Trains three rounds with `coding`, and returns the member's parameters.
std::vector<float> three_rounds(const comm::Group& group, const OuterOptions& options) {
  const Member member(group.rank());
  OuterOptimizer outer(member.parameters, group, options);
  for (int round = 1; round <= 3; ++round) {
    for (int step = 0; step < 4; ++step) member.descend(kRate);
    outer.synchronise(round);
  }
  return member.values();
}

TEST(OuterOptimizer, MembersHaveTheSameBits) {
  for (const int ranks : {2, 3, 4}) {
    comm::run_on_threads(threads(ranks), [&](const comm::Group& group) {
      EXPECT_TRUE(all_have(group, three_rounds(group, {})));
      for (const Codec codec : collective::kCodecs) {
        for (const bool feedback : {true, false}) {
          OuterOptions options;
          options.coding = {.codec = codec, .key = Key(1)};
          options.error_feedback = feedback;
          EXPECT_TRUE(all_have(group, three_rounds(group, options))) << collective::name(codec);
        }
      }
    });
  }
}

// Two ranks of each of three members have the same values, and their groups add in another order.
TEST(OuterOptimizer, RanksOfAMemberTakeTheSameSum) {
  comm::run_on_threads(threads(6), [&](const comm::Group& group) {
    const int member = group.rank() % 3;
    const int place = group.rank() / 3;
    const comm::Group members = group.split(place, place == 0 ? member : -member);
    const comm::Group own = group.split(member, place);
    // 1e8 - 1e8 + 1 is 1 in the one order, and 0 in the other.
    constexpr std::array kMoves{1e8F, -1e8F, 1.0F};
    const auto moved = [&](const OuterOptions& options) {
      const at::Tensor values = at::zeros({3});
      OuterOptimizer outer({values}, members, options);
      values.fill_(kMoves[static_cast<std::size_t>(member)]);
      outer.synchronise(1);
      return std::vector<float>(values.const_data_ptr<float>(),
                                values.const_data_ptr<float>() + values.numel());
    };
    OuterOptions options = plain_average();
    EXPECT_FALSE(all_have(group, moved(options))) << "the order makes no difference here";
    options.alike = {own};
    EXPECT_TRUE(all_have(group, moved(options)));
    options.coding = {.codec = Codec::kI8, .key = Key(1)};
    EXPECT_TRUE(all_have(members, moved(options)));
  });
}

// Each exchange has random numbers of its own: with the same ones, values that lie alike would be
// rounded alike in all of them.
TEST(OuterOptimizer, EachExchangeHasItsRandomNumbers) {
  const auto moved = [](std::int64_t step) {
    const at::Tensor x = at::zeros({1000});
    OuterOptions options = plain_average({.codec = Codec::kI4, .key = Key(1)});
    OuterOptimizer outer({x}, {}, options);
    x.fill_(0.3).select(0, 0).fill_(1);
    outer.synchronise(step);
    return x;
  };
  EXPECT_TRUE(moved(1).equal(moved(1)));
  EXPECT_FALSE(moved(1).equal(moved(2)));
}

/// Bytes of n values, by the words of docs/concepts/codecs.md.
double bytes_in(Codec codec, double n) {
  const double blocks = std::ceil(n / 128);
  if (codec == Codec::kNone) return 4 * n;
  if (codec == Codec::kBF16) return 2 * n;
  if (codec == Codec::kF8E4M3 || codec == Codec::kI8) return n + 2 * blocks;
  return n / 2 + 2 * blocks;
}

// An all-reduce sends 2 (M - 1) / M of its bytes, encoded, and nothing else is sent.
TEST(OuterOptimizer, SendsTheBytesOfTheFormula) {
  constexpr std::int64_t kCount = 4096 + 64;
  for (const int ranks : {2, 3, 4}) {
    comm::run_on_threads(threads(ranks), [&](const comm::Group& group) {
      for (const Codec codec :
           {Codec::kNone, Codec::kBF16, Codec::kF8E4M3, Codec::kI8, Codec::kI4, Codec::kE3M0}) {
        const at::Tensor x = at::ones({kCount});
        OuterOptions options;
        options.coding = {.codec = codec, .key = Key(2)};
        OuterOptimizer outer({x}, group, options);
        for (int step = 1; step <= 2; ++step) {
          const double before = group.bytes_sent();
          x.mul_(0.9);
          EXPECT_EQ(group.bytes_sent(), before) << "a step of a member sends nothing";
          outer.synchronise(step);
          // Counted are thirds of bytes, in double.
          EXPECT_NEAR(group.bytes_sent() - before,
                      2.0 * (ranks - 1) / ranks * bytes_in(codec, kCount), 1e-6);
        }
      }
    });
  }
}

// In i4 a block whose largest value is 1 has units of 1/7, and what is below half a unit becomes
// nothing when it is rounded to the nearest: values that go 0.05 a round would never be sent. With
// feedback they lack what two encodings hold back, each at most a unit.
TEST(OuterOptimizer, ErrorFeedbackGivesBackWhatRoundingTakes) {
  constexpr int kRounds = 20;
  for (const bool feedback : {true, false}) {
    comm::run_on_threads(threads(3), [&](const comm::Group& group) {
      const at::Tensor x = at::zeros({256});
      OuterOptions options =
          plain_average({.codec = Codec::kI4, .stochastic = false, .key = Key(3)});
      options.error_feedback = feedback;
      OuterOptimizer outer({x}, group, options);
      at::Tensor way = at::full({256}, 0.05f);
      way.select(0, 0).fill_(1);
      way.select(0, 128).fill_(1);
      for (int round = 1; round <= kRounds; ++round) {
        x.sub_(way);
        outer.synchronise(round);
      }
      const float lacking = (x + way * kRounds).abs().max().item<float>();
      if (feedback) {
        EXPECT_LE(lacking, 2.1f / 7);
      } else {
        EXPECT_GT(lacking, 0.9f);
      }
    });
  }
}

// Both anchor and momentum take four bytes a value, so do the residuals of all values and, over the
// members together, those of the parts; the difference is there during an exchange alone.
TEST(OuterOptimizer, HoldsTheMemoryOfTheFormula) {
  constexpr std::int64_t kCount = 128 * 600;
  constexpr std::size_t kBytes = 4 * kCount;
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 30, .timeout = std::chrono::minutes(5)},
      [&](const comm::Group& group) {
        const auto held = [&](MemoryCategory category) {
          group.barrier();
          const auto usage =
              comm::installed_arena()->ledger().categories[static_cast<int>(category)];
          group.barrier();
          return usage.in_use;
        };
        const auto check = [&](const OuterOptions& options, double copies) {
          const at::Tensor x = at::zeros({kCount});
          const std::size_t before = held(MemoryCategory::kOptimizer);
          const std::size_t sent = held(MemoryCategory::kCommunication);
          OuterOptimizer outer({x}, group, options);
          EXPECT_EQ(held(MemoryCategory::kOptimizer) - before, copies * kBytes);
          EXPECT_EQ(2 * outer.state_bytes(), copies * kBytes);
          x.fill_(1);
          outer.begin(1);
          EXPECT_EQ(held(MemoryCategory::kCommunication) - sent, 2 * kBytes);
          outer.finish();
          group.barrier();
          group.poll();
          EXPECT_EQ(held(MemoryCategory::kCommunication), sent);
          EXPECT_EQ(held(MemoryCategory::kOptimizer) - before, copies * kBytes);
          group.barrier();
        };
        // Of both members together.
        check({}, 4);
        check(plain_average(), 2);
        OuterOptions coded;
        coded.coding = {.codec = Codec::kI8, .key = Key(1)};
        check(coded, 7);
        coded.error_feedback = false;
        check(coded, 4);
      });
}

// A mean that is not finite changes nothing, and is an error on all members, whoever caused it.
TEST(OuterOptimizer, RefusesWhatIsNotFiniteOnAllMembers) {
  for (const Codec codec : {Codec::kNone, Codec::kI8}) {
    comm::run_on_threads(threads(3), [&](const comm::Group& group) {
      const Member member(group.rank());
      OuterOptions options;
      options.coding = {.codec = codec, .key = Key(1)};
      OuterOptimizer outer(member.parameters, group, options);
      const at::Tensor anchor = outer.anchor().clone();
      member.descend(kRate);
      if (group.rank() == 1)
        member.parameters[1].data_ptr<float>()[17] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> before = member.values();
      const Error error = error_of([&] { outer.synchronise(1); });
      EXPECT_EQ(error.kind(), ErrorKind::kNonFinite);
      EXPECT_TRUE(outer.anchor().equal(anchor));
      const std::vector<float> after = member.values();
      EXPECT_EQ(std::memcmp(before.data(), after.data(), 4 * before.size()), 0);
    });
  }
}

TEST(OuterOptimizer, MembersMustStartAlike) {
  comm::run_on_threads(threads(3), [](const comm::Group& group) {
    Member member(0);
    if (group.rank() == 2) member.parameters[0].data_ptr<float>()[3] += 1e-6f;
    const Error error = error_of([&] { OuterOptimizer(member.parameters, group); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
  });
}

TEST(OuterOptimizer, RefusesCallsThatMakeNoSense) {
  const auto kind = [](auto&& call) { return error_of(call).kind(); };
  const at::Tensor x = at::zeros({8});
  EXPECT_EQ(kind([&] { OuterOptimizer({x.to(at::kDouble)}, {}); }), ErrorKind::kUsage);
  EXPECT_EQ(kind([&] { OuterOptimizer({at::zeros({4, 4}).t()}, {}); }), ErrorKind::kUsage);
  EXPECT_EQ(kind([&] { OuterOptimizer({x}, {}, {.learning_rate = 0}); }), ErrorKind::kConfig);
  EXPECT_EQ(kind([&] { OuterOptimizer({x}, {}, {.momentum = 1}); }), ErrorKind::kConfig);
  OuterOptimizer outer({x}, {});
  EXPECT_EQ(kind([&] { outer.finish(); }), ErrorKind::kUsage);
  outer.begin(1);
  EXPECT_EQ(kind([&] { outer.begin(2); }), ErrorKind::kUsage);
  EXPECT_EQ(kind([&] { outer.finish(1); }), ErrorKind::kUsage);
  outer.finish();
}

}  // namespace
}  // namespace shoal::optim::outer_optimizer_test
