#include "shoal/train/checkpoint_use.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "apps/shoal/torch/entry.h"

int shoal_generate_main(const shoal::apps::GenerateArguments* arguments) {
  using namespace shoal;
  if (arguments->threads > 0) at::set_num_threads(arguments->threads);
  const train::TrainedModel trained = train::open_trained(arguments->checkpoint);
  const train::GenerationOptions options{.tokens = arguments->tokens,
                                         .sampling = {.temperature = arguments->temperature,
                                                      .top_k = arguments->top_k,
                                                      .top_p = arguments->top_p},
                                         .cache = arguments->cache};
  const train::GeneratedText text = train::continuation(trained, arguments->prompt, options,
                                                        arguments->seed, arguments->probabilities);
  const std::vector<std::uint32_t> tokens = text.ids();
  if (arguments->json) {
    fmt::print("{}\n", train::to_json(text, *trained.tokenizer));
  } else {
    fmt::print("{}{}\n", arguments->prompt, trained.tokenizer->decode(tokens));
    if (arguments->probabilities > 0)
      fmt::print("\n{}", train::probability_table(text, *trained.tokenizer));
  }
  if (!arguments->check_copies.empty()) {
    fmt::print(stderr, "longest run of tokens that stands in the training text: {} of {}\n",
               train::longest_copy(trained, tokens, arguments->check_copies), tokens.size());
  }
  return 0;
}

int shoal_eval_main(const shoal::apps::EvalArguments* arguments) {
  using namespace shoal;
  if (arguments->threads > 0) at::set_num_threads(arguments->threads);
  const train::TrainedModel trained = train::open_trained(arguments->checkpoint);
  const train::Evaluation found =
      train::evaluate_split(trained, arguments->split, arguments->folders, arguments->batches);
  fmt::print("{}\n", arguments->json ? train::to_json(found)
                                     : fmt::format("{} split: {} ({} labels)", arguments->split,
                                                   train::describe(found), found.labels));
  return 0;
}

const char* shoal_torch_description() {
  static const std::string text = at::show_config() + at::get_parallel_info();
  return text.c_str();
}
