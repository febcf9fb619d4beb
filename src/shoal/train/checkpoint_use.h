#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/data/tokenizer.h"
#include "shoal/nn/module.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/evaluation.h"
#include "shoal/train/generated_text.h"
#include "shoal/train/generation.h"

namespace shoal::train {

/// A model from a checkpoint, and the job that trained it.
struct TrainedModel {
  Job job;
  std::string path;  ///< the step-<n> folder, that of Hugging Face, or a GGUF file
  std::shared_ptr<nn::Model> model;
  std::shared_ptr<const data::Tokenizer> tokenizer;  ///< null for tables
};

/// Opens a step-<n> folder, the newest in a run directory, a Hugging Face folder, or a GGUF file.
/// The tokenizer is the copy in the run directory or beside an imported checkpoint, that of the
/// Hugging Face folder or GGUF file, or else that of the job's data. Throws Error(input missing),
/// also for a model without a tokenizer, and Error(data).
TrainedModel open_trained(const std::string& checkpoint);

/// Generates the tokens that follow `prompt`, with the `probabilities` most probable tokens in the
/// place of each. Throws Error(usage) for a model that predicts no tokens.
GeneratedText continuation(const TrainedModel& trained, const std::string& prompt,
                           GenerationOptions options, std::uint64_t seed,
                           std::int64_t probabilities = 0);

/// Returns the length of the longest run of tokens that `tokens` share with the training split of
/// the data set in `folder`. Throws Error(config) when that has another tokenizer.
std::int64_t longest_copy(const TrainedModel& trained, const std::vector<std::uint32_t>& tokens,
                          const std::string& folder);

/// Evaluates on a split of the job's data, or of other token data in `folders`; `batches` global
/// batches of the job (of 8 sequences for a model that was imported), 0: the whole split. Throws
/// Error(config) for data of another vocabulary.
Evaluation evaluate_split(const TrainedModel& trained, const std::string& split,
                          const std::vector<std::string>& folders, std::int64_t batches);

}  // namespace shoal::train
