#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shoal/checkpoint/format/difference.h"
#include "shoal/checkpoint/format/gguf/model.h"
#include "shoal/checkpoint/format/hugging_face.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/data/byte_characters.h"
#include "shoal/train/checkpoint_use.h"
#include "shoal/train/config/job_inputs.h"
#include "shoal/train/config/validate.h"
#include "tests/error_text.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::model_source_test {
namespace {

using testing::HasSubstr;

/// A job that starts from the model in `from`, with the data of small_job.
std::string job_from(const std::string& data, const std::string& from, int steps) {
  std::string text = small_job(data, steps);
  const std::size_t begin = text.find("[model]");
  text.replace(begin, text.find("[data]") - begin,
               fmt::format("[model]\nfrom = \"{}\"\ndropout = 0.0\n", from));
  return text;
}

/// One trained model, as a run directory, and as a folder of Hugging Face.
class ModelSourceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    prepare_small_text(data());
    // Heads and kv heads that differ, so that rows would be mixed up visibly.
    train_on_threads(run(), small_job(data(), 10),
                     {"model.name=llama-tiny", "model.heads=4", "model.dropout=0.0"}, 1);
    checkpoint::format::Reader reader(checkpoint::format::resolve_checkpoint(run()));
    checkpoint::format::export_hugging_face(reader, theirs());
    checkpoint::format::gguf::export_model(reader, gguf(), {},
                                           checkpoint::format::gguf::BlockType::kF32);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string data() { return folder_->path() + "/data"; }
  static std::string run() { return folder_->path() + "/run"; }
  static std::string theirs() { return folder_->path() + "/theirs"; }
  static std::string gguf() { return folder_->path() + "/theirs.gguf"; }
  static std::string place(const std::string& name) { return folder_->path() + "/" + name; }

  static std::unique_ptr<TemporaryFolder> folder_;
};

std::unique_ptr<TemporaryFolder> ModelSourceTest::folder_;

/// The parameters of two checkpoints that differ in at least one bit.
std::vector<std::string> differing_parameters(const std::string& first, const std::string& second) {
  checkpoint::format::Reader one(checkpoint::format::resolve_checkpoint(first));
  checkpoint::format::Reader other(checkpoint::format::resolve_checkpoint(second));
  std::vector<std::string> names;
  for (const auto& difference : checkpoint::format::compare(one, other))
    if (difference.name.starts_with("model.")) names.push_back(difference.name);
  return names;
}

/// Writes a tokenizer.json: every byte is the token of its number, but that `one` and `other`
/// change places, and 256 is the end.
void write_tokenizer(const std::string& folder, char one, char other) {
  nlohmann::json root{{"decoder", {{"type", "ByteLevel"}}},
                      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                      {"added_tokens", {{{"id", 256}, {"content", "</s>"}, {"special", true}}}}};
  const data::ByteCharacters characters;
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[characters.write(std::string(1, static_cast<char>(byte)))] = byte;
  std::swap(vocabulary[characters.write(std::string(1, one))],
            vocabulary[characters.write(std::string(1, other))]);
  root["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}};
  std::ofstream(folder + "/tokenizer.json") << root.dump();
}

// An update with no learning rate and no decay leaves the weights as they were loaded.
TEST_F(ModelSourceTest, EveryMeshStartsFromTheSameBits) {
  const Sets still{"optimizer.learning_rate=0", "optimizer.weight_decay=0", "checkpoint.interval=1",
                   "lr_scheduler.warmup_steps=0", "validation.interval=1"};
  struct Case {
    std::string name, from;
    int ranks;
    Sets sets;
  };
  const Case cases[] = {
      {"one", theirs(), 1, {}},
      {"zero", theirs(), 3, {"parallelism.zero_stage=3", "training.global_batch_sequences=9"}},
      {"tensors", theirs(), 2, {"parallelism.tensor_parallel_degree=2"}},
      {"stages", theirs(), 2, {"parallelism.pipeline_parallel_degree=2"}},
      {"masters",
       theirs(),
       2,
       {"precision.type=bf16", "parallelism.zero_stage=1", "training.global_batch_sequences=8"}},
      {"ours", run(), 2, {}},
      {"file", gguf(), 2, {"parallelism.zero_stage=3"}},
  };
  for (const Case& c : cases) {
    const std::string directory = place("still-" + c.name);
    train_on_threads(directory, job_from(data(), c.from, 1), still + c.sets, c.ranks);
    EXPECT_THAT(differing_parameters(directory, run()), testing::IsEmpty()) << c.name;
    EXPECT_FALSE(std::filesystem::exists(RunDirectory(directory).source_weights())) << c.name;
  }
}

TEST_F(ModelSourceTest, TrainingGoesOnWhereTheWeightsAre) {
  const auto before = read_metrics(RunDirectory(run()).metrics());
  const auto after = train_on_threads(place("goes-on"), job_from(data(), theirs(), 10), {}, 2);
  EXPECT_LT(after.front().loss, before.front().loss - 0.3) << "not from drawn weights";
  EXPECT_LT(after.back().loss, after.front().loss);
  // The run goes on from its own checkpoint, and not from the source again.
  const auto longer = train_on_threads(place("goes-on"), job_from(data(), theirs(), 12), {}, 1);
  EXPECT_EQ(longer.back().step, 12);
}

TEST_F(ModelSourceTest, GeneratesAndEvaluatesFromTheFolder) {
  std::filesystem::copy(theirs(), place("with-tokenizer"));
  EXPECT_THAT(error_text([&] { open_trained(place("with-tokenizer")); }),
              HasSubstr("with-tokenizer/tokenizer.json: no tokenizer"));
  EXPECT_THAT(error_text([&] { open_trained(gguf()); }), HasSubstr("theirs.gguf: no tokenizer"));
  std::filesystem::copy(theirs(), place("weights-alone"));
  std::filesystem::remove(place("weights-alone") + "/config.json");
  EXPECT_THAT(error_text([&] { open_trained(place("weights-alone")); }),
              HasSubstr("weights-alone has safetensors files and no config.json. Hint: download"));
  EXPECT_THAT(error_text([&] { open_trained(place("nowhere")); }),
              HasSubstr("there is no " + place("nowhere")));
  write_tokenizer(place("with-tokenizer"), 'a', 'a');
  const TrainedModel trained = open_trained(place("with-tokenizer"));
  const TrainedModel ours = open_trained(run());
  const GenerationOptions options{.tokens = 12};
  EXPECT_EQ(continuation(trained, "inc", options, 1).ids(),
            continuation(ours, "inc", options, 1).ids());
  EXPECT_EQ(trained.tokenizer->name(), "hugging_face");
}

TEST_F(ModelSourceTest, RefusesWhatWouldNotFit) {
  const auto refusal = [&](const std::string& from, const Sets& sets) {
    const Job job = parse_job(job_from(data(), from, 1), "job.toml", sets);
    return error_text([&] { model_spec(job, {.vocab = 257}); });
  };
  EXPECT_EQ(refusal(theirs(), {}), "");
  EXPECT_THAT(refusal(theirs(), {"model.layers=3"}), HasSubstr("model.layers = 3: follows from"));
  EXPECT_THAT(refusal(theirs(), {"model.vocab=512"}), HasSubstr("follows from model.from"));
  EXPECT_THAT(refusal(theirs(), {"model.name=llama-tiny"}), HasSubstr("follows from model.from"));
  EXPECT_THAT(refusal(place("nowhere"), {}), HasSubstr("model.from: there is no "));
  EXPECT_THAT(refusal(theirs(), {"training.sequence_length=64"}), HasSubstr("model's longest"));
  const Job job = parse_job(job_from(data(), theirs(), 1), "job.toml", {});
  EXPECT_THAT(error_text([&] { model_spec(job, {.vocab = 100'000}); }), HasSubstr("rows"));
}

TEST_F(ModelSourceTest, RefusesDataOfAnotherTokenizer) {
  const std::string from = place("of-a-tokenizer");
  std::filesystem::copy(theirs(), from);
  const auto refusal = [&] {
    const Job job = parse_job(job_from(data(), from, 10), "job.toml", {});
    return error_text([&] { check_job_inputs(job); });
  };
  write_tokenizer(from, 'a', 'a');
  EXPECT_EQ(refusal(), "");
  write_tokenizer(from, 'a', 'b');
  EXPECT_THAT(refusal(), HasSubstr("has another tokenizer than the model in " + from));
}

}  // namespace
}  // namespace shoal::train::model_source_test
