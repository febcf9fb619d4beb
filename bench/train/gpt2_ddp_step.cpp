// One rank of data-, tensor- and pipeline-parallel GPT-2 training: the step that `shoal train` runs
// (train::TrainingStep), from given weights on given tokens, so that its losses can be laid on
// those of bench/peers/torch_gpt2.py. Rank 0 prints one JSON line: milliseconds and loss of every
// step. bench/train_step_bench.py starts the ranks.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "bench/train/given_inputs.h"
#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/comm/world.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/pipeline/pipeline_events.h"
#include "shoal/plan/stage_sizes.h"
#include "shoal/plan/unit_costs.h"
#include "shoal/schedule/generators.h"
#include "shoal/train/step.h"

namespace shoal::bench {
namespace {

struct Choice {
  comm::WorldOptions world;
  std::string model = "gpt2-124m", init, tokens;
  std::int64_t batch = 1, columns = 1024;
  int steps = 8, warmup = 2, zero = 0, tensor = 1, pipeline = 1, micro_batches = 1;
  std::string schedule = "1f1b";
  bool tied = true, tcp = false;
};

/// As the peer's AdamW: one group, so that everything decays.
std::vector<optim::Slice> slices_that_all_decay(const parallel::GradientReduction& reduction) {
  std::vector<optim::Slice> slices = train::slices_of(reduction.owned());
  for (optim::Slice& slice : slices) slice.decay = true;
  return slices;
}

parallel::ApplyOptions options_of(const Choice& choice, const model::ModelSpec& spec) {
  parallel::ApplyOptions options;
  if (choice.zero > 0) {
    options.sharding = {.stage = static_cast<parallel::ShardStage>(choice.zero),
                        .wrapping = {},
                        .copies = parallel::ShardingOptions::Copies::kShared};
  }
  if (choice.pipeline == 1) return options;
  const bool in_a_v = choice.schedule == "zb-v" || choice.schedule == "dualpipe-v";
  const int chunks = in_a_v || choice.schedule == "interleaved" ? 2 : 1;
  options.table =
      schedule::make_schedule(choice.schedule, choice.pipeline, chunks, choice.micro_batches);
  options.units_of_stage =
      plan::balanced_stages(plan::unit_costs(spec, choice.columns), options.table.stages());
  return options;
}

/// Divides the model and gives it the weights of the file.
parallel::Applied apply(nn::Model& model, const mesh::Mesh& mesh, const Choice& choice,
                        const parallel::ApplyOptions& options) {
  parallel::Applied applied = parallel::apply(model, mesh, options);
  load_weights(model, choice.init);  // every rank the same, sharded: into the one copy
  if (applied.sharding != nullptr) applied.sharding->end_update();
  parallel::reduce_gradients(applied, model, mesh);
  return applied;
}

void run(const Choice& choice) {
  at::set_num_threads(1);
  const comm::Group group = comm::connect(choice.world);
  auto spec = model::named_model(choice.model);
  if (!spec) throw Error(ErrorKind::kUsage, "bench", fmt::format("no model '{}'", choice.model));
  spec->sequence = choice.columns;
  spec->tied_embeddings = choice.tied;
  const auto model = nn::make_model(*spec);
  const int divided = choice.tensor * choice.pipeline;
  SHOAL_USER_CHECK(group.size() % divided == 0, "bench", "{} ranks, --tensor {} --pipeline {}",
                   group.size(), choice.tensor, choice.pipeline);
  const mesh::Mesh mesh(
      group, {.pp = choice.pipeline, .dp_shard = group.size() / divided, .tp = choice.tensor});
  const parallel::ApplyOptions options = options_of(choice, *spec);
  const schedule::Schedule& table = options.table;
  const parallel::Applied applied = apply(*model, mesh, choice, options);
  const parallel::BatchShare share(mesh, choice.pipeline > 1 ? table.rank_of_stage.back() : 0);
  parallel::GradientReduction& reduction = *applied.reduction;
  const GivenTokens tokens(choice.tokens, share.ranks(), choice.batch, choice.columns);
  const auto optimizer = optim::make_optimizer(
      slices_that_all_decay(reduction), optim::AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1});
  train::TrainingStep step(*model, *optimizer, reduction, group, Key(0), nullptr, share);
  std::optional<parallel::Pipeline> pipeline;
  if (choice.pipeline > 1) {
    pipeline.emplace(mesh.along(mesh::Axis::kPipeline), table, applied.stages,
                     parallel::pipeline_events(reduction, applied.stages.local));
    step.run_through(*pipeline, *applied.tied);
  }

  std::vector<double> milliseconds;
  std::vector<double> losses;
  for (int i = 0; i < choice.warmup + choice.steps; ++i) {
    train::RankBatch batch{.micro_batches = {}, .first_sample = share.rank() * choice.batch};
    for (int micro = 0; micro < choice.micro_batches; ++micro) {
      batch.micro_batches.push_back(tokens.batch(i * choice.micro_batches + micro, share.rank()));
    }
    group.barrier();
    const auto start = Clock::now();
    const double labels = group.sum(train::count_labels(batch.micro_batches, share));
    const train::StepInput input{
        .step = i, .learning_rate = 3e-4, .clip_norm = 1, .labels = labels};
    losses.push_back(step.run(batch, input).loss);
    if (i >= choice.warmup) {
      milliseconds.push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  group.barrier();
  if (group.rank() == 0) {
    fmt::print("{{\"ms\": [{:.3f}], \"losses\": [{:.9g}]}}\n", fmt::join(milliseconds, ", "),
               fmt::join(losses, ", "));
  }
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Choice choice;
  CLI::App app("One rank of parallel GPT-2 training from given weights on given tokens.");
  app.add_option("--name", choice.world.name, "of the job, the same on all ranks")->required();
  app.add_option("--rank", choice.world.rank)->required();
  app.add_option("--world", choice.world.size, "ranks")->required();
  app.add_option("--model", choice.model, "a GPT-2 of model::named_model");
  app.add_option("--init", choice.init, "file of weights")->required();
  app.add_option("--tokens", choice.tokens, "file of tokens")->required();
  app.add_option("--batch", choice.batch, "sequences a rank");
  app.add_option("--seq", choice.columns, "tokens a sequence");
  app.add_option("--steps", choice.steps, "steps that are timed");
  app.add_option("--warmup", choice.warmup, "steps before them");
  app.add_option("--zero", choice.zero, "ZeRO stage; 0: none")->check(CLI::Range(0, 3));
  app.add_option("--tensor", choice.tensor, "ranks that divide the model, on the same tokens")
      ->check(CLI::Range(1, 64));
  app.add_option("--pipeline", choice.pipeline, "ranks that have stages of the model")
      ->check(CLI::Range(1, 64));
  app.add_option("--schedule", choice.schedule, "of the pipeline");
  app.add_option("--micro-batches", choice.micro_batches, "of --batch sequences a rank and step")
      ->check(CLI::Range(1, 1024));
  app.add_flag("!--untied", choice.tied, "head and embedding have weights of their own");
  app.add_flag("!--no-arena", choice.world.arena, "memory that peers do not see");
  app.add_flag("--tcp", choice.tcp, "between the ranks of one host, too");
  app.add_option("--rendezvous", choice.world.rendezvous, "where ranks of several hosts meet");
  app.add_option("--interface", choice.world.network.interface, "the network between them");
  CLI11_PARSE(app, argc, argv);
  choice.world.key = choice.world.name;
  if (choice.tcp) choice.world.transport = shoal::comm::Transport::kTcp;
  try {
    shoal::bench::run(choice);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_ddp_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
