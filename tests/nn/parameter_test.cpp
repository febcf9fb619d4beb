#include "shoal/nn/parameter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>

#include "shoal/base/error.h"
#include "shoal/base/memory_category.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/world.h"
#include "shoal/ops/linear.h"

namespace shoal::nn::parameter_test {
namespace {

using Names = std::vector<std::string>;

std::unique_ptr<Parameter> made(std::vector<std::int64_t> shape, bool materialized = true) {
  auto parameter = std::make_unique<Parameter>(std::move(shape), model::Init::kNormal, 0.5, true);
  parameter->add_name("w");
  if (!materialized) return parameter;
  parameter->materialize();
  parameter->reset(Key(1));
  return parameter;
}

TEST(Parameter, NamesAreChangedInPlaceAndNeverDoubled) {
  const auto w = made({2}, false);
  w->add_name("w");
  w->add_name("tied");
  EXPECT_EQ(w->names(), (Names{"w", "tied"}));
  w->rename("w", "a.w");
  EXPECT_EQ(w->names(), (Names{"a.w", "tied"}));
  w->rename("tied", "a.w");
  EXPECT_EQ(w->names(), Names{"a.w"}) << "there already";
  w->rename("unknown", "b.w");
  EXPECT_EQ(w->names(), (Names{"a.w", "b.w"}));
  w->rename("b.w", "b.w");
  EXPECT_EQ(w->names(), (Names{"a.w", "b.w"}));
}

TEST(Parameter, ABoxLiesInItsTensor) {
  const auto w = made({4, 6}, false);
  w->set_layout({}, {{1, 0}, {4, 6}});
  EXPECT_EQ(w->tensor().sizes(), (std::vector<std::int64_t>{3, 6}));
  EXPECT_EQ(w->global_count(), 24);
  w->set_layout({}, {{2, 6}, {2, 6}});
  EXPECT_EQ(w->tensor().numel(), 0);
  EXPECT_THROW(w->set_layout({}, {{0}, {4}}), Error);
  EXPECT_THROW(w->set_layout({}, {{0, 0}, {4}}), Error);
  EXPECT_THROW(w->set_layout({}, {{-1, 0}, {4, 6}}), Error);
  EXPECT_THROW(w->set_layout({}, {{3, 0}, {2, 6}}), Error);
  EXPECT_THROW(w->set_layout({}, {{0, 0}, {4, 7}}), Error);
  EXPECT_THROW(w->reset(Key(1)), Error) << "it has no memory";
  w->materialize();
  EXPECT_THROW(w->set_layout({}, {{0, 0}, {4, 6}}), Error) << "it has memory";
  EXPECT_THROW(w->set_types(at::kBFloat16, at::kFloat), Error);
}

TEST(Parameter, InitialValuesAreNotRounded) {
  const auto exact = made({40});
  const auto half = made({40}, false);
  half->set_types(at::kBFloat16, at::kFloat);
  half->materialize();
  half->reset(Key(1));
  EXPECT_TRUE(half->initial(Key(1)).equal(exact->tensor().detach()));
  EXPECT_TRUE(half->tensor().detach().equal(exact->tensor().detach().to(at::kBFloat16)));
  EXPECT_EQ(half->gradient_type(), at::kFloat);
  EXPECT_FALSE(half->initial(Key(2)).equal(half->initial(Key(1))));
}

TEST(Parameter, ASinkHasTheFormOfTheGradient) {
  const auto w = made({2, 3});
  EXPECT_NO_THROW(w->set_sink(at::zeros({2, 3}, at::kFloat)));
  EXPECT_THROW(w->set_sink(at::zeros({3, 2}, at::kFloat)), Error);
  EXPECT_THROW(w->set_sink(at::zeros({3, 2}, at::kFloat).t()), Error);
  EXPECT_THROW(w->set_sink(at::zeros({2, 3}, at::kBFloat16)), Error);
  EXPECT_TRUE(w->sink().defined()) << "what is refused changes nothing";
  w->set_sink({});
  EXPECT_FALSE(w->sink().defined());
  const auto half = made({3}, false);
  half->set_tensor(at::zeros({3}, at::kBFloat16));
  EXPECT_EQ(half->gradient_type(), at::kBFloat16) << "it has the type of the memory";
  EXPECT_NO_THROW(half->set_sink(at::zeros({3}, at::kBFloat16)));
}

TEST(Parameter, AZeroGradientIsThereForTheOtherRanks) {
  const auto w = made({3});
  w->zero_gradient();
  EXPECT_TRUE(w->gradient().equal(at::zeros({3}, at::kFloat)));
  w->clear_gradient();
  EXPECT_FALSE(w->gradient().defined());
  const at::Tensor sink = at::full({3}, 99, at::kFloat);
  w->set_sink(sink);
  EXPECT_FALSE(w->gradient().defined());
  w->zero_gradient();
  EXPECT_TRUE(w->gradient().equal(at::zeros({3}, at::kFloat)));
  (w->tensor() * 2).sum().backward();
  EXPECT_TRUE(sink.equal(at::full({3}, 2, at::kFloat))) << "what follows is added";
}

TEST(Parameter, TheMemoryOfAGradientIsUsedAgain) {
  const auto w = made({2, 3});
  const at::Tensor x = at::ones({4, 3}, at::kFloat);
  const auto backward = [&] { ops::linear(x, w->weight()).sum().backward(); };
  backward();
  const void* memory = w->gradient().const_data_ptr();
  w->clear_gradient();
  backward();
  EXPECT_EQ(w->gradient().const_data_ptr(), memory);
  EXPECT_TRUE(w->gradient().equal(at::full({2, 3}, 4, at::kFloat))) << "and overwritten";
  backward();
  EXPECT_TRUE(w->gradient().equal(at::full({2, 3}, 8, at::kFloat)));
}

// The memory that clear_gradient kept is of the type that gradients had before.
TEST(Parameter, MemoryOfAnotherTypeGetsGradientsOfItsOwn) {
  const auto w = made({2, 3});
  const at::Tensor x = at::ones({4, 3}, at::kFloat);
  ops::linear(x, w->weight()).sum().backward();
  w->clear_gradient();
  w->set_tensor(at::zeros({2, 3}, at::kBFloat16));
  ops::linear(x, w->weight()).sum().backward();
  EXPECT_EQ(w->gradient().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(w->gradient().equal(at::full({2, 3}, 4, at::kBFloat16)));
}

TEST(Parameter, ANewSinkHoldsNoGradientYet) {
  const auto w = made({3});
  w->set_sink(at::zeros({3}, at::kFloat));
  w->tensor().sum().backward();
  EXPECT_TRUE(w->gradient().defined());
  const at::Tensor sink = at::full({3}, 99, at::kFloat);
  w->set_sink(sink);
  EXPECT_FALSE(w->gradient().defined());
  w->tensor().sum().backward();
  EXPECT_TRUE(sink.equal(at::ones({3}, at::kFloat))) << "it is overwritten";
}

TEST(Parameter, ATensorThatItHadBeforeReportsNothing) {
  const auto w = made({3});
  int ready = 0;
  w->on_gradient_ready([&](Parameter&) { ++ready; });
  const at::Tensor before = w->tensor();
  w->set_tensor(at::zeros({3}, at::kFloat));
  before.sum().backward();
  EXPECT_EQ(ready, 0);
  w->tensor().sum().backward();
  EXPECT_EQ(ready, 1);
}

TEST(Parameter, FrozenAndTrainedAgainItReportsOnce) {
  const auto w = made({3});
  int ready = 0;
  w->on_gradient_ready([&](Parameter&) { ++ready; });
  w->set_requires_grad(false);
  EXPECT_FALSE(w->tensor().requires_grad());
  w->set_requires_grad(true);
  w->tensor().sum().backward();
  EXPECT_EQ(ready, 1);
}

TEST(Parameter, AClearedGradientCountsNoUses) {
  const auto w = made({3});
  int ready = 0;
  w->on_gradient_ready([&](Parameter&) { ++ready; });
  w->set_expected_uses(2);
  w->tensor().sum().backward();
  w->clear_gradient();
  w->tensor().sum().backward();
  EXPECT_EQ(ready, 0);
  w->tensor().sum().backward();
  EXPECT_EQ(ready, 1);
}

TEST(Parameter, TheMakerOfASinkIsAskedOnceThereIsAGradient) {
  const auto w = made({3});
  const at::Tensor sink = at::full({3}, 99, at::kFloat);
  int asked = 0;
  w->on_sink_wanted([&] {
    ++asked;
    w->set_sink(sink);
  });
  EXPECT_EQ(asked, 0);
  w->tensor().sum().backward();
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(sink.equal(at::full({3}, 1, at::kFloat)));
  w->tensor().sum().backward();
  EXPECT_EQ(asked, 1) << "there is one";
  EXPECT_TRUE(sink.equal(at::full({3}, 2, at::kFloat)));
}

TEST(Parameter, ATensorThatOutlivesItIsAPlainLeaf) {
  at::Tensor tensor;
  {
    const auto w = made({3});
    tensor = w->tensor();
  }
  tensor.sum().backward();
  EXPECT_TRUE(tensor.grad().equal(at::full({3}, 1, at::kFloat)));
}

// What the forecast of memory counts is told apart by who took it.
TEST(Parameter, MemoryIsCountedAsParametersAndGradients) {
  comm::run_on_threads(
      {.size = 1, .memory_limit_bytes = std::size_t{1} << 28}, [](const comm::Group&) {
        const auto in_use = [](MemoryCategory category) {
          return comm::installed_arena()->ledger().categories[static_cast<int>(category)].in_use;
        };
        constexpr std::int64_t kRows = 300;
        constexpr std::uint64_t kBytes = kRows * kRows * 4;
        for (const bool by_operator : {true, false}) {
          const std::uint64_t parameters = in_use(MemoryCategory::kParameters);
          const std::uint64_t gradients = in_use(MemoryCategory::kGradients);
          const auto w = made({kRows, kRows});
          EXPECT_GE(in_use(MemoryCategory::kParameters), parameters + kBytes);
          EXPECT_LT(in_use(MemoryCategory::kGradients), gradients + kBytes);
          const at::Tensor x = at::ones({2, kRows}, at::kFloat);
          const at::Tensor y =
              by_operator ? ops::linear(x, w->weight()) : x.matmul(w->tensor().t());
          y.sum().backward();
          EXPECT_GE(in_use(MemoryCategory::kGradients), gradients + kBytes) << by_operator;
        }
        const std::uint64_t gradients = in_use(MemoryCategory::kGradients);
        const auto w = made({kRows, kRows});
        w->zero_gradient();
        EXPECT_GE(in_use(MemoryCategory::kGradients), gradients + kBytes) << "of zeros";
      });
}

}  // namespace
}  // namespace shoal::nn::parameter_test
