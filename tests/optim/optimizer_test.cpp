#include "shoal/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"
#include "shoal/base/philox.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/group.h"
#include "shoal/comm/world.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/stored_update.h"
#include "tests/error_text.h"

namespace shoal::optim::optimizer_test {
namespace {

using ::testing::StartsWith;

at::Tensor random(const std::string& name, at::IntArrayRef shape) {
  const Key key = Key(5).child(name);
  const at::Tensor t = at::empty(shape, at::kFloat);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data_ptr<float>()[i] = static_cast<float>(key.normal(i));
  return t;
}

double largest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

std::vector<Slice> two_slices() {
  return {{"weight", random("weight", {7, 5}), true}, {"bias", random("bias", {9}), false}};
}

std::vector<at::Tensor> gradients_of(int step) {
  return {random("dw" + std::to_string(step), {7, 5}), random("db" + std::to_string(step), {9})};
}

// torch.optim.AdamW, written in LibTorch operators in double.
TEST(Optimizer, AdamWFollowsTorchForTenSteps) {
  auto slices = two_slices();
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  std::vector<at::Tensor> p;
  std::vector<at::Tensor> m;
  std::vector<at::Tensor> v;
  for (const Slice& slice : slices) {
    p.push_back(slice.parameter.to(at::kDouble));
    m.push_back(at::zeros_like(p.back())), v.push_back(at::zeros_like(p.back()));
  }
  const auto optimizer = make_optimizer(slices, options);
  for (int step = 1; step <= 10; ++step) {
    const auto gradients = gradients_of(step);
    const double lr = 0.01 / step;
    const double scale = 0.5;
    optimizer->step(gradients, lr, scale);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const at::Tensor g = gradients[i].to(at::kDouble) * scale;
      p[i] = p[i] * (1 - lr * (slices[i].decay ? options.weight_decay : 0));
      m[i] = m[i] * options.beta1 + g * (1 - options.beta1);
      v[i] = v[i] * options.beta2 + g * g * (1 - options.beta2);
      const double c1 = 1 - std::pow(options.beta1, step);
      const double c2 = 1 - std::pow(options.beta2, step);
      p[i] = p[i] - (m[i] / ((v[i].sqrt() / std::sqrt(c2)) + options.epsilon)) * (lr / c1);
      // Ten steps of float rounding on values near 1.
      EXPECT_LT(largest(slices[i].parameter.to(at::kDouble) - p[i]), 2e-6)
          << "step " << step << " " << slices[i].name;
    }
  }
  for (const State& state : optimizer->states())
    EXPECT_LT(largest(state.tensor - (state.kind == "exp_avg" ? m : v)[state.slice]), 1e-6);
}

// torch.optim.SGD: momentum starts as the first gradient, decay is part of the gradient.
TEST(Optimizer, SgdFollowsTorchForTenSteps) {
  for (const bool nesterov : {false, true}) {
    auto slices = two_slices();
    const SgdOptions options{.momentum = 0.9,
                             .dampening = nesterov ? 0 : 0.1,
                             .weight_decay = 0.05,
                             .nesterov = nesterov};
    std::vector<at::Tensor> p;
    std::vector<at::Tensor> b(2);
    for (const Slice& slice : slices) p.push_back(slice.parameter.to(at::kDouble));
    const auto optimizer = make_optimizer(slices, options);
    for (int step = 1; step <= 10; ++step) {
      const auto gradients = gradients_of(step);
      optimizer->step(gradients, 0.05);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const at::Tensor g =
            gradients[i].to(at::kDouble) + p[i] * (slices[i].decay ? options.weight_decay : 0);
        b[i] = b[i].defined() ? b[i] * options.momentum + g * (1 - options.dampening) : g;
        p[i] = p[i] - (nesterov ? g + b[i] * options.momentum : b[i]) * 0.05;
        EXPECT_LT(largest(slices[i].parameter.to(at::kDouble) - p[i]), 3e-6) << "step " << step;
      }
    }
  }
}

TEST(Optimizer, AParameterWithoutGradientIsLeftAlone) {
  auto slices = two_slices();
  const at::Tensor before = slices[0].parameter.clone();
  const auto optimizer = make_optimizer(slices, AdamWOptions{.weight_decay = 0.5});
  optimizer->step({at::Tensor(), random("g", {9})}, 0.1);
  EXPECT_TRUE(slices[0].parameter.equal(before));
  EXPECT_EQ(optimizer->updates(), (std::vector<std::int64_t>{0, 1}));
}

TEST(Optimizer, AShardUpdatesAsTheWholeDoes) {
  const at::Tensor whole = random("p", {101});
  const at::Tensor g = random("g", {101});
  const at::Tensor parts = whole.clone();
  const auto one = make_optimizer({{"p", whole, true}}, AdamWOptions{});
  const auto two = make_optimizer(
      {{"p", parts.narrow(0, 0, 37), true}, {"p", parts.narrow(0, 37, 64), true}}, AdamWOptions{});
  for (int step = 0; step < 3; ++step) {
    one->step({g}, 0.01);
    two->step({g.narrow(0, 0, 37), g.narrow(0, 37, 64)}, 0.01);
  }
  EXPECT_TRUE(whole.equal(parts));
}

TEST(Optimizer, StateLiesInOneBufferAtMultiplesOf64Bytes) {
  const auto optimizer = make_optimizer(two_slices(), AdamWOptions{});
  ASSERT_EQ(optimizer->states().size(), 4u);
  const auto& first = optimizer->states()[0].tensor;
  for (const State& state : optimizer->states()) EXPECT_EQ(state.tensor.storage_offset() % 16, 0);
  EXPECT_TRUE(first.is_alias_of(optimizer->states()[1].tensor));
  EXPECT_EQ(optimizer->states()[1].kind, "exp_avg");
  EXPECT_EQ(optimizer->states()[1].slice, 1u);
  EXPECT_EQ(optimizer->state_bytes(), 2 * (48 + 16) * 4);
}

TEST(Optimizer, RestoredStateGoesOnBitForBit) {
  auto slices = two_slices();
  auto copies = two_slices();
  const auto one = make_optimizer(slices, AdamWOptions{});
  const auto two = make_optimizer(copies, AdamWOptions{});
  for (int step = 0; step < 3; ++step) one->step(gradients_of(step), 0.01);
  for (std::size_t i = 0; i < slices.size(); ++i) copies[i].parameter.copy_(slices[i].parameter);
  for (std::size_t i = 0; i < one->states().size(); ++i)
    two->states()[i].tensor.copy_(one->states()[i].tensor);
  two->set_updates(one->updates());
  for (int step = 3; step < 6; ++step)
    one->step(gradients_of(step), 0.01), two->step(gradients_of(step), 0.01);
  for (std::size_t i = 0; i < slices.size(); ++i)
    EXPECT_TRUE(slices[i].parameter.equal(copies[i].parameter));
}

TEST(Optimizer, RefusesWhatItCannotUpdate) {
  EXPECT_THROW(make_optimizer({{"p", at::zeros({2}, at::kDouble), true}}, AdamWOptions{}), Error);
  EXPECT_THROW(make_optimizer({{"p", at::zeros({4, 4}, at::kFloat).t(), true}}, AdamWOptions{}),
               Error);
  EXPECT_THROW(make_optimizer(two_slices(), AdamWOptions{.beta1 = 1}), Error);
  EXPECT_THROW(make_optimizer(two_slices(), SgdOptions{.nesterov = true}), Error);
  EXPECT_THROW(make_optimizer(two_slices(), AdamWOptions{})->step({at::Tensor()}, 0.1), Error);
  EXPECT_THROW(
      make_optimizer(two_slices(), AdamWOptions{})->step({at::zeros({3}), at::Tensor()}, 0.1),
      Error);
}

// torch.optim.AdamW and torch.optim.SGD.
TEST(Optimizer, DefaultsAreThoseOfTorch) {
  const AdamWOptions adamw;
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_EQ(adamw.beta2, 0.999);
  EXPECT_EQ(adamw.epsilon, 1e-8);
  EXPECT_EQ(adamw.weight_decay, 0.01);
  const SgdOptions sgd;
  EXPECT_EQ(sgd.momentum, 0);
  EXPECT_EQ(sgd.dampening, 0);
  EXPECT_EQ(sgd.weight_decay, 0);
  EXPECT_FALSE(sgd.nesterov);
  EXPECT_TRUE(Storage().master);
  EXPECT_EQ(Storage().moments, at::kFloat);
  // Without a scale gradients count as they are: the first step of SGD is lr g.
  const at::Tensor p = at::zeros({3}, at::kFloat);
  make_optimizer({{"p", p, true}}, SgdOptions{})->step({random("g", {3})}, 0.5);
  EXPECT_TRUE(p.equal(random("g", {3}) * -0.5));
}

// Two and a half times what a thread takes at least: the parts of several threads are those of one.
TEST(Optimizer, AnyNumberOfThreadsUpdatesTheSame) {
  constexpr std::int64_t kCount = 80001;
  const auto run = [&](int threads, const Options& options, at::ScalarType type,
                       const Storage& storage) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const at::Tensor p = random("p", {kCount}).to(type);
    const auto optimizer = make_optimizer({{"p", p, true, 1234}}, options, storage);
    for (int step = 0; step < 2; ++step) optimizer->step({random("g", {kCount})}, 0.01);
    at::set_num_threads(before);
    return p;
  };
  const Storage half{.master = false, .moments = at::kBFloat16, .rounding = Key(3)};
  const auto adamw = [&](int threads) { return run(threads, AdamWOptions{}, at::kFloat, {}); };
  const auto rounded = [&](int threads) {
    return run(threads, AdamWOptions{}, at::kBFloat16, half);
  };
  const auto masters = [&](int threads) { return run(threads, AdamWOptions{}, at::kBFloat16, {}); };
  const auto sgd = [&](int threads) {
    return run(threads, SgdOptions{.momentum = 0.9}, at::kFloat, {});
  };
  const auto plain = [&](int threads) { return run(threads, SgdOptions{}, at::kFloat, {}); };
  EXPECT_TRUE(adamw(3).equal(adamw(1)));
  EXPECT_TRUE(rounded(3).equal(rounded(1)));
  EXPECT_TRUE(masters(3).equal(masters(1)));
  EXPECT_TRUE(sgd(3).equal(sgd(1)));
  EXPECT_TRUE(plain(3).equal(plain(1)));
}

TEST(Optimizer, EveryOptionHasItsRange) {
  const auto adamw = [](const AdamWOptions& options) { make_optimizer(two_slices(), options); };
  const auto sgd = [](const SgdOptions& options) { make_optimizer(two_slices(), options); };
  EXPECT_THROW(adamw({.beta1 = -0.1}), Error);
  EXPECT_THROW(adamw({.beta1 = 1}), Error);
  EXPECT_THROW(adamw({.beta2 = -0.1}), Error);
  EXPECT_THROW(adamw({.beta2 = 1}), Error);
  EXPECT_THROW(adamw({.epsilon = -1e-8}), Error);
  EXPECT_THROW(adamw({.weight_decay = -0.1}), Error);
  EXPECT_NO_THROW(adamw({.beta1 = 0, .beta2 = 0, .epsilon = 0, .weight_decay = 0}));
  EXPECT_THROW(sgd({.momentum = -0.1}), Error);
  EXPECT_THROW(sgd({.weight_decay = -0.1}), Error);
  EXPECT_THROW(sgd({.momentum = 0.9, .dampening = 0.1, .nesterov = true}), Error);
  EXPECT_NO_THROW(sgd({.momentum = 0.9, .nesterov = true}));
}

// Whoever wrote the job file reads which key is wrong, and that it stands under [optimizer].
TEST(Optimizer, ARefusedOptionIsNamedWithItsValue) {
  const auto adamw = [](const AdamWOptions& options) {
    return error_text([&] { make_optimizer(two_slices(), options); });
  };
  const auto sgd = [](const SgdOptions& options) {
    return error_text([&] { make_optimizer(two_slices(), options); });
  };
  EXPECT_THAT(adamw({.beta1 = 1.5}), StartsWith("[optimizer] beta1=1.5: must lie in [0, 1)"));
  EXPECT_THAT(adamw({.beta2 = -0.5}), StartsWith("[optimizer] beta2=-0.5: must lie in [0, 1)"));
  EXPECT_THAT(adamw({.epsilon = -2}), StartsWith("[optimizer] epsilon=-2: must not be negative"));
  EXPECT_THAT(adamw({.weight_decay = -3}), StartsWith("[optimizer] weight_decay=-3: must not be"));
  EXPECT_THAT(sgd({.momentum = -4}), StartsWith("[optimizer] momentum=-4: must not be negative"));
  EXPECT_THAT(sgd({.weight_decay = -5}), StartsWith("[optimizer] weight_decay=-5: must not be"));
  EXPECT_THAT(sgd({.nesterov = true}),
              StartsWith("[optimizer] nesterov=1: needs momentum above 0"));
}

TEST(Optimizer, RefusesGradientsThatDoNotFit) {
  const auto optimizer = make_optimizer(two_slices(), AdamWOptions{});
  const at::Tensor bias = at::zeros({9}, at::kFloat);
  EXPECT_THROW(optimizer->step({at::zeros({5, 7}, at::kFloat).t(), bias}, 0.1), Error);
  EXPECT_THROW(optimizer->step({at::zeros({7, 5}, at::kDouble), bias}, 0.1), Error);
  EXPECT_THROW(optimizer->step({at::zeros({7, 5}, at::kFloat), bias, bias}, 0.1), Error);
  EXPECT_EQ(optimizer->updates(), (std::vector<std::int64_t>{0, 0}));
  EXPECT_THROW(optimizer->set_updates({1}), Error);
  const auto sgd = make_optimizer(two_slices(), SgdOptions{});
  EXPECT_THROW(sgd->step({at::zeros({7, 5}, at::kBFloat16), bias}, 0.1), Error);
}

TEST(Clipping, TakesWhatGradientsAre) {
  EXPECT_THROW(sum_of_squares({at::zeros({3}, at::kDouble)}), Error);
  EXPECT_THROW(sum_of_squares({at::zeros({3, 2}, at::kFloat).t()}), Error);
  EXPECT_EQ(sum_of_squares({at::Tensor()}), 0);
  EXPECT_EQ(sum_of_squares({at::zeros({0}, at::kFloat)}), 0);
  EXPECT_EQ(clip_factor(1, 1), 1);
  EXPECT_EQ(clip_factor(100, -1), 1);
  EXPECT_EQ(clip_factor(0, 1), 1);
}

TEST(Clipping, NormAndFactor) {
  const std::vector<at::Tensor> gradients{random("a", {300, 700}), at::Tensor(), random("b", {11})};
  const at::Tensor flat = at::cat({gradients[0].reshape({-1}), gradients[2]}).to(at::kDouble);
  const double expected = flat.pow(2).sum().sqrt().item<double>();
  const double norm = std::sqrt(sum_of_squares(gradients));
  EXPECT_NEAR(norm, expected, 1e-6 * expected);
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(100, 0), 1);
}

std::vector<Slice> in_type(std::vector<Slice> slices, at::ScalarType type) {
  for (Slice& slice : slices) slice.parameter = slice.parameter.to(type);
  return slices;
}

// With masters an update never sees the 16-bit parameter: the masters walk as a float32 run from
// the same start, bit for bit.
TEST(Storage, MastersWalkAsFloat32AndParametersAreTheirRounding) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto halves = in_type(two_slices(), type);
    const auto floats = in_type(halves, at::kFloat);
    const auto mixed = make_optimizer(halves, AdamWOptions{});
    const auto reference = make_optimizer(floats, AdamWOptions{});
    for (int step = 1; step <= 10; ++step) {
      mixed->step(gradients_of(step), 0.01);
      reference->step(gradients_of(step), 0.01);
    }
    for (std::size_t i = 0; i < halves.size(); ++i) {
      EXPECT_TRUE(mixed->master(i).equal(floats[i].parameter));
      EXPECT_TRUE(halves[i].parameter.equal(floats[i].parameter.to(type)));
      EXPECT_TRUE(reference->master(i).is_same(floats[i].parameter));
    }
    EXPECT_EQ(mixed->state_bytes() - reference->state_bytes(), (48 + 16) * 4)
        << "one float a parameter, in units of 64 bytes";
    mixed->master(0).fill_(1.0f / 3);
    mixed->copy_masters_to_parameters();
    EXPECT_TRUE(halves[0].parameter.equal(mixed->master(0).to(type)));
  }
}

TEST(Storage, ASliceOfAParameterUpdatesAsTheWholeDoes) {
  const Storage storage{.master = false, .moments = at::kBFloat16, .rounding = Key(3)};
  const at::Tensor start = random("p", {1000}).to(at::kBFloat16);
  const at::Tensor gradient = random("g", {1000}).to(at::kBFloat16);
  const at::Tensor whole = start.clone();
  const at::Tensor parts = start.clone();
  const auto one = make_optimizer({{"p", whole, true}}, AdamWOptions{}, storage);
  const auto two = make_optimizer(
      {{"p", parts.narrow(0, 0, 333), true}, {"p", parts.narrow(0, 333, 667), true, 333}},
      AdamWOptions{}, storage);
  for (int step = 0; step < 5; ++step) {
    one->step({gradient}, 0.01);
    two->step({gradient.narrow(0, 0, 333), gradient.narrow(0, 333, 667)}, 0.01);
  }
  EXPECT_TRUE(whole.equal(parts));
  EXPECT_FALSE(whole.equal(start));
  EXPECT_FALSE(one->master(0).defined());
}

Stored stored(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), comm::element_type(tensor.scalar_type())};
}

// The random numbers of a rounding are those of the slice's name and of the number of its update:
// two slices of equal values part, and so do two updates. Either the parameter or the moments are
// rounded.
TEST(Storage, RoundingDrawsFollowTheNameAndTheUpdate) {
  const AdamWOptions options;
  const at::Tensor gradient = random("g", {50});
  for (const bool parameter_rounds : {true, false}) {
    const at::ScalarType type = parameter_rounds ? at::kBFloat16 : at::kFloat;
    const at::ScalarType moments = parameter_rounds ? at::kFloat : at::kBFloat16;
    const at::Tensor start = random("p", {50}).to(type);
    const std::vector<Slice> slices{{"a", start.clone(), true}, {"b", start.clone(), true}};
    const auto optimizer =
        make_optimizer(slices, options, {.master = false, .moments = moments, .rounding = Key(3)});
    for (int step = 1; step <= 3; ++step) optimizer->step({gradient, gradient}, 0.01);
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const at::Tensor p = start.clone();
      const at::Tensor m = at::zeros({50}, moments);
      const at::Tensor v = at::zeros({50}, moments);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        const auto t = static_cast<double>(step);
        const AdamWFactors factors{.learning_rate = 0.01,
                                   .beta1 = options.beta1,
                                   .beta2 = options.beta2,
                                   .epsilon = options.epsilon,
                                   .weight_decay = options.weight_decay,
                                   .correction1 = 1 - std::pow(options.beta1, t),
                                   .correction2 = 1 - std::pow(options.beta2, t),
                                   .gradient_scale = 1};
        adamw_update({stored(p), {}, stored(gradient), stored(m), stored(v)}, 50, factors,
                     {Key(3).child(slices[i].name).child(step), 0});
      }
      EXPECT_TRUE(slices[i].parameter.equal(p)) << slices[i].name;
      EXPECT_TRUE(optimizer->states()[i].tensor.equal(m)) << slices[i].name;
      EXPECT_TRUE(optimizer->states()[2 + i].tensor.equal(v)) << slices[i].name;
    }
  }
}

// A part of the columns, of which this rank owns some elements only, rounds as the same elements of
// the whole matrix do.
TEST(Storage, AColumnCutUpdatesAsTheWholeDoes) {
  const Storage storage{.master = false, .moments = at::kBFloat16, .rounding = Key(3)};
  const at::Tensor values = (at::arange(60, at::kFloat) * 0.3).sin().view({6, 10});
  const at::Tensor gradient = (at::arange(60, at::kFloat) * 0.7).cos().view({6, 10});
  const auto updated = [&](const at::Tensor& part, const at::Tensor& slope, const Place& place) {
    const at::Tensor parameter = part.contiguous().to(at::kBFloat16);
    const auto optimizer = make_optimizer({{"w", parameter, true, place}}, AdamWOptions{}, storage);
    for (int step = 0; step < 3; ++step) optimizer->step({slope.contiguous()}, 1e-2);
    return parameter;
  };
  const at::Tensor whole = updated(values, gradient, {});
  // Columns 3 to 7, and of their 24 elements those from 2 to 21.
  const auto own = [](const at::Tensor& t) {
    return t.slice(1, 3, 7).contiguous().view({-1}).slice(0, 2, 21);
  };
  const Place place{.begin = 2, .width = 4, .stride = 10, .first = 3};
  EXPECT_TRUE(at::equal(updated(own(values), own(gradient), place), own(whole)));
  EXPECT_FALSE(at::equal(updated(own(values), own(gradient), {.begin = 2}), own(whole)))
      << "the place makes no difference: the test shows nothing";
}

// Each update in bf16 rounds once, at most 2^-7 relative, the next step's Adam step shrinks what
// came before: ten steps of 0.01 on values near 1 stay within ten roundings of the float32 run.
TEST(Storage, SixteenBitsThroughoutStayNearFloat32) {
  const auto halves = in_type(two_slices(), at::kBFloat16);
  const auto floats = in_type(halves, at::kFloat);
  const auto pure = make_optimizer(halves, AdamWOptions{},
                                   {.master = false, .moments = at::kBFloat16, .rounding = Key(8)});
  const auto reference = make_optimizer(floats, AdamWOptions{});
  for (int step = 1; step <= 10; ++step) {
    auto gradients = gradients_of(step);
    reference->step(gradients, 0.01);
    for (at::Tensor& gradient : gradients) gradient = gradient.to(at::kBFloat16);
    pure->step(gradients, 0.01);
  }
  for (std::size_t i = 0; i < halves.size(); ++i) {
    EXPECT_LT(largest(halves[i].parameter.to(at::kFloat) - floats[i].parameter),
              10 * 0x1p-7 * largest(floats[i].parameter));
  }
  for (const State& state : pure->states()) EXPECT_EQ(state.tensor.scalar_type(), at::kBFloat16);
}

// What the forecast of memory counts is told apart by who took it.
TEST(Storage, StatesAndMastersAreCountedAsTheOptimizers) {
  comm::run_on_threads({.size = 1, .memory_limit_bytes = std::size_t{1} << 28},
                       [](const comm::Group&) {
                         const auto in_use = [] {
                           return comm::installed_arena()
                               ->ledger()
                               .categories[static_cast<int>(MemoryCategory::kOptimizer)]
                               .in_use;
                         };
                         const auto before = in_use();
                         const at::Tensor p = at::zeros({10000}, at::kBFloat16);
                         EXPECT_EQ(in_use(), before);
                         const auto optimizer = make_optimizer({{"p", p, true}}, AdamWOptions{});
                         EXPECT_GE(in_use(), before + 3 * 4 * 10000);
                       });
}

TEST(Storage, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_THROW(make_optimizer(in_type(two_slices(), at::kHalf), AdamWOptions{}, {.master = false}),
               Error);
  EXPECT_THROW(make_optimizer(in_type(two_slices(), at::kBFloat16), SgdOptions{}), Error);
  EXPECT_THROW(make_optimizer(two_slices(), AdamWOptions{}, {.moments = at::kHalf}), Error);
  EXPECT_THROW(make_optimizer(in_type(two_slices(), at::kDouble), AdamWOptions{}), Error);
}

TEST(Clipping, GradientsOfSixteenBitsCountAsTheirValues) {
  const at::Tensor gradient = random("g", {70000}).to(at::kBFloat16);
  EXPECT_EQ(sum_of_squares({gradient}), sum_of_squares({gradient.to(at::kFloat)}));
}

}  // namespace
}  // namespace shoal::optim::optimizer_test
