#include "shoal/train/checkpoint_use.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "shoal/base/check.h"
#include "shoal/data/dataset.h"
#include "shoal/data/manifest.h"
#include "shoal/train/config/source_weights.h"
#include "shoal/train/config/validate.h"
#include "shoal/train/copied_run.h"
#include "shoal/train/job_options.h"
#include "shoal/train/run_directory.h"
#include "shoal/train/training_state.h"

namespace shoal::train {
namespace fs = std::filesystem;

namespace {

// For a model that no job of ours trained: sequences that run through it together.
constexpr std::int64_t kSequencesWithoutAJob = 8;

/// Numbers of another tokenizer mean other text: the same vocabulary size says nothing.
void check_tokenizer(const TrainedModel& trained, const std::string& folder,
                     const char* operation) {
  const auto text = data::TokenDataset::open(folder, "train", data::Check::kHeaders);
  if (!data::same_vocabulary(text.tokenizer(), *trained.tokenizer)) {
    throw Error(ErrorKind::kConfig, operation,
                fmt::format("{}: the data has another tokenizer than the model", folder))
        .hint(
            "prepare the text with the model's tokenizer, or take the data set that it was trained "
            "on");
  }
}

/// Describes that text cannot be read because a model came without its tokenizer; no job of ours
/// trained it, which would name data that has one.
Error no_tokenizer(const ModelSource& source) {
  std::string place = source.path;
  std::string hint = "name the model's Hugging Face folder, or a GGUF file that has its tokenizer";
  if (source.kind == ModelSource::Kind::kHuggingFace) {
    place += "/tokenizer.json";
    hint = "download the model's tokenizer.json into that folder";
  } else if (source.kind == ModelSource::Kind::kCheckpoint) {
    // A run has its tokenizer above checkpoints/step-<n>, an imported model beside step-<n>.
    const fs::path folder = fs::absolute(source.path).parent_path();
    place = RunDirectory(folder.filename() == "checkpoints" ? folder.parent_path() : folder)
                .tokenizer();
    hint =
        "`shoal ckpt import` takes it along where tokenizer.json lies in the folder of the model";
  }
  return Error(ErrorKind::kInputMissing, "checkpoint",
               fmt::format("{}: no tokenizer: this model came without one, and text cannot be read "
                           "without it",
                           place))
      .hint(hint);
}

}  // namespace

TrainedModel open_trained(const std::string& checkpoint) {
  TrainedModel trained;
  const ModelSource source = find_model(checkpoint);
  trained.path = source.path;
  const SourceWeights weights(
      source, fmt::format("{}/shoal-model-{}", fs::temp_directory_path().string(), ::getpid()));
  const RunRecord record = read_record(weights.checkpoint());
  trained.job = parse_job(record.job, record.job_file);
  const JobConfig& config = trained.job.config;
  const bool tokens = config.data.source == DataKind::kTokens;
  Task task = learns_classes(config) ? Task::kClasses : Task::kRegression;
  if (tokens) task = Task::kTokens;
  trained.model = make_job_model(record.model, config, task);
  // All of it in the job's default type: one process, no shards, no optimizer.
  trained.model->materialize();
  load_model(*trained.model, weights.checkpoint(), {});
  if (!tokens) return trained;
  // The model reads no longer texts than it was made for, whatever the job's default.
  std::int64_t& length = trained.job.config.training.sequence_length;
  length = std::min(length, record.model.sequence);
  // The copy beside the checkpoint counts, as the data may have been prepared anew since.
  trained.tokenizer = tokenizer_of(source);
  if (trained.tokenizer) return trained;
  if (config.data.folders.empty()) throw no_tokenizer(source);
  trained.tokenizer = job_tokenizer(config);
  return trained;
}

GeneratedText continuation(const TrainedModel& trained, const std::string& prompt,
                           GenerationOptions options, std::uint64_t seed,
                           std::int64_t probabilities) {
  SHOAL_USER_CHECK(trained.tokenizer, "generate", "{} is a model of tables: it gives no text",
                   trained.path);
  GeneratedText text{prompt, tokens_of(*trained.tokenizer, prompt), {}};
  options.on_token = [&](std::span<const float> logits, std::uint32_t token) {
    text.tokens.push_back(
        {token, log_probability(logits, token), most_probable(logits, probabilities)});
  };
  generate(*trained.model, text.prompt_tokens, options, Key(seed).child("sample"),
           trained.tokenizer->vocab_size());
  return text;
}

std::int64_t longest_copy(const TrainedModel& trained, const std::vector<std::uint32_t>& tokens,
                          const std::string& folder) {
  check_tokenizer(trained, folder, "generate");
  // The text is fed piece by piece: it may be larger than memory, and a run may cross a border.
  constexpr std::uint64_t kPiece = 1 << 20;
  const auto text = data::TokenDataset::open(folder, "train", data::Check::kHeaders);
  CopiedRun run(tokens);
  std::vector<std::uint32_t> piece;
  for (std::uint64_t begin = 0; begin < text.tokens(); begin += kPiece) {
    piece.resize(std::min(kPiece, text.tokens() - begin));
    text.copy(begin, std::span(piece));
    run.feed(piece);
  }
  return run.length();
}

Evaluation evaluate_split(const TrainedModel& trained, const std::string& split,
                          const std::vector<std::string>& folders, std::int64_t batches) {
  Job job = trained.job;
  if (!folders.empty()) {
    SHOAL_USER_CHECK(trained.tokenizer, "eval", "{} is a model of tables: it reads no token data",
                     trained.path);
    job.config.data.folders = folders;
    job.config.data.weights.clear();
  }
  if (trained.tokenizer) {
    if (job.config.data.folders.empty()) {
      throw Error(ErrorKind::kUsage, "eval",
                  fmt::format("{} names no data to evaluate it on", trained.path))
          .hint(fmt::format("--data DIR, from `shoal data prepare --tokenizer {} --input ... --out "
                            "DIR`",
                            trained.path));
    }
    for (const std::string& folder : job.config.data.folders)
      check_tokenizer(trained, folder, "eval");
  }
  TrainingSection& training = job.config.training;
  if (!training.global_batch_sequences && !training.global_batch_tokens)
    training.global_batch_sequences = kSequencesWithoutAJob;
  const auto data = open_data(job, true);
  const BatchPlan plan = batch_plan(job, 1);
  return evaluate(*trained.model, *data, {}, {},
                  {.split = split,
                   .samples = batches * plan.global,
                   .micro_batch = std::min<std::int64_t>(plan.micro_batch, 32)});
}

}  // namespace shoal::train
