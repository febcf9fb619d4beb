// Gradients that a sharded step holds, at most.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "shoal/base/memory_category.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/world.h"
#include "shoal/parallel/shard/sharding.h"
#include "tests/parallel/tiny_training.h"

namespace shoal::parallel::sharding_memory_test {
namespace {

/// The most that gradients take in a step of two ranks, one of which lingers over every gradient.
double most_gradients(int in_flight,
                      std::chrono::milliseconds lingering = std::chrono::milliseconds(2)) {
  double most = 0;
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 30, .timeout = std::chrono::seconds(60)},
      [&](const comm::Group& world) {
        model::ModelSpec spec = tiny();
        spec.layers = 12;
        const auto model = nn::make_model(spec);
        const auto sharding = sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = 2}),
                                                    {.in_flight = in_flight});
        sharding->reset_parameters(Key(1));
        if (world.rank() == 1) {
          for (const auto& parameter : model->parameters()) {
            parameter->on_gradient_ready(
                [=](nn::Parameter&) { std::this_thread::sleep_for(lingering); });
          }
        }
        world.barrier();
        if (world.rank() == 0) comm::installed_arena()->reset_peaks();
        world.barrier();
        nn::Context context;
        const at::Tensor tokens = at::arange(16, at::kLong).view({1, 16});
        context.labels = tokens;
        sharding->begin(0, 1);
        (*model)(tokens, context).backward();
        sharding->finish();
        world.barrier();
        const auto ledger = comm::installed_arena()->ledger();
        if (world.rank() == 0) {
          most = static_cast<double>(
              ledger.categories[static_cast<int>(MemoryCategory::kGradients)].peak);
        }
      });
  return most;
}

/// Of a model in float32: all parameters, those of a block, those of the embedding.
struct Bytes {
  double all = 0, block = 0, embedding = 0;
};
Bytes bytes_of(const model::ModelSpec& spec) {
  Bytes sum;
  for (const model::ParameterSpec& parameter : model::parameters(spec)) {
    const double bytes = 4 * parameter.count();
    sum.all += bytes;
    if (parameter.name.starts_with("blocks.0.")) sum.block += bytes;
    if (parameter.name.starts_with("embedding.")) sum.embedding += bytes;
  }
  return sum;
}

// Each of two ranks has the whole gradient of the tied embedding, that of the block it is in, and
// as many on their way as it may; the shards of what has arrived are the whole model once.
TEST(ShardingMemory, GradientsOnTheirWayAreBounded) {
  model::ModelSpec spec = tiny();
  spec.layers = 12;
  const Bytes bytes = bytes_of(spec);
  const auto bound = [&](int flying) {
    return 1.01 * (bytes.all + 2 * bytes.embedding + 2 * (1 + flying) * bytes.block);
  };
  EXPECT_LT(most_gradients(1), bound(1));
  EXPECT_LT(most_gradients(2), bound(2));
  // The other rank may be held up longer than one lingers.
  double unbounded = 0;
  for (auto lingering = std::chrono::milliseconds(2);
       unbounded <= bound(2) && lingering < std::chrono::milliseconds(100); lingering *= 4)
    unbounded = most_gradients(100, lingering);
  EXPECT_GT(unbounded, bound(2)) << "no rank was ahead: the comparison would show nothing";
}

/// The most that gradients take in the second of two micro-batches of two ranks.
double most_sums(bool every_micro_batch) {
  double most = 0;
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 30, .timeout = std::chrono::seconds(60)},
      [&](const comm::Group& world) {
        model::ModelSpec spec = tiny();
        spec.layers = 24;
        const auto model = nn::make_model(spec);
        const auto sharding =
            sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = 2}),
                                  {.reduce_every_micro_batch = every_micro_batch});
        sharding->reset_parameters(Key(1));
        nn::Context context;
        const at::Tensor tokens = at::arange(16, at::kLong).view({1, 16});
        context.labels = tokens;
        for (int micro = 0; micro < 2; ++micro) {
          world.barrier();
          if (world.rank() == 0) comm::installed_arena()->reset_peaks();
          world.barrier();
          sharding->begin(micro, 2);
          (*model)(tokens, context).backward();
        }
        sharding->finish();
        world.barrier();
        const auto ledger = comm::installed_arena()->ledger();
        if (world.rank() == 0) {
          most = static_cast<double>(
              ledger.categories[static_cast<int>(MemoryCategory::kGradients)].peak);
        }
      });
  return most;
}

// Sums of the first micro-batch take those of the second in as they arrive: both ranks together
// hold every gradient once, and not twice; and each the tied embedding's, those of the block that
// it is in, and of three blocks what is on its way and what comes of it.
TEST(ShardingMemory, SumsOfMicroBatchesAreHeldOnce) {
  model::ModelSpec spec = tiny();
  spec.layers = 24;
  const auto [all, block, embedding] = bytes_of(spec);
  EXPECT_LT(most_sums(true), 1.01 * (all + 2 * embedding + 2 * (1 + 3 * 1.5) * block));
  EXPECT_GT(most_sums(false), 1.9 * all)
      << "whole gradients of both ranks: what the other does without";
}

}  // namespace
}  // namespace shoal::parallel::sharding_memory_test
