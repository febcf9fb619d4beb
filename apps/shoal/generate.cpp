#include <CLI/CLI.hpp>
#include <memory>

#include "apps/shoal/app_library.h"
#include "apps/shoal/command.h"
#include "apps/shoal/option_checks.h"
#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

void add_generate_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<GenerateArguments>();
  auto no_cache = std::make_shared<bool>(false);
  CLI::App* command = program.add_subcommand("generate", "Continue a prompt with a trained model");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "A step-<n> folder, a run directory (its newest checkpoint), a Hugging Face "
                   "folder, or a GGUF file")
      ->required();
  command->add_option("--prompt", options->prompt, "What is continued")->required();
  command->add_option("--tokens", options->tokens, "How many tokens to add")
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--temperature", options->temperature,
                   "Above 1 bolder, below 1 safer; 0: always the likeliest")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", options->top_k, "Choose among the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--top-p", options->top_p,
                   "Choose among the likeliest that together have this probability")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", options->seed, "The same seed gives the same text")
      ->check(not_negative());
  command
      ->add_option("--probabilities", options->probabilities,
                   "Show the k most probable tokens at each step, before temperature, top-k and "
                   "top-p")
      ->check(CLI::Range(0, 1 << 24));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_option("--threads", options->threads, "Threads that compute; 0: all cores")
      ->check(CLI::Range(0, 4096));
  command->add_option("--check-copies", options->check_copies,
                      "A token data set: report the longest run of tokens that its training split "
                      "contains too");
  command->add_flag("--no-cache", *no_cache,
                    "Compute every position anew for each token; slower, the same text");
  command->callback([options, no_cache, &exit_code] {
    options->cache = !*no_cache;
    exit_code =
        AppLibrary().entry<int(const GenerateArguments*)>("shoal_generate_main")(options.get());
  });
}

}  // namespace shoal::apps
