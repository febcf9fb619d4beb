#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/train/config/validate.h"
#include "tests/train_config/jobs.h"

namespace shoal::train::model_of_a_job_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ModelOfAJob, NamedSizesChangeTogether) {
  model::ModelSpec spec = model_spec(job_with({}), {.vocab = 256});
  EXPECT_EQ(spec, *model::named_model("gpt2-tiny"));
  spec = model_spec(job_with({"model.hidden=256", "model.vocab=0"}), {.vocab = 257});
  EXPECT_EQ(spec.hidden, 256);
  EXPECT_EQ(spec.ffn, 1024) << "the ratio stays";
  EXPECT_EQ(spec.head_size, 64);
  EXPECT_EQ(spec.vocab, 320) << "257 rounded up to a multiple of 64";
  spec = model_spec(job_with({"model.heads=8"}), {.vocab = 256});
  EXPECT_EQ(spec.kv_heads, 8);
  EXPECT_EQ(spec.head_size, 16);
  spec = model_spec(job_with({"model.name=llama-tiny", "model.layers=2", "model.sequence=64"}),
                    {.vocab = 256});
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.sequence, 64);
  spec = model_spec(job_with({"model.name=qwen3-tiny", "model.hidden=256", "model.heads=8"}),
                    {.vocab = 256});
  EXPECT_EQ(spec.head_size, 48)
      << "heads that do not share the width out among them keep their size";
  EXPECT_TRUE(spec.qk_norm);
}

TEST(ModelOfAJob, NormsOfQueriesAndKeysAreAKey) {
  EXPECT_TRUE(model_spec(job_with({"model.name=llama-tiny", "model.qk_norm=true"}), {.vocab = 256})
                  .qk_norm);
  EXPECT_FALSE(
      model_spec(job_with({"model.name=qwen3-tiny", "model.qk_norm=false"}), {.vocab = 256})
          .qk_norm);
  EXPECT_THAT(refusal([] { model_spec(job_with({"model.qk_norm=true"}), {.vocab = 256}); }),
              HasSubstr("queries and keys have RMSNorm alone"));
  EXPECT_THAT(refusal([] { model_spec(table_with({"model.qk_norm=true"}), {}); }),
              HasSubstr("model.qk_norm"));
}

TEST(ModelOfAJob, EveryKeyChangesItsField) {
  const auto spec_with = [](std::vector<std::string> sets) {
    return model_spec(job_with(sets), {.vocab = 256});
  };
  EXPECT_EQ(spec_with({"model.layers=3"}).layers, 3);
  EXPECT_EQ(spec_with({"model.kv_heads=2"}).kv_heads, 2);
  EXPECT_EQ(spec_with({"model.head_size=24"}).head_size, 24);
  EXPECT_EQ(spec_with({"model.ffn=96"}).ffn, 96);
  EXPECT_EQ(spec_with({"model.hidden=256", "model.ffn=96"}).ffn, 96) << "it comes after the ratio";
  EXPECT_EQ(spec_with({"model.hidden=256", "model.head_size=24"}).head_size, 24);
  EXPECT_EQ(spec_with({"model.vocab=512"}).vocab, 512);
  EXPECT_EQ(spec_with({"model.sequence=128"}).sequence, 128);
  EXPECT_FALSE(spec_with({"model.tied_embeddings=false"}).tied_embeddings);
  EXPECT_FALSE(spec_with({"model.bias=false"}).bias);
  EXPECT_TRUE(spec_with({"model.bias=false", "model.qkv_bias=true"}).qkv_bias);
  EXPECT_TRUE(spec_with({"model.gated=true"}).gated);
  EXPECT_EQ(spec_with({"model.positions=rotary"}).positions, model::Positions::kRotary);
  EXPECT_EQ(spec_with({"model.name=llama-tiny", "model.positions=learned"}).positions,
            model::Positions::kLearned);
  EXPECT_EQ(spec_with({"model.positions=rotary", "model.rope_theta=500.0"}).rope_theta, 500);
  EXPECT_EQ(spec_with({"model.norm=rms"}).norm, model::Norm::kRms);
  EXPECT_EQ(spec_with({"model.name=llama-tiny", "model.norm=layer"}).norm, model::Norm::kLayer);
  EXPECT_EQ(spec_with({"model.norm_epsilon=0.25"}).norm_epsilon, 0.25);
  EXPECT_EQ(spec_with({"model.dropout=0.25"}).dropout, 0.25);
  EXPECT_EQ(spec_with({"model.init_std=0.25"}).init_std, 0.25);
  EXPECT_EQ(spec_with({"model.activation=relu"}).activation, model::Activation::kRelu);
  const model::ModelSpec mlp =
      model_spec(table_with({"model.inputs=3", "model.outputs=2", "model.widths=[5, 7]",
                             "model.activation=silu"}),
                 {});
  EXPECT_EQ(mlp.inputs, 3);
  EXPECT_EQ(mlp.outputs, 2);
  EXPECT_EQ(mlp.widths, (std::vector<std::int64_t>{5, 7}));
  EXPECT_EQ(mlp.activation, model::Activation::kSilu);
}

TEST(ModelOfAJob, KeysOfTheOtherFamilyAreRefused) {
  for (const char* set : {"layers=2", "hidden=64", "heads=2", "kv_heads=2", "head_size=8", "ffn=64",
                          "vocab=256", "sequence=64", "tied_embeddings=true", "qkv_bias=true",
                          "qk_norm=true", "gated=true", "positions=rotary", "rope_theta=9.0",
                          "norm=rms", "norm_epsilon=0.5", "dropout=0.5", "init_std=0.5"}) {
    EXPECT_THAT(refusal([&] { model_spec(table_with({std::string("model.") + set}), {}); }),
                HasSubstr("belongs to a transformer"))
        << set;
  }
  for (const char* set : {"inputs=2", "outputs=2", "widths=[2]"}) {
    EXPECT_THAT(refusal([&] { model_spec(job_with({std::string("model.") + set}), {}); }),
                HasSubstr("belongs to a multi-layer perceptron"))
        << set;
  }
  EXPECT_NO_THROW(model_spec(table_with({"model.bias=true"}), {.inputs = 64, .outputs = 10}));
}

TEST(ModelOfAJob, SizesHangTogether) {
  // Two key-value heads of four stay two; a width that its feed-forward layer has no ratio to is
  // not guessed.
  EXPECT_EQ(model_spec(job_with({"model.name=llama-tiny", "model.heads=8"}), {}).kv_heads, 2);
  EXPECT_EQ(model_spec(job_with({"model.name=llama-tiny", "model.hidden=256"}), {}).ffn, 704);
  EXPECT_THAT(refusal([] {
                model_spec(job_with({"model.name=llama-tiny", "model.hidden=98"}), {});
              }),
              HasSubstr("model.ffn (not set): llama-tiny has 352 for hidden = 128; say what it is "
                        "for hidden = 98"));
  EXPECT_EQ(model_spec(job_with({"model.name=llama-tiny", "model.hidden=98", "model.heads=1",
                                 "model.kv_heads=1", "model.ffn=200"}),
                       {})
                .ffn,
            200);
  // The longest sequence itself is not too long.
  EXPECT_EQ(model_spec(job_with({"training.sequence_length=256"}), {}).sequence, 256);
  EXPECT_THAT(refusal([] { model_spec(job_with({"training.sequence_length=257"}), {}); }),
              HasSubstr("longer than the model's longest sequence, 256"));
  const auto rows = [](std::int64_t entries) {
    return model_spec(job_with({"model.vocab=0"}), {.vocab = entries}).vocab;
  };
  EXPECT_EQ(rows(0), 64) << "nothing is known yet";
  EXPECT_EQ(rows(64), 64);
  EXPECT_EQ(rows(65), 128);
}

TEST(ModelOfAJob, IsCalledAfterItsSizeOrItsJob) {
  EXPECT_EQ(model_spec(job_with({}), {}).name, "gpt2-tiny");
  const Job shape = table_with({"model.name=", "model.family=mlp", "job.name=mine"});
  const model::ModelSpec spec = model_spec(shape, {.inputs = 4, .outputs = 3});
  EXPECT_EQ(spec.name, "mine");
  EXPECT_EQ(spec.activation, model::Activation::kRelu) << "of a perceptron by default";
  EXPECT_EQ(spec.inputs, 4);
  EXPECT_EQ(spec.outputs, 3);
}

TEST(ModelOfAJob, AShapeNeedsNoName) {
  const Job job =
      job_with({"model.name=", "model.family=transformer", "model.layers=2", "model.hidden=64",
                "model.heads=4", "model.vocab=0", "model.sequence=0", "model.positions=rotary",
                "model.norm=rms", "model.activation=silu", "model.gated=true", "model.bias=false"});
  const model::ModelSpec spec = model_spec(job, {.vocab = 1000});
  EXPECT_EQ(spec.vocab, 1024);
  EXPECT_EQ(spec.sequence, 64);
  EXPECT_EQ(spec.ffn, 256);
  const Job plain = job_with({"model.name=", "model.family=transformer", "model.layers=1",
                              "model.hidden=8", "model.heads=1"});
  EXPECT_EQ(model_spec(plain, {.vocab = 9}).activation, model::ModelSpec().activation);
  EXPECT_EQ(spec.positions, model::Positions::kRotary);
  EXPECT_EQ(spec.norm, model::Norm::kRms);
  const Job mlp = table_with(
      {"model.name=", "model.family=mlp", "model.widths=[16, 8]", "model.activation=tanh"});
  const model::ModelSpec perceptron = model_spec(mlp, {.inputs = 64, .outputs = 10});
  EXPECT_EQ(perceptron.inputs, 64);
  EXPECT_EQ(perceptron.outputs, 10);
  EXPECT_EQ(perceptron.widths, (std::vector<std::int64_t>{16, 8}));
}

TEST(ModelOfAJob, ItsTokenizerNeedsAModelToStartFrom) {
  const Job job =
      job_with({"data.prepare=files", "data.prepare_from=[\"text\"]", "data.tokenizer=model"});
  EXPECT_THAT(refusal([&] { validate(job, 1); }),
              HasSubstr("data.tokenizer = \"model\": takes the tokenizer of model.from"));
}

TEST(ModelOfAJob, ModelAndDataMustFit) {
  EXPECT_THAT(refusal([] { model_spec(job_with({"model.vocab=256"}), {.vocab = 257}); }),
              HasSubstr("command line: model.vocab = 256"));
  EXPECT_THAT(refusal([] { model_spec(job_with({}), {.vocab = 257}); }),
              HasSubstr("the tokenizer 257 entries"));
  EXPECT_THAT(refusal([] { model_spec(table_with({}), {.inputs = 65, .outputs = 10}); }),
              HasSubstr("the data has 65 features"));
  EXPECT_THAT(refusal([] { model_spec(table_with({"data.source=tokens"}), {}); }),
              HasSubstr("data.source"));
  EXPECT_THAT(refusal([] { model_spec(job_with({"data.source=digits"}), {}); }),
              HasSubstr("a transformer learns from tokens"));
}

// Errors name the key that the job set, and where, and say of which model the other sizes are.
TEST(ModelOfAJob, ErrorsNameTheKeyThatWasSet) {
  const auto said = [](const std::vector<std::string>& sets) {
    return refusal([&] { model_spec(job_with(sets), {.vocab = 256}); });
  };
  EXPECT_THAT(said({"model.heads=3"}),
              HasSubstr("command line: model.heads = 3: must divide hidden = 128 when head_size is "
                        "not given (model.name = \"gpt2-tiny\")"));
  EXPECT_THAT(said({"model.hidden=130"}),
              HasSubstr("command line: model.hidden = 130: heads = 4: must divide hidden = 130"));
  EXPECT_THAT(said({"model.name=", "model.family=transformer", "model.hidden=64"}),
              AllOf(HasSubstr("job.toml: model.layers = 0: "), Not(HasSubstr("model.name"))));
  EXPECT_THAT(said({"model.rope_theta=9.0"}), HasSubstr("belongs to rotary positions"));
  EXPECT_THAT(said({"model.name="}), HasSubstr("name a size, set model.family and the shape"));
  EXPECT_THAT(said({"model.family=transformer"}), HasSubstr("follows from model.name"));
  EXPECT_THAT(
      refusal([] { model_spec(table_with({"model.outputs=2"}), {.inputs = 64, .outputs = 1}); }),
      HasSubstr("the data has 1 classes or targets"));
}

}  // namespace
}  // namespace shoal::train::model_of_a_job_test
