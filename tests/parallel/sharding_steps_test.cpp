// Steps that do not end with an update, and parameters that come from elsewhere.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <chrono>

#include "shoal/comm/world.h"
#include "shoal/parallel/shard/sharding.h"
#include "tests/parallel/branches.h"

namespace shoal::parallel::sharding_steps_test {
namespace {

using Copies = ShardingOptions::Copies;
using Maker = std::unique_ptr<Sharding> (*)(nn::Module&, const mesh::Mesh&, const ShardingOptions&);
constexpr Maker kMakers[] = {sharded_data_parallel, sharding_by_hand};
constexpr ShardStage kStages[] = {ShardStage::kOptimizer, ShardStage::kGradients,
                                  ShardStage::kParameters};

/// Calls `body` on three ranks for every implementation, stage and placement.
void on_every_kind(
    const std::function<void(const comm::Group&, Maker, const ShardingOptions&)>& body) {
  for (const Maker make : kMakers) {
    for (const ShardStage stage : kStages) {
      for (const Copies copies : {Copies::kShared, Copies::kCopied}) {
        comm::run_on_threads({.size = 3, .arena = false, .timeout = std::chrono::seconds(60)},
                             [&](const comm::Group& world) {
                               body(world, make, {.stage = stage, .copies = copies});
                             });
      }
    }
  }
}

// As when a gradient overflowed: the next step begins without it.
TEST(ShardingSteps, WhatASkippedStepLeavesIsForgotten) {
  on_every_kind([](const comm::Group& world, Maker make, const ShardingOptions& options) {
    Branches model(2);
    model.used = {0, 1};
    const auto sharding = make(model, mesh::Mesh(world, {.dp_shard = 3}), options);
    sharding->reset_parameters(Key(1));
    const at::Tensor expected = 3 * at::arange(3, at::kFloat) + 3;
    for (int step = 0; step < 3; ++step) {
      sharding->begin(0, 1);
      model(at::arange(3, at::kFloat) + world.rank(), nn::Context()).backward();
      sharding->finish();
      const auto gradients = sharding->gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const OwnedRange& range = sharding->owned()[i];
        EXPECT_TRUE(gradients[i].equal(expected.slice(0, range.begin, range.end)))
            << "step " << step << ", stage " << static_cast<int>(options.stage);
      }
      model.clear_gradients();
    }
  });
}

// As from a checkpoint: owners write what they own, frozen parameters too, and everybody sees it.
TEST(ShardingSteps, WhatOwnersWriteReachesEveryRank) {
  on_every_kind([](const comm::Group& world, Maker make, const ShardingOptions& options) {
    Branches model(3);
    model.parameters()[1]->set_requires_grad(false);
    const auto sharding = make(model, mesh::Mesh(world, {.dp_shard = 3}), options);
    sharding->reset_parameters(Key(1));
    const auto value_of = [&](const nn::Parameter& parameter) {
      return at::arange(3, at::kFloat) + 10 * (parameter.name().back() - '0') + 1;
    };
    sharding->begin_update();
    for (const OwnedRange& range : sharding->owned()) {
      range.values.copy_(
          value_of(*range.parameter).slice(0, range.begin, range.end).view(range.values.sizes()));
    }
    sharding->end_update();
    sharding->unshard();
    for (const auto& parameter : model.parameters()) {
      EXPECT_TRUE(parameter->tensor().detach().equal(value_of(*parameter)))
          << parameter->name() << ", stage " << static_cast<int>(options.stage);
    }
    world.barrier();
    sharding->reshard();
  });
}

}  // namespace
}  // namespace shoal::parallel::sharding_steps_test
