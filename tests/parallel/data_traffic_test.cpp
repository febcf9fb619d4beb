// What data parallelism and its shards send in a step, against the planner's formulas.
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/comm/world.h"
#include "shoal/nn/module.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/plan/traffic.h"

namespace shoal::parallel::data_traffic_test {
namespace {

constexpr int kMicroBatches = 2;

/// Sizes that every number of ranks here divides in whole cache lines: nothing is padded.
model::ModelSpec lined_spec() {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  spec.layers = 2;
  spec.hidden = 192;
  spec.heads = spec.kv_heads = 2;
  spec.head_size = 96;
  spec.ffn = 384;
  spec.vocab = 192;
  spec.sequence = 192;
  spec.dropout = 0;
  return spec;
}

struct Combination {
  int stage = 0;
  plan::Degrees degrees;
  bool every_micro_batch = false;
  bool reshard = true;
};

/// Bytes that a rank sends in a step which is not the first.
double sent_in_a_step(const Combination& way) {
  const model::ModelSpec spec = lined_spec();
  double bytes = 0;
  const comm::WorldOptions options{.size = static_cast<int>(way.degrees.ranks()),
                                   .arena = false,
                                   .timeout = std::chrono::seconds(30)};
  comm::run_on_threads(options, [&](const comm::Group& world) {
    const mesh::Mesh mesh(world, way.degrees);
    const auto model = nn::make_model(spec);
    std::unique_ptr<GradientReduction> reduction;
    if (way.stage == 0) {
      model->materialize();
      model->reset_parameters(Key(1));
      reduction = data_parallel_on(*model, mesh);
    } else {
      auto sharding = sharded_data_parallel(*model, mesh,
                                            {.stage = static_cast<ShardStage>(way.stage),
                                             .reshard_after_forward = way.reshard,
                                             .reduce_every_micro_batch = way.every_micro_batch,
                                             .copies = ShardingOptions::Copies::kCopied,
                                             .alone = {}});
      sharding->reset_parameters(Key(1));
      reduction = std::move(sharding);
    }
    nn::Context context;
    const at::Tensor tokens = at::arange(8, at::kLong).view({1, 8});
    context.labels = tokens;
    for (int step = 0; step < 2; ++step) {
      const double before = world.bytes_sent();
      for (int i = 0; i < kMicroBatches; ++i) {
        reduction->begin(i, kMicroBatches);
        (*model)(tokens, context).backward();
        reduction->end_backward();
      }
      reduction->finish();
      reduction->begin_update();
      reduction->end_update();
      model->clear_gradients();
      if (world.rank() == 0) bytes = world.bytes_sent() - before;
    }
  });
  return bytes;
}

double planned(const Combination& way) {
  plan::Training training;
  training.degrees = way.degrees;
  training.zero_stage = way.stage;
  training.micro_batch = 1;
  training.global_batch = way.degrees.dp() * kMicroBatches;
  training.sequence = 8;
  training.precision = "fp32";
  training.reduce_every_micro_batch = way.every_micro_batch;
  training.reshard_after_forward = way.reshard;
  plan::Cluster cluster = *plan::cluster_preset("cpu");
  cluster.devices_per_host = way.degrees.ranks();
  double sum = 0;
  for (const plan::Traffic& one : plan::traffic(lined_spec(), training, cluster)) sum += one.bytes;
  return sum;
}

/// What a step sends beyond the formulas. Ranks may use different parameters, so with every
/// reduction a map of one byte for each is summed. In ZeRO-3 the formulas gather all units twice,
/// but the head, with which backward begins, is still there, and so is the embedding that it shares
/// its weight with.
double beyond(const Combination& way) {
  const model::ModelSpec spec = lined_spec();
  const double ranks = static_cast<double>(way.degrees.ranks());
  const double reductions = way.every_micro_batch ? kMicroBatches : 1;
  const double maps =
      reductions * 2 * (ranks - 1) / ranks * static_cast<double>(model::parameters(spec).size());
  if (way.stage < 3 || !way.reshard) return maps;
  const double embedding = static_cast<double>((spec.vocab + spec.sequence) * spec.hidden);
  const double norm = 2 * static_cast<double>(spec.hidden);
  const double shards = static_cast<double>(way.degrees.dp_shard);
  return maps - kMicroBatches * (shards - 1) / shards * 4 * (embedding + norm);
}

TEST(DataTraffic, IsThatOfTheFormulas) {
  for (const int ranks : {2, 3, 4}) {
    const plan::Degrees shards{.dp_shard = ranks};
    std::vector<Combination> ways{{0, {.dp_replicate = ranks}}};
    for (const int stage : {1, 2, 3}) ways.push_back({stage, shards});
    for (const int stage : {2, 3}) ways.push_back({stage, shards, true});
    ways.push_back({3, shards, false, false});
    if (ranks == 4) {
      const plan::Degrees hybrid{.dp_replicate = 2, .dp_shard = 2};
      for (const int stage : {1, 2, 3}) ways.push_back({stage, hybrid});
      for (const int stage : {2, 3}) ways.push_back({stage, hybrid, true});
    }
    for (const Combination& way : ways) {
      EXPECT_DOUBLE_EQ(sent_in_a_step(way), planned(way) + beyond(way))
          << fmt::format("zero={} ranks={} every={} reshard={}", way.stage, ranks,
                         way.every_micro_batch, way.reshard);
    }
  }
}

}  // namespace
}  // namespace shoal::parallel::data_traffic_test
