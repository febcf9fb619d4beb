// Shards over two "hosts" of two ranks each: processes that share memory inside a host and speak
// TCP between them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "shoal/base/memory_category.h"
#include "shoal/collective/hierarchy/hierarchical_communicator.h"
#include "shoal/comm/allocator.h"
#include "shoal/parallel/activation_checkpoint.h"
#include "tests/comm/rank_processes.h"
#include "tests/parallel/tiny_training.h"

namespace shoal::parallel::sharding_on_hosts_test {
namespace {

using Copies = ShardingOptions::Copies;
constexpr ShardStage kStages[] = {ShardStage::kOptimizer, ShardStage::kGradients,
                                  ShardStage::kParameters};

bool on_two_hosts(const std::function<bool(const comm::Group&)>& body) {
  return comm::on_processes(4, comm::at_a_file(), body, 2);
}

/// Says on which rank what is wrong; true when nothing is.
bool expect(bool good, const comm::Group& world, const std::string& what) {
  if (!good) std::fprintf(stderr, "rank %d: %s\n", world.rank(), what.c_str());
  return good;
}

Result sharded(
    const comm::Group& world, int replicas, const ShardingOptions& options, int micro_batches,
    const Preparation& prepare = [](nn::Model&) {}) {
  const auto model = nn::make_model(tiny());
  prepare(*model);
  const auto sharding = sharded_data_parallel(
      *model, mesh::Mesh(world, {.dp_replicate = replicas, .dp_shard = world.size() / replicas}),
      options);
  sharding->reset_parameters(Key(1));
  Result result = train(*model, *sharding, world, micro_batches);
  // Twice, so that what the first took and gave back is taken again.
  for (int i = 0; i < 2; ++i) {
    sharding->unshard();
    if (i == 1) keep_weights(*model, result);
    world.barrier();
    sharding->reshard();
  }
  return result;
}

TEST(ShardingOnHosts, EveryStageTrainsAsOneRank) {
  EXPECT_TRUE(on_two_hosts([](const comm::Group& world) {
    const Result reference = alone();
    bool good = expect(reference.losses.back() < reference.losses.front() - 0.5, world,
                       "nothing was learnt: the comparison would show nothing");
    const auto check = [&](const std::string& what, int replicas, const ShardingOptions& options,
                           int micro, const Preparation& prepare) {
      const std::string apart =
          difference(sharded(world, replicas, options, micro, prepare), reference);
      good = expect(apart.empty(), world, what + ": " + apart) && good;
    };
    const auto plain = [](nn::Model&) {};
    for (const ShardStage stage : kStages) {
      const std::string name = fmt::format("stage {}", static_cast<int>(stage));
      check(name, 1, {.stage = stage, .copies = Copies::kShared}, 1, plain);
      check(name + " copied", 1, {.stage = stage, .copies = Copies::kCopied}, 3, plain);
      check(name + " hybrid, shards on one host", 2, {.stage = stage}, 3, plain);
    }
    check("gathered far ahead", 1,
          {.ahead = 3, .reshard_after_forward = false, .copies = Copies::kShared}, 3, plain);
    check("small units", 1,
          {.wrapping = {.by = Wrapping::By::kSize, .parameters = 2000}, .ahead = 2}, 1, plain);
    check("recomputed", 1, {}, 3, [](nn::Model& model) {
      checkpoint_activations(model, {model::Keep::kInput, model::Keep::kProducts});
    });
    return good;
  }));
}

/// Large enough that headers of messages count little.
model::ModelSpec larger() {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  spec.layers = 6, spec.hidden = 256, spec.heads = 4, spec.kv_heads = 4, spec.head_size = 64,
  spec.ffn = 1024, spec.vocab = 512, spec.sequence = 16;
  return spec;
}

/// Bytes that this rank has sent to other hosts, in all groups.
double sent(const comm::Group& world) {
  return static_cast<double>(
      dynamic_cast<const collective::HierarchicalCommunicator&>(*world.communicator())
          .bytes_between_hosts_of_all());
}

struct Step {
  double bytes = 0;       ///< that cross between hosts in one step
  double parameters = 0;  ///< most that the rank holds of them in it
};

/// The second step, when all memory is taken.
Step measure(const comm::Group& world, const ShardingOptions& options, double& least) {
  const auto model = nn::make_model(larger());
  const auto sharding =
      sharded_data_parallel(*model, mesh::Mesh(world, {.dp_shard = world.size()}), options);
  sharding->reset_parameters(Key(1));
  sharding->begin_update();
  sharding->end_update();
  const auto arena = comm::installed_arena();
  const at::Tensor tokens = at::arange(16, at::kLong).view({1, 16});
  nn::Context context;
  context.labels = tokens;
  Step step;
  for (int i = 0; i < 2; ++i) {
    world.barrier();
    arena->reset_peaks();
    const double before = sent(world);
    sharding->begin(0, 1);
    (*model)(tokens, context).backward();
    sharding->finish();
    sharding->begin_update();
    sharding->end_update();
    model->clear_gradients();
    step.parameters = static_cast<double>(
        arena->ledger().categories[static_cast<int>(MemoryCategory::kParameters)].peak);
    step.bytes = world.sum(sent(world) - before);
  }
  // Each host sends half of a gradient to the other, and half of a unit as often as it is gathered.
  least = 0;
  for (const auto& parameter : model->parameters()) {
    const double bytes = 4 * static_cast<double>(parameter->global_count());
    least += bytes * (1 + (options.stage == ShardStage::kParameters ? 0 : 1));
  }
  if (options.stage != ShardStage::kParameters) return step;
  // The table's units lie in the order of the model's: embedding, blocks, head.
  std::vector<double> units(static_cast<std::size_t>(larger().layers) + 2);
  for (const model::ParameterSpec& parameter : model::parameters(larger())) {
    const std::string& name = parameter.name;
    const std::size_t unit = name.starts_with("embedding.") ? 0
                             : name.starts_with("blocks.")  ? std::stoul(name.substr(7)) + 1
                                                            : units.size() - 1;
    units[unit] += 4 * parameter.count();
  }
  for (const auto& action : sharding->table()) {
    if (action.step == schedule::ShardStep::kGather) {
      least += units.at(static_cast<std::size_t>(action.index)) *
               (options.transfer_type == at::kFloat ? 1 : 0.5);
    }
  }
  return step;
}

// The least: of every gather each host gets what the other owns, once; of every gradient each host
// gets one sum of the other's.
TEST(ShardingOnHosts, OnlyWhatIsMissingCrossesAndOncePerHost) {
  EXPECT_TRUE(on_two_hosts([](const comm::Group& world) {
    bool good = true;
    for (const ShardStage stage : kStages) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        if (type != at::kFloat && stage != ShardStage::kParameters) continue;
        double least = 0;
        const Step step = measure(world, {.stage = stage, .transfer_type = type}, least);
        good = expect(step.bytes <= 1.05 * least && step.bytes >= least, world,
                      fmt::format("stage {}: {} bytes cross, at least {} must",
                                  static_cast<int>(stage), step.bytes, least)) &&
               good;
      }
    }
    return good;
  }));
}

// In stage 3 four ranks hold a quarter each and what is gathered; in the others everything. Two
// ranks of a host hold the latter once together.
TEST(ShardingOnHosts, WhatIsGatheredExistsOncePerHost) {
  EXPECT_TRUE(on_two_hosts([](const comm::Group& world) {
    bool good = true;
    for (const ShardStage stage : kStages) {
      double ignored = 0;
      const Step copied = measure(world, {.stage = stage, .copies = Copies::kCopied}, ignored);
      const Step shared = measure(world, {.stage = stage}, ignored);
      double all = 0;
      for (const model::ParameterSpec& parameter : model::parameters(larger()))
        all += 4 * parameter.count();
      const double own = stage == ShardStage::kParameters ? all / 4 : 0;
      good =
          expect(shared.parameters - own < 0.6 * (copied.parameters - own), world,
                 fmt::format("stage {}: {} bytes where copies are {}, of {}",
                             static_cast<int>(stage), shared.parameters, copied.parameters, all)) &&
          good;
    }
    return good;
  }));
}

}  // namespace
}  // namespace shoal::parallel::sharding_on_hosts_test
