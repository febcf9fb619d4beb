// Milliseconds of one training step of a named model on one rank: forward, backward, global-norm
// clipping, AdamW. Prints one JSON line.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/comm/allocator.h"
#include "shoal/nn/module.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"

namespace shoal {
namespace {

struct Choice {
  std::string model = "gpt2-124m";
  std::int64_t batch = 1, columns = 1024;
  int steps = 8, warmup = 2, threads = 1;
  bool arena = true;
};

at::Tensor random_tokens(std::int64_t batch, std::int64_t columns, std::int64_t vocab, Key key) {
  const at::Tensor tokens = at::empty({batch, columns}, at::kLong);
  std::int64_t* value = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i)
    value[i] = static_cast<std::int64_t>(key.below(i, vocab));
  return tokens;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Parts of a step, in milliseconds, one entry a step.
struct Times {
  std::vector<double> forward, backward, clip, update, whole;
};

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

double one_step(nn::Model& model, optim::Optimizer& optimizer, const at::Tensor& tokens, Key key,
                Times& times) {
  const std::int64_t columns = tokens.size(1) - 1;
  const auto start = Clock::now();
  nn::Context context;
  context.key = key;
  context.labels = tokens.narrow(1, 1, columns).contiguous();
  context.loss_scale = 1.0 / static_cast<double>(context.labels.numel());
  const at::Tensor loss = model(tokens.narrow(1, 0, columns).contiguous(), context);
  const auto forward = Clock::now();
  loss.backward();
  const auto backward = Clock::now();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model.parameters()) gradients.push_back(parameter->gradient());
  const double factor = optim::clip_factor(std::sqrt(optim::sum_of_squares(gradients)), 1.0);
  const auto clip = Clock::now();
  optimizer.step(gradients, 3e-4, factor);
  gradients.clear();
  model.clear_gradients();
  const auto end = Clock::now();
  times.forward.push_back(milliseconds(start, forward)),
      times.backward.push_back(milliseconds(forward, backward));
  times.clip.push_back(milliseconds(backward, clip)),
      times.update.push_back(milliseconds(clip, end));
  times.whole.push_back(milliseconds(start, end));
  return loss.item<double>();
}

void run(const Choice& choice) {
  at::set_num_threads(choice.threads);
  if (choice.arena) comm::install_arena(std::make_shared<wire::Arena>(wire::Arena::Options{}));
  const auto spec = model::named_model(choice.model);
  if (!spec)
    throw Error(ErrorKind::kUsage, "gpt2_step", fmt::format("no model '{}'", choice.model));
  const auto model = nn::make_model(*spec);
  model->materialize();
  const auto before = Clock::now();
  model->reset_parameters(Key(0));
  const double init = milliseconds(before, Clock::now());
  std::vector<optim::Slice> slices;
  for (const auto& parameter : model->parameters())
    slices.push_back({parameter->name(), parameter->tensor().detach(), parameter->decay()});
  const auto optimizer = optim::make_optimizer(
      std::move(slices), optim::AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1});
  double loss = 0;
  Times times;
  for (int step = 0; step < choice.warmup + choice.steps; ++step) {
    if (step == choice.warmup) times = {};
    const Key key = Key(1).child(static_cast<std::uint64_t>(step));
    loss = one_step(*model, *optimizer,
                    random_tokens(choice.batch, choice.columns + 1, spec->vocab, key), key, times);
  }
  fmt::print(
      "{{\"model\": \"{}\", \"batch\": {}, \"seq\": {}, \"threads\": {}, \"arena\": {}, "
      "\"ms_min\": {:.1f}, \"ms_median\": {:.1f}, \"forward_ms\": "
      "{:.1f}, "
      "\"backward_ms\": {:.1f}, \"clip_ms\": {:.1f}, \"update_ms\": {:.1f}, \"init_ms\": {:.0f}, "
      "\"loss\": {:.4f}}}\n",
      choice.model, choice.batch, choice.columns, choice.threads, choice.arena,
      *std::min_element(times.whole.begin(), times.whole.end()), median(times.whole),
      median(times.forward), median(times.backward), median(times.clip), median(times.update), init,
      loss);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  shoal::Choice choice;
  CLI::App app("Times one training step of a named model on one rank.");
  app.add_option("--model", choice.model, "a name of model::named_model");
  app.add_option("--batch", choice.batch, "sequences a step");
  app.add_option("--seq", choice.columns, "tokens a sequence");
  app.add_option("--steps", choice.steps, "steps that are timed");
  app.add_option("--warmup", choice.warmup, "steps before them");
  app.add_option("--threads", choice.threads, "threads of LibTorch");
  app.add_flag("!--no-arena", choice.arena, "LibTorch's own allocator");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::run(choice);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
