#include "shoal/train/checkpoint_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train {
namespace {

void prepare_with_bpe(const std::string& folder) {
  data::PrepareOptions options;
  options.out = folder;
  options.inputs = {SHOAL_TEST_TEXT};
  options.vocab_size = 300;
  options.validation_fraction = 0.2;
  data::prepare(options);
}

// 300 entries are more than the 257 of bytes; the model has room for 384, so that sizes alone would not tell.
TEST(CheckpointUse, DataOfAnotherTokenizerIsRefused) {
  const TemporaryFolder folder;
  const std::string bytes = folder.path() + "/bytes", pairs = folder.path() + "/pairs";
  prepare_small_text(bytes);
  prepare_with_bpe(pairs);
  RunOptions options;
  options.job = parse_job(small_job(bytes, 5), "small.toml", {"model.vocab=384"});
  options.run_directory = folder.path(), options.console = false;
  comm::run_on_threads({}, [&](const comm::Group&) { train(options); });

  const TrainedModel trained = open_trained(folder.path());
  EXPECT_GT(evaluate_split(trained, "validation", {bytes}, 1).labels, 0);
  EXPECT_GT(longest_copy(trained, {'i', 'n', 'c'}, bytes), 0);
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal([&] { evaluate_split(trained, "validation", {pairs}, 1); }), testing::HasSubstr(pairs + ": the data has another tokenizer"));
  EXPECT_THAT(refusal([&] { longest_copy(trained, {'i', 'n', 'c'}, pairs); }), testing::HasSubstr("another tokenizer"));
}

}  // namespace
}  // namespace shoal::train
