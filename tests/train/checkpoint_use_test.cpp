#include "shoal/train/checkpoint_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "shoal/checkpoint/format/hugging_face.h"
#include "shoal/checkpoint/format/reader.h"
#include "tests/error_text.h"
#include "tests/train/small_job.h"
#include "tests/train/small_text.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::checkpoint_use_test {
namespace {

void prepare_with_bpe(const std::string& folder) {
  write_small_text(folder + "-text");
  data::PrepareOptions options;
  options.out = folder;
  options.inputs = {folder + "-text"};
  options.vocab_size = 300;
  options.validation_fraction = 0.2;
  data::prepare(options);
}

/// Trains a few steps on the data in `data`.
void train_in(const std::string& run_directory, const std::string& data) {
  RunOptions options;
  options.job = parse_job(small_job(data, 5), "small.toml", {"model.vocab=384"});
  options.run_directory = run_directory, options.console = false;
  std::filesystem::create_directories(run_directory);
  comm::run_on_threads({}, [&](const comm::Group&) { train(options); });
}

// 300 entries are more than the 257 of bytes; the model has room for 384, so that sizes alone would
// not tell.
TEST(CheckpointUse, DataOfAnotherTokenizerIsRefused) {
  const TemporaryFolder folder;
  const std::string bytes = folder.path() + "/bytes";
  const std::string pairs = folder.path() + "/pairs";
  prepare_small_text(bytes);
  prepare_with_bpe(pairs);
  train_in(folder.path(), bytes);

  const TrainedModel trained = open_trained(folder.path());
  EXPECT_GT(evaluate_split(trained, "validation", {bytes}, 1).labels, 0);
  EXPECT_GT(longest_copy(trained, {'i', 'n', 'c'}, bytes), 0);
  EXPECT_THAT(shoal::error_text([&] { evaluate_split(trained, "validation", {pairs}, 1); }),
              testing::HasSubstr(pairs + ": the data has another tokenizer"));
  EXPECT_THAT(shoal::error_text([&] {
                longest_copy(trained, {'i', 'n', 'c'}, pairs);
              }),
              testing::HasSubstr("another tokenizer"));
}

// What another program trained comes without a job, and so without data that would have its
// tokenizer.
TEST(CheckpointUse, ImportedModelNeedsATokenizerBesideIt) {
  const TemporaryFolder folder;
  const std::string bytes = folder.path() + "/bytes";
  const std::string ours = folder.path() + "/ours";
  const std::string imported = folder.path() + "/imported";
  prepare_small_text(bytes);
  train_in(ours, bytes);
  const TrainedModel trained = open_trained(ours);
  checkpoint::format::Reader reader(trained.path);
  checkpoint::format::export_hugging_face(reader, folder.path() + "/theirs");
  checkpoint::format::import_hugging_face(folder.path() + "/theirs", imported + "/checkpoints");
  EXPECT_THAT(shoal::error_text([&] { open_trained(imported); }),
              testing::HasSubstr(imported + "/tokenizer.model: no tokenizer: this model came"));
  // As `shoal ckpt import` lays it out: the tokenizer beside the step, not a floor above.
  checkpoint::format::import_hugging_face(folder.path() + "/theirs", folder.path() + "/flat");
  EXPECT_THAT(shoal::error_text([&] { open_trained(folder.path() + "/flat"); }),
              testing::HasSubstr("/flat/tokenizer.model: no tokenizer"));

  std::filesystem::copy_file(bytes + "/tokenizer.model", imported + "/tokenizer.model");
  const GenerationOptions options{.tokens = 8};
  EXPECT_EQ(continuation(open_trained(imported), "inc", options, 1).ids(),
            continuation(trained, "inc", options, 1).ids());
  TrainedModel of_theirs = open_trained(imported);
  EXPECT_THAT(
      shoal::error_text([&] { evaluate_split(of_theirs, "validation", {}, 1); }),
      testing::HasSubstr("names no data to evaluate it on. Hint: --data DIR, from `shoal "));
  // The job's, which a model that was imported lacks.
  of_theirs.job.config.training.sequence_length = trained.job.config.training.sequence_length;
  const Evaluation expected = evaluate_split(trained, "validation", {bytes}, 0);
  const Evaluation found = evaluate_split(of_theirs, "validation", {bytes}, 0);
  EXPECT_EQ(found.labels, expected.labels);
  // The same samples in batches of another size.
  EXPECT_NEAR(found.loss, expected.loss, 1e-5);
  EXPECT_GT(evaluate_split(of_theirs, "validation", {bytes}, 1).labels, 0);
}

}  // namespace
}  // namespace shoal::train::checkpoint_use_test
