// Fragments that are exchanged in turn, and results that come late: against a plain loop in double,
// the bytes of a step, and runs that were interrupted.
#include "shoal/optim/synchronisation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>

#include "tests/error_of.h"
#include "tests/optim/low_communication/quadratic_members.h"

namespace shoal::optim::synchronisation_test {
namespace {

using collective::Codec;

constexpr double kRate = 0.1;

TEST(Synchronisation, ExchangesAreSpreadEvenly) {
  EXPECT_EQ(first_exchange(500, 1, 0), 500);
  EXPECT_EQ(first_exchange(8, 4, 0), 2);
  EXPECT_EQ(first_exchange(8, 4, 3), 8);
  EXPECT_EQ(first_exchange(7, 3, 0), 2);
  EXPECT_EQ(first_exchange(7, 3, 1), 4);
  EXPECT_EQ(first_exchange(7, 3, 2), 7);
}

TEST(Synchronisation, FragmentsAreEvenAndHoldEachValueOnce) {
  const at::Tensor a = at::arange(300, at::kFloat).view({30, 10});
  const at::Tensor b = at::arange(300, 1001, at::kFloat);
  const auto fragments = even_fragments({a, b}, 3, 32);
  ASSERT_EQ(fragments.size(), 3u);
  float next = 0;
  for (const auto& fragment : fragments) {
    std::int64_t count = 0;
    for (const at::Tensor& part : fragment) {
      count += part.numel();
      for (std::int64_t i = 0; i < part.numel(); ++i)
        EXPECT_EQ(part.const_data_ptr<float>()[i], next++);
    }
    // 32 blocks of 32 values, of which the last has nine.
    EXPECT_LE(std::abs(count - 1001 / 3.0), 32);
    if (&fragment != &fragments.back()) {
      EXPECT_EQ(count % 32, 0);
    }
  }
  EXPECT_EQ(next, 1001);
  fragments[1][0].zero_();
  EXPECT_EQ((a.eq(0).sum() + b.eq(0).sum()).item<std::int64_t>(), 1 + fragments[1][0].numel())
      << "fragments are views";
}

// One fragment without delay is an outer optimizer every so many steps.
TEST(Synchronisation, OneFragmentIsDiLoCo) {
  comm::run_on_threads(threads(3), [](const comm::Group& group) {
    const Member a(group.rank());
    const Member b(group.rank());
    Synchronisation members({a.parameters}, group, {.every = 4, .outer = {}});
    OuterOptimizer outer(b.parameters, group);
    for (std::int64_t step = 1; step <= 12; ++step) {
      a.descend(kRate);
      b.descend(kRate);
      const auto exchange = members.after_step(step);
      ASSERT_EQ(exchange.has_value(), step % 4 == 0);
      if (exchange) {
        EXPECT_EQ(exchange->norm, outer.synchronise(step));
      }
      EXPECT_EQ(a.values(), b.values());
    }
  });
}

/// Algorithm 2 of the paper in double: returns the values of all members after some steps.
struct Streaming {
  int members, every, fragments, delay, steps;
  double mix;

  std::vector<std::vector<double>> run(const std::vector<int>& fragment_of) const {
    std::vector<double> anchor(kValues);
    std::vector<double> buffer(kValues, 0);
    std::vector<double> pending(kValues, 0);
    for (std::int64_t i = 0; i < kValues; ++i) anchor[i] = start_of(i);
    std::vector<std::vector<double>> x(static_cast<std::size_t>(members), anchor);
    for (int t = 1; t <= steps; ++t) {
      for (std::int64_t i = 0; i < kValues; ++i) {
        const int offset = (fragment_of[i] + 1) * every / fragments;
        for (int m = 0; m < members; ++m)
          x[m][i] -= kRate * curvature_of(i) * (x[m][i] - target_of(m, i));
        // A fragment that has been sent is back after `delay` steps.
        if (t > delay && (t - delay - offset) % every == 0 && delay > 0)
          take(pending[i], anchor[i], buffer[i], x, i);
        if ((t - offset) % every != 0) continue;
        pending[i] = 0;
        for (int m = 0; m < members; ++m) pending[i] += (anchor[i] - x[m][i]) / members;
        if (delay == 0) take(pending[i], anchor[i], buffer[i], x, i);
      }
    }
    return x;
  }

 private:
  void take(double gradient, double& anchor, double& buffer, std::vector<std::vector<double>>& x,
            std::int64_t i) const {
    buffer = 0.9 * buffer + gradient;
    anchor -= 0.7 * (gradient + 0.9 * buffer);
    for (auto& values : x) values[i] = mix * values[i] + (1 - mix) * anchor;
  }
};

// Fifty steps and seven exchanges round some two hundred times, by half a unit in the last place of
// values below 8 (2^-22). A result that is taken a step early or late, the other share as `mix`, or
// a difference that begins at the parameters instead of the anchor change values by more than 0.01.
TEST(Synchronisation, IsTheStreamingDiLoCoOfThePaper) {
  for (const Streaming& paper : {Streaming{3, 8, 3, 2, 50, 0.5}, Streaming{2, 7, 2, 3, 50, 0.25},
                                 Streaming{4, 6, 1, 6, 50, 0.5}, Streaming{3, 5, 5, 0, 50, 0}}) {
    comm::run_on_threads(threads(paper.members), [&](const comm::Group& group) {
      const Member member(group.rank());
      const auto fragments = even_fragments(member.parameters, paper.fragments, 32);
      std::vector<int> fragment_of;
      for (std::size_t f = 0; f < fragments.size(); ++f) {
        for (const at::Tensor& part : fragments[f]) {
          fragment_of.insert(fragment_of.end(), static_cast<std::size_t>(part.numel()),
                             static_cast<int>(f));
        }
      }
      Synchronisation members(
          fragments, group,
          {.every = paper.every, .delay = paper.delay, .mix = paper.mix, .outer = {}});
      for (int step = 1; step <= paper.steps; ++step) {
        member.descend(kRate);
        members.after_step(step);
      }
      const auto expected = paper.run(fragment_of);
      const std::vector<float> found = member.values();
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[group.rank()][i], 200 * 0x1p-22) << i;
      members.take_anchors();
      EXPECT_TRUE(all_have(group, member.values()));
    });
  }
}

/// The most bytes that a member sends in a step, and all that it sends in a round.
struct Sent {
  double most = 0, all = 0;
};
Sent sent_in_a_round(const comm::Group& group, const at::Tensor& x, int fragments,
                     const SynchronisationOptions& options) {
  Synchronisation members(even_fragments({x}, fragments), group, options);
  Sent sent;
  for (std::int64_t step = 1; step <= options.every; ++step) {
    const double before = group.bytes_sent();
    members.after_step(step);
    const double bytes = group.bytes_sent() - before;
    sent.most = std::max(sent.most, bytes);
    sent.all += bytes;
  }
  members.take_anchors();
  return sent;
}

// P fragments send the same in a round, and in a step the P-th part of it.
TEST(Synchronisation, FragmentsDivideThePeakOfBytes) {
  constexpr std::int64_t kCount = std::int64_t{4} * 128 * 10;
  comm::run_on_threads(threads(3), [&](const comm::Group& group) {
    for (const Codec codec : {Codec::kNone, Codec::kI8, Codec::kI4}) {
      SynchronisationOptions options{.every = 12, .outer = {}};
      options.outer.coding = {.codec = codec, .key = Key(1)};
      const at::Tensor x = at::zeros({kCount});
      const Sent whole = sent_in_a_round(group, x, 1, options);
      // Counted are thirds of bytes, in double.
      EXPECT_NEAR(whole.most, whole.all, 1e-6);
      options.delay = 2, options.mix = 0.5;
      const Sent parts = sent_in_a_round(group, x, 4, options);
      EXPECT_NEAR(parts.all, whole.all, 1e-6);
      EXPECT_NEAR(parts.most, whole.most / 4, 1e-6);
    }
  });
}

// The exchange begins after step 2 and is taken after step 3. Member 0 has made both steps before
// the other begins: only the second call may wait for it.
TEST(Synchronisation, BeginningAnExchangeWaitsForNobody) {
  std::promise<void> begun;
  comm::run_on_threads(threads(2), [&](const comm::Group& group) {
    const Member member(group.rank());
    SynchronisationOptions options{.every = 2, .delay = 1, .mix = 0.5, .outer = {}};
    options.outer.coding = {.codec = Codec::kI8, .key = Key(1)};
    Synchronisation members({member.parameters}, group, options);
    if (group.rank() == 1) begun.get_future().wait();
    member.descend(kRate);
    EXPECT_FALSE(members.after_step(1));
    member.descend(kRate);
    EXPECT_FALSE(members.after_step(2));
    EXPECT_TRUE(members.fragments()[0].in_flight());
    if (group.rank() == 0) begun.set_value();
    member.descend(kRate);
    EXPECT_TRUE(members.after_step(3));
    EXPECT_FALSE(members.fragments()[0].in_flight());
  });
}

/// A run of a member that may be saved and taken up again.
struct Trainee {
  Trainee(const comm::Group& group, const SynchronisationOptions& options)
      : member(group.rank()), members(even_fragments(member.parameters, 3), group, options) {}
  void train(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from + 1; step <= to; ++step) {
      member.descend(kRate);
      members.after_step(step);
    }
  }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors = member.parameters;
    for (const OuterState& state : members.states()) tensors.push_back(state.tensor);
    return tensors;
  }

  Member member;
  Synchronisation members;
};

// Whatever the step after which a checkpoint was written, with an exchange in flight or without,
// the run that is taken up has the bits of the one that was not disturbed, and so has the one that
// wrote it.
TEST(Synchronisation, ARunThatIsTakenUpHasTheSameBits) {
  constexpr std::int64_t kSteps = 25;
  SynchronisationOptions options{.every = 7, .delay = 2, .mix = 0.5, .outer = {}};
  options.outer.coding = {.codec = Codec::kI4, .key = Key(1)};
  comm::run_on_threads(threads(3), [&](const comm::Group& group) {
    Trainee undisturbed(group, options);
    undisturbed.train(0, kSteps);
    const std::vector<float> expected = undisturbed.member.values();
    int in_flight = 0;
    for (std::int64_t step = 0; step < kSteps; step += 1) {
      Trainee first(group, options);
      first.train(0, step);
      first.members.wait();
      Trainee second(group, options);
      second.members.resume(step);
      const auto from = first.all();
      const auto to = second.all();
      ASSERT_EQ(from.size(), to.size()) << "after step " << step;
      for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
      for (const OuterOptimizer& fragment : first.members.fragments())
        in_flight += fragment.in_flight();
      first.train(step, kSteps);
      second.train(step, kSteps);
      EXPECT_EQ(first.member.values(), expected) << "after step " << step;
      EXPECT_EQ(second.member.values(), expected) << "after step " << step;
      first.members.take_anchors();
      second.members.take_anchors();
    }
    EXPECT_GT(in_flight, 10) << "no checkpoint fell into an exchange";
    undisturbed.members.take_anchors();
  });
}

// The exchange of step 4 would end in step 6, and that of step 8 in step 10.
TEST(Synchronisation, AfterARestartNothingThatBeganBeforeIsDue) {
  comm::run_on_threads(threads(2), [&](const comm::Group& group) {
    const Member member(group.rank());
    const SynchronisationOptions options{.every = 4, .delay = 2, .mix = 0.5, .outer = {}};
    Synchronisation members({member.parameters}, group, options);
    EXPECT_TRUE(members.writes_after(6));
    members.restart(5);
    for (std::int64_t step = 6; step <= 12; ++step) {
      member.descend(kRate);
      EXPECT_EQ(members.writes_after(step), step == 10) << step;
      EXPECT_EQ(members.after_step(step).has_value(), step == 10) << step;
    }
    members.take_anchors();
    // Nor has a checkpoint of step 5 that of step 4, or one of step 9 more than that of step 8.
    for (const std::int64_t step : {5, 9}) {
      Synchronisation again({member.parameters}, group, options);
      again.restart(5);
      again.resume(step);
      EXPECT_EQ(again.fragments()[0].in_flight(), step == 9) << step;
    }
  });
}

// Few values may not fill all fragments.
TEST(Synchronisation, EmptyFragmentsExchangeNothing) {
  comm::run_on_threads(threads(2), [&](const comm::Group& group) {
    const auto trained = [&](bool with_empty_ones) {
      const Member member(group.rank());
      std::vector<std::vector<at::Tensor>> fragments{member.parameters};
      if (with_empty_ones) fragments = {{}, {}, member.parameters};
      SynchronisationOptions options{.every = 3, .delay = 1, .mix = 0.5, .outer = {}};
      options.outer.coding = {.codec = Codec::kE3M0, .key = Key(1)};
      Synchronisation members(fragments, group, options);
      for (std::int64_t step = 1; step <= 10; ++step) {
        member.descend(kRate);
        members.after_step(step);
      }
      return member.values();
    };
    EXPECT_EQ(trained(true), trained(false));
  });
}

// A checkpoint needs one copy of what is equal on all members.
TEST(Synchronisation, StatesSayWhatIsEqualOnAllMembers) {
  SynchronisationOptions options{.every = 6, .delay = 1, .mix = 0.5, .outer = {}};
  options.outer.coding = {.codec = Codec::kI4, .key = Key(1)};
  comm::run_on_threads(threads(3), [&](const comm::Group& group) {
    Trainee run(group, options);
    run.train(0, 8);
    run.members.wait();
    int shared = 0;
    int own = 0;
    for (const OuterState& state : run.members.states()) {
      const auto* values = state.tensor.const_data_ptr<float>();
      const bool equal =
          state.kind != "sum_residual" && all_have(group, {values, values + state.tensor.numel()});
      EXPECT_EQ(equal, state.shared) << state.kind;
      (state.shared ? shared : own) += 1;
    }
    // Three anchors and momenta, and the sum of the exchange that began after step 8.
    EXPECT_EQ(shared, 7);
    EXPECT_EQ(own, 6);
    run.members.take_anchors();
  });
}

// An evaluation in the middle of a run, on anchors that lie behind each other: training goes on as
// if it had not been. One fragment is empty.
TEST(Synchronisation, AnchorsAndParametersSwapAndSwapBack) {
  comm::run_on_threads(threads(3), [&](const comm::Group& group) {
    const Member member(group.rank());
    auto fragments = even_fragments(member.parameters, 2, 32);
    fragments.emplace_back();
    Synchronisation members(fragments, group, {.every = 3, .delay = 1, .mix = 0.5, .outer = {}});
    for (int step = 1; step <= 7; ++step) {
      member.descend(kRate);
      // Fragments begin after steps 1, 2 and 3 of a round.
      EXPECT_EQ(members.writes_after(step), step > 1) << step;
      EXPECT_EQ(members.after_step(step).has_value(), step > 1) << step;
    }
    const std::vector<float> own = member.values();
    const auto* begin = members.anchors().const_data_ptr<float>();
    const std::vector<float> anchors(begin, begin + members.anchors().numel());
    EXPECT_NE(own, anchors);
    members.swap_anchors();
    EXPECT_EQ(member.values(), anchors);
    EXPECT_TRUE(all_have(group, member.values()));
    members.swap_anchors();
    EXPECT_EQ(member.values(), own);
    EXPECT_EQ(std::vector<float>(begin, begin + members.anchors().numel()), anchors);
    members.take_anchors();
  });
}

TEST(Synchronisation, RefusesTimesThatDoNotFit) {
  const at::Tensor x = at::zeros({1024});
  const auto kind = [&](const SynchronisationOptions& options, int fragments) {
    return error_of([&] { Synchronisation(even_fragments({x}, fragments), {}, options); }).kind();
  };
  EXPECT_EQ(kind({.every = 0, .outer = {}}, 1), ErrorKind::kConfig);
  EXPECT_EQ(kind({.every = 3, .outer = {}}, 4), ErrorKind::kConfig);
  EXPECT_EQ(kind({.every = 7, .delay = 3, .outer = {}}, 3), ErrorKind::kConfig);
  EXPECT_EQ(kind({.every = 7, .delay = -1, .outer = {}}, 3), ErrorKind::kConfig);
  EXPECT_EQ(kind({.every = 7, .mix = 1, .outer = {}}, 3), ErrorKind::kConfig);
  EXPECT_EQ(kind({.every = 7, .mix = -0.1, .outer = {}}, 3), ErrorKind::kConfig);
  EXPECT_EQ(kind({.every = 7, .delay = 2, .outer = {}}, 3), ErrorKind::kInternal) << "it fits";
  EXPECT_EQ(error_of([&] { even_fragments({x}, 9); }).kind(), ErrorKind::kUsage);
}

}  // namespace
}  // namespace shoal::optim::synchronisation_test
