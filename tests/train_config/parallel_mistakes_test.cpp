// Mistakes in the degrees and layouts of a job file, each refused before a rank starts, with the
// key, the module or axis, and the rule.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/train/config/validate.h"
#include "tests/error_text.h"

namespace shoal::train::parallel_mistakes_test {
namespace {

using testing::HasSubstr;

struct Mistake {
  std::vector<std::string> sets;  ///< of [parallelism] unless a section is named
  int ranks;
  const char* key;   ///< which the error names
  const char* rule;  ///< words of the rule that is broken
};

/// What parsing and checking a job says. gpt2-tiny: 4 blocks of 4 heads, hidden = 128, ffn = 512.
std::string said_of(const Mistake& mistake) {
  std::vector<std::string> sets;
  for (const std::string& set : mistake.sets)
    sets.push_back(set.find('.') < set.find('=') ? set : "parallelism." + set);
  return error_text([&] {
    const Job job = parse_job(
        "[model]\nname = \"gpt2-tiny\"\nvocab = 64\n[data]\nfolders = [\"a\"]\n[training]\n"
        "global_batch_sequences = 24\nsteps = 10\nsequence_length = 64\n",
        "job.toml", sets);
    validate(job, mistake.ranks);
  });
}

TEST(ParallelMistakes, AreRefusedWithKeyAndRule) {
  const std::string two = "tensor_parallel_degree=2";
  const std::string pipe = "pipeline_parallel_degree=2";
  const std::string early = "pipeline_parallel_post_validation=true";
  const auto layouts = [](const std::string& rule) { return "layouts=[\"" + rule + "\"]"; };
  const std::vector<Mistake> mistakes{
      {{"tensor_paralel_degree=2"}, 4, "tensor_paralel_degree", "tensor_parallel_degree"},
      {{"tp=2"}, 4, "parallelism.tp", "no such key"},
      {{"tensor_parallel_degree=0"}, 4, "tensor_parallel_degree", "1"},
      {{"tensor_parallel_degree=3"}, 4, "tensor_parallel_degree", "must divide the 4 ranks"},
      {{"tensor_parallel_degree=8"}, 8, "blocks.0.attention.qkv: tp = 8", "heads = 4"},
      {{two, "model.ffn=129"}, 2, "blocks.0.mlp.up: tp = 2", "must divide ffn = 129"},
      {{two, "model.vocab=1"}, 2, "embedding.tokens: tp = 2", "the vocabulary of 1"},
      {{layouts("*.mlp.*: weight replicate")}, 2, "parallelism.layouts", "degree is 1"},
      {{two, layouts("*.mlp.up: weight replicate")},
       2,
       "blocks.0.mlp.down: tp = 2",
       "a column layer and a row layer go together"},
      {{two, layouts("*.mlp.upp: weight replicate")}, 2, "*.mlp.upp", "fits no module"},
      {{two, layouts("*.mlp.up: weihgt replicate")}, 2, "column 11", "did you mean weight?"},
      {{two, layouts("*.mlp.up: weight shard(0) along tpp")}, 2, "'tpp'", "the axis tp"},
      {{two, layouts("*.mlp.up: weight shard(0) along dp_shard")},
       2,
       "'dp_shard'",
       "the axis that"},
      {{two, layouts("*.norm_1: weight shard(0)")},
       2,
       "blocks.0.norm_1: tp = 2",
       "a norm needs all features"},
      {{two, layouts("head.output: weight replicate")}, 2, "head.output: tp = 2", "tied"},
      {{two, layouts("*.mlp.*: weight replicate"), "activation_checkpoint.mode=budget",
        "activation_checkpoint.budget_mb=1"},
       2,
       "activation_checkpoint.mode",
       "counted for the default recipe"},
      {{pipe}, 3, "pipeline_parallel_degree", "must divide the 3 ranks"},
      {{pipe, "pipeline_parallel_schedule=f1b1"}, 2, "pipeline_parallel_schedule", "one of gpipe"},
      {{"pipeline_parallel_schedule=gpipe"}, 2, "pipeline_parallel_schedule", "degree is 1"},
      {{pipe, "pipeline_parallel_virtual_stages=2"},
       2,
       "pipeline_parallel_virtual_stages",
       "belongs to pipeline_parallel_schedule"},
      {{pipe, "zero_stage=2", "pipeline_parallel_gathered_stages=1"},
       2,
       "pipeline_parallel_gathered_stages",
       "belongs to zero_stage = 3"},
      {{pipe, "zero_stage=3", "arena=false", "gather_ahead=2"},
       2,
       "gather_ahead",
       "whole stages are gathered"},
      {{pipe, "zero_stage=2", "model.tied_embeddings=false", "reduce_every_micro_batch=true"},
       2,
       "reduce_every_micro_batch",
       "several micro-batches under way"},
      {{early}, 2, "pipeline_parallel_post_validation", "degree is 1"},
      {{pipe, early, "precision.type=fp16"}, 2, "post_validation", "loss scale"},
      {{pipe, early, "optimizer.state_folder=/tmp"}, 2, "post_validation", "state_folder"},
      {{"zero_stage=2", "data_parallel_replicate_degree=3"},
       4,
       "data_parallel_replicate_degree",
       "shards x replicas must make the 4 ranks"},
      {{"zero_stage=2", "data_parallel_shard_degree=0"}, 4, "data_parallel_shard_degree", "-1"},
      {{"data_parallel_shard_degree=2"}, 4, "data_parallel_shard_degree", "zero_stage is 0"},
      {{"zero_stage=1", "reduce_every_micro_batch=true"},
       2,
       "reduce_every_micro_batch",
       "stage 1 keeps whole gradients"},
      {{"training.global_batch_sequences=10"}, 4, "global_batch_sequences", "among 4 ranks"},
      {{two, "training.micro_batch=5"}, 4, "training.micro_batch", "must divide a rank's share"},
  };
  for (const Mistake& one : mistakes) {
    const std::string text = said_of(one);
    EXPECT_THAT(text, HasSubstr(one.key)) << fmt::format("{}", fmt::join(one.sets, " "));
    EXPECT_THAT(text, HasSubstr(one.rule)) << fmt::format("{}", fmt::join(one.sets, " "));
  }
}

TEST(ParallelMistakes, DegreesThatDivideTransformersAreRefusedForOthers) {
  for (const char* key : {"tensor_parallel_degree", "pipeline_parallel_degree"}) {
    const std::string said = error_text([&] {
      const Job job = parse_job(
          "[model]\nname = \"mlp-digits\"\n[data]\nsource = \"digits\"\n[training]\n"
          "global_batch_sequences = 32\nepochs = 2\n",
          "job.toml", {fmt::format("parallelism.{}=2", key)});
      validate(job, 2);
    });
    EXPECT_THAT(said, HasSubstr(key));
    EXPECT_THAT(said, HasSubstr("divides transformers only"));
  }
}

TEST(ParallelMistakes, TheSameWithoutTheMistakeIsAccepted) {
  for (const Mistake& one : std::vector<Mistake>{
           {{"tensor_parallel_degree=2"}, 4, "", ""},
           {{"tensor_parallel_degree=2", "layouts=[\"*.mlp.*: weight replicate\"]"}, 2, "", ""},
           {{"tensor_parallel_degree=3", "model.ffn=129",
             "layouts=[\"*.attention.*: weight replicate\"]"},
            3,
            "",
            ""},
           {{"pipeline_parallel_degree=2", "zero_stage=2", "model.tied_embeddings=false"},
            2,
            "",
            ""}}) {
    EXPECT_EQ(said_of(one), "") << one.sets[0];
  }
}

}  // namespace
}  // namespace shoal::train::parallel_mistakes_test
