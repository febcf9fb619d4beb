// Gradients that a sharded step holds, at most.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "shoal/base/memory_category.h"
#include "shoal/comm/allocator.h"
#include "shoal/comm/world.h"
#include "shoal/parallel/shard/sharding.h"
#include "tests/parallel/tiny_training.h"

namespace shoal::parallel::sharding_memory_test {
namespace {

/// Returns the most that gradients take in the last of some micro-batches of two ranks. `prepare`
/// is called on each with its model.
double most_gradients(int layers, const ShardingOptions& options, int micro_batches,
                      const std::function<void(nn::Model&, int rank)>& prepare) {
  double most = 0;
  comm::run_on_threads(
      {.size = 2, .memory_limit_bytes = std::size_t{1} << 30, .timeout = std::chrono::seconds(60)},
      [&](const comm::Group& world) {
        model::ModelSpec spec = tiny();
        spec.layers = layers;
        const auto model = nn::make_model(spec);
        const auto sharding =
            sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = 2}), options);
        sharding->reset_parameters(Key(1));
        prepare(*model, world.rank());
        nn::Context context;
        const at::Tensor tokens = at::arange(16, at::kLong).view({1, 16});
        context.labels = tokens;
        for (int micro = 0; micro < micro_batches; ++micro) {
          world.barrier();
          if (world.rank() == 0) comm::installed_arena()->reset_peaks();
          world.barrier();
          sharding->begin(micro, micro_batches);
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

/// One of the ranks lingers over every gradient.
double most_gradients(int in_flight,
                      std::chrono::milliseconds lingering = std::chrono::milliseconds(2)) {
  return most_gradients(12, {.in_flight = in_flight}, 1, [=](nn::Model& model, int rank) {
    if (rank != 1) return;
    for (const auto& parameter : model.parameters()) {
      parameter->on_gradient_ready([=](nn::Parameter&) { std::this_thread::sleep_for(lingering); });
    }
  });
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

/// The second of two micro-batches adds to the sums of the first one.
double most_sums(bool every_micro_batch) {
  return most_gradients(24, {.reduce_every_micro_batch = every_micro_batch}, 2,
                        [](nn::Model&, int) {});
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
