#include "shoal/optim/undo_log.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "shoal/base/philox.h"

namespace shoal::optim::undo_log_test {
namespace {

at::Tensor random(const std::string& name, at::IntArrayRef shape, at::ScalarType type) {
  const Key key = Key(5).child(name);
  const at::Tensor t = at::empty(shape, at::kFloat);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data_ptr<float>()[i] = static_cast<float>(key.normal(i));
  return t.to(type);
}

struct Case {
  const char* name;
  at::ScalarType type;
  Options options;
  Storage storage;
};

std::vector<Case> cases() {
  return {
      {"AdamW", at::kFloat, AdamWOptions{}, {}},
      {"masters", at::kBFloat16, AdamWOptions{}, {}},
      {"stochastic", at::kBFloat16, AdamWOptions{}, {.master = false, .moments = at::kBFloat16}},
      {"SGD", at::kFloat, SgdOptions{.momentum = 0.9}, {}}};
}

/// Everything that an update may change.
std::vector<at::Tensor> values_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < optimizer.slices().size(); ++i) {
    values.push_back(optimizer.slices()[i].parameter.clone());
    if (optimizer.master(i).defined()) values.push_back(optimizer.master(i).clone());
  }
  for (const State& state : optimizer.states()) values.push_back(state.tensor.clone());
  return values;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) return false;
  return true;
}

// The larger slice has more than a block of a copy, so that several threads take parts of it.
TEST(UndoLog, AnUpdateIsTakenBackAndComesAgainWithTheSameBits) {
  for (const Case& one : cases()) {
    const std::vector<Slice> slices{{"large", random("large", {700, 601}, one.type), true, {}},
                                    {"small", random("small", {9}, one.type), false, {}},
                                    {"nothing", random("nothing", {0}, one.type), false, {}}};
    const auto optimizer = make_optimizer(slices, one.options, one.storage);
    const std::vector<at::Tensor> gradients{random("a", {700, 601}, at::kFloat),
                                            random("b", {9}, at::kFloat),
                                            random("c", {0}, at::kFloat)};
    optimizer->step(gradients, 0.01);
    UndoLog log(*optimizer);
    const auto before = values_of(*optimizer);
    const auto counts = optimizer->updates();
    log.record();
    optimizer->step(gradients, 0.02);
    const auto after = values_of(*optimizer);
    ASSERT_FALSE(equal(before, after)) << one.name;
    log.restore();
    EXPECT_TRUE(equal(values_of(*optimizer), before)) << one.name;
    EXPECT_EQ(optimizer->updates(), counts) << one.name;
    optimizer->step(gradients, 0.02);
    EXPECT_TRUE(equal(values_of(*optimizer), after)) << one.name;
    // A later record replaces the first.
    log.record();
    optimizer->step(gradients, 0.03);
    log.restore();
    EXPECT_TRUE(equal(values_of(*optimizer), after)) << one.name;
  }
}

}  // namespace
}  // namespace shoal::optim::undo_log_test
