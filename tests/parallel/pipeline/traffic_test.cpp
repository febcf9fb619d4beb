// The bytes that a pipeline sends: its messages, against the planner's formula, and the gradients
// of weights that stages of several ranks use.
#include "shoal/plan/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/parallel/tensor/tensor_parallel.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::traffic_test {
namespace {

using schedule::Schedule;

constexpr std::int64_t kSamples = 2;

/// The planner's bytes for the busiest rank of a pipeline.
double planned_bytes(const model::ModelSpec& spec, const plan::Degrees& degrees,
                     const Schedule& table) {
  plan::Training training;
  training.degrees = degrees;
  training.schedule = table.name;
  training.virtual_stages = table.name == "interleaved" ? chunks_of(table.name) : 1;
  training.micro_batch = kSamples;
  training.global_batch = kSamples * table.micro_batches;
  training.sequence = kColumns;
  training.precision = "fp32";
  const int ranks = static_cast<int>(degrees.pp * degrees.tp);
  const auto all =
      plan::traffic(spec, training, plan::with_devices(*plan::cluster_preset("a100"), ranks));
  const auto found = std::find_if(all.begin(), all.end(), [](const plan::Traffic& traffic) {
    return traffic.technique == "pipeline";
  });
  return found == all.end() ? 0 : found->bytes;
}

/// Messages of a rank for one micro-batch: an activation from each of its stages that another rank
/// goes on with, and a gradient from each that another rank has begun with.
struct MessageCount {
  int activations = 0;
  int gradients = 0;
};
MessageCount messages_of(const Schedule& table, int rank) {
  MessageCount count;
  for (int stage = 0; stage < table.stages(); ++stage) {
    if (table.rank_of_stage[stage] != rank) continue;
    if (stage + 1 < table.stages() && table.rank_of_stage[stage + 1] != rank) ++count.activations;
    if (stage > 0 && table.rank_of_stage[stage - 1] != rank) ++count.gradients;
  }
  return count;
}

TEST(PipelineTraffic, EveryScheduleSendsWhatThePlannerCounts) {
  const auto spec = tiny_spec("llama-tiny", false);
  for (const plan::Degrees& degrees :
       std::vector<plan::Degrees>{{.pp = 2}, {.pp = 3}, {.pp = 2, .tp = 2}}) {
    const int p = static_cast<int>(degrees.pp);
    const int ranks = static_cast<int>(degrees.pp * degrees.tp);
    std::vector<Schedule> tables;
    for (const std::string& name : schedule::schedule_names())
      tables.push_back(schedule::make_schedule(name, p, chunks_of(name), 2 * p));
    comm::run_on_threads(threads(ranks), [&](const comm::Group& world) {
      const mesh::Mesh mesh(world, degrees);
      const comm::Group& pipe = mesh.along(mesh::Axis::kPipeline);
      for (const Schedule& table : tables) {
        const auto model = nn::make_model(spec);
        if (degrees.tp > 1) split_tensors(*model, mesh);
        Stages stages = cut_stages(*model, table, even_stages(8, table.stages()), pipe.rank());
        fill(*model);
        Pipeline pipeline(pipe, table, std::move(stages));
        auto batch = step_of(table.micro_batches, 0, kSamples);
        const BatchShare share(mesh, table.rank_of_stage.back());
        for (MicroBatch& one : batch) one.context.stream = share.stream(one.input);
        const auto sent = [&](const auto& run) {
          const double before = pipe.bytes_sent();
          run();
          return pipe.bytes_sent() - before;
        };
        const double trained = sent([&] { pipeline.run(batch); });
        const double evaluated = sent([&] { pipeline.evaluate(batch); });
        // The rows of the stream of one tensor-parallel rank, in float32.
        const double message = 4.0 * kSamples * kColumns * spec.hidden / degrees.tp;
        const auto [activations, gradients] = messages_of(table, pipe.rank());
        EXPECT_EQ(trained, table.micro_batches * (activations + gradients) * message)
            << table.name << " rank " << world.rank() << " of " << ranks;
        EXPECT_EQ(evaluated, table.micro_batches * activations * message) << table.name;
        // The planner tells what the busiest rank sends.
        int most = 0;
        for (int rank = 0; rank < p; ++rank) {
          const auto other = messages_of(table, rank);
          most = std::max(most, other.activations + other.gradients);
        }
        EXPECT_EQ(planned_bytes(spec, degrees, table), table.micro_batches * most * message)
            << table.name << " on " << ranks << " ranks";
      }
    });
  }
}

struct TieCase {
  plan::Degrees degrees;
  int zero = 0;
};

/// Bytes that a rank sends for tied weights at the end of a step.
double sent_for_ties(const comm::Group& world, const mesh::Mesh& mesh, const model::ModelSpec& spec,
                     const Schedule& table, const TieCase& c) {
  const auto model = nn::make_model(spec);
  ApplyOptions options{.table = table, .units_of_stage = even_stages(8, table.stages())};
  if (c.zero > 0)
    options.sharding = ShardingOptions{.stage = static_cast<ShardStage>(c.zero), .alone = {}};
  Applied applied = apply(*model, mesh, options);
  applied.reset_parameters(*model, Key(1));
  reduce_gradients(applied, *model, mesh);
  Pipeline pipeline(mesh.along(mesh::Axis::kPipeline), table, applied.stages,
                    pipeline_events(*applied.reduction, applied.stages.local));
  auto batch = step_of(table.micro_batches, 0, kSamples);
  const BatchShare share(mesh, table.rank_of_stage.back());
  for (MicroBatch& one : batch) one.context.stream = share.stream(one.input);
  pipeline.run(batch);
  applied.reduction->finish();
  std::vector<at::Tensor> gradients = applied.reduction->gradients();
  const double before = world.bytes_sent();
  applied.tied->reduce(applied.owned(*model, mesh), gradients);
  return world.bytes_sent() - before;
}

// Two ranks hold the table, the first stage's and the last stage's. Of an all-reduce each of two
// sends as much as it has: 8 bytes that say whether it has a gradient, and what it has of the
// table. Ranks in between send nothing, nor does a rank that has both stages (those in a V).
TEST(PipelineTraffic, TiedWeightsSendTheirGradientOnceAStep) {
  auto spec = tiny_spec("gpt2-tiny", true);
  spec.vocab = 32;  // two ranks divide it, in whole cache lines
  for (const TieCase& c : std::vector<TieCase>{{{.pp = 2}},
                                               {{.pp = 3}},
                                               {{.pp = 4}},
                                               {{.pp = 2, .tp = 2}},
                                               {{.pp = 2, .dp_shard = 2}},
                                               {{.pp = 2, .dp_shard = 2}, 1},
                                               {{.pp = 2, .dp_shard = 2}, 2}}) {
    const int p = static_cast<int>(c.degrees.pp);
    const auto parts = static_cast<double>(c.degrees.tp * (c.zero > 0 ? c.degrees.dp_shard : 1));
    comm::run_on_threads(
        threads(static_cast<int>(c.degrees.ranks())), [&](const comm::Group& world) {
          const mesh::Mesh mesh(world, c.degrees);
          for (const std::string& name : schedule::schedule_names()) {
            const Schedule table = schedule::make_schedule(name, p, chunks_of(name), 2 * p);
            const int rank = mesh.coordinate(mesh::Axis::kPipeline);
            const bool first = table.rank_of_stage.front() == rank;
            const bool last = table.rank_of_stage.back() == rank;
            const double gradient = 4.0 * 32 * static_cast<double>(spec.hidden) / parts;
            EXPECT_EQ(sent_for_ties(world, mesh, spec, table, c), first != last ? 8 + gradient : 0)
                << name << " rank " << world.rank() << " of " << world.size() << ", zero "
                << c.zero;
          }
        });
  }
}

}  // namespace
}  // namespace shoal::parallel::traffic_test
