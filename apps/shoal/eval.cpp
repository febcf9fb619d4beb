#include <CLI/CLI.hpp>
#include <memory>

#include "apps/shoal/app_library.h"
#include "apps/shoal/command.h"
#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

void add_eval_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<EvalArguments>();
  CLI::App* command = program.add_subcommand("eval", "Measure the loss of a trained model");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "A step-<n> folder, a run directory (its newest checkpoint), a Hugging Face "
                   "folder, or a GGUF file")
      ->required();
  command->add_option("--split", options->split, "Which part of the data")
      ->check(CLI::IsMember({"train", "validation"}));
  command->add_option("--data", options->folders, "Other token data than the job's");
  command
      ->add_option(
          "--batches", options->batches,
          "Global batches of the job to read (of 8 sequences for an imported model); 0: the "
          "whole split")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--threads", options->threads, "Threads that compute; 0: all cores")
      ->check(CLI::Range(0, 4096));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &exit_code] {
    exit_code = AppLibrary().entry<int(const EvalArguments*)>("shoal_eval_main")(options.get());
  });
}

}  // namespace shoal::apps
