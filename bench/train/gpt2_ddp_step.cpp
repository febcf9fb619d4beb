// One rank of data- and tensor-parallel GPT-2 training: the step that `shoal train` runs
// (train::TrainingStep), from given weights on given tokens, so that its losses can be laid on
// those of bench/peers/torch_gpt2.py. Rank 0 prints one JSON line: milliseconds and loss of every
// step. bench/train_step_bench.py starts the ranks.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/train/given_inputs.h"
#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/comm/world.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/parallel/tensor/tensor_parallel.h"
#include "shoal/train/step.h"

namespace shoal::bench {
namespace {

struct Choice {
  comm::WorldOptions world;
  std::string model = "gpt2-124m", init, tokens;
  std::int64_t batch = 1, columns = 1024;
  int steps = 8, warmup = 2, zero = 0, tensor = 1;
};

/// As the peer's AdamW: one group, so that everything decays.
std::vector<optim::Slice> slices_that_all_decay(const parallel::GradientReduction& reduction) {
  std::vector<optim::Slice> slices = train::slices_of(reduction.owned());
  for (optim::Slice& slice : slices) slice.decay = true;
  return slices;
}

/// Gives the model memory and the weights of the file.
std::unique_ptr<parallel::GradientReduction> reduction_of(nn::Model& model, const mesh::Mesh& mesh,
                                                          const Choice& choice) {
  parallel::split_tensors(model, mesh);
  if (choice.zero == 0) {
    model.materialize();
    load_weights(model, choice.init);
    return parallel::data_parallel_on(model, mesh);
  }
  auto sharding =
      parallel::sharded_data_parallel(model, mesh,
                                      {.stage = static_cast<parallel::ShardStage>(choice.zero),
                                       .wrapping = {},
                                       .copies = parallel::ShardingOptions::Copies::kShared});
  load_weights(model, choice.init);  // every rank the same, into the one copy
  sharding->end_update();
  return sharding;
}

void run(const Choice& choice) {
  at::set_num_threads(1);
  const comm::Group group = comm::connect(choice.world);
  auto spec = model::named_model(choice.model);
  if (!spec) throw Error(ErrorKind::kUsage, "bench", fmt::format("no model '{}'", choice.model));
  spec->sequence = choice.columns;
  const auto model = nn::make_model(*spec);
  SHOAL_USER_CHECK(group.size() % choice.tensor == 0, "bench", "{} ranks and --tensor {}",
                   group.size(), choice.tensor);
  const mesh::Mesh mesh(group, {.dp_shard = group.size() / choice.tensor, .tp = choice.tensor});
  const parallel::BatchShare share(mesh);
  const auto reduction = reduction_of(*model, mesh, choice);
  const GivenTokens tokens(choice.tokens, share.ranks(), choice.batch, choice.columns);
  const auto optimizer = optim::make_optimizer(
      slices_that_all_decay(*reduction), optim::AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1});
  train::TrainingStep step(*model, *optimizer, *reduction, group, Key(0), nullptr, share);

  std::vector<double> milliseconds;
  std::vector<double> losses;
  for (int i = 0; i < choice.warmup + choice.steps; ++i) {
    const train::RankBatch batch{.micro_batches = {tokens.batch(i, share.rank())},
                                 .first_sample = share.rank() * choice.batch};
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
  app.add_flag("!--no-arena", choice.world.arena, "memory that peers do not see");
  CLI11_PARSE(app, argc, argv);
  choice.world.key = choice.world.name;
  try {
    shoal::bench::run(choice);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_ddp_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
