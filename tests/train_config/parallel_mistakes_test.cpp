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
std::string said_of(const std::vector<std::string>& given, int ranks) {
  std::vector<std::string> sets;
  for (const std::string& set : given)
    sets.push_back(set.find('.') < set.find('=') ? set : "parallelism." + set);
  return error_text([&] {
    const Job job = parse_job(
        "[model]\nname = \"gpt2-tiny\"\nvocab = 64\n[data]\nfolders = [\"a\"]\n[training]\n"
        "global_batch_sequences = 24\nsteps = 10\nsequence_length = 64\n",
        "job.toml", sets);
    validate(job, ranks);
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
      {{layouts("*.mlp.*: weight replicate")}, 2, "parallelism.layouts", "degree is 1"},
      {{two, layouts("*.mlp.up: weihgt replicate")}, 2, "column 11", "did you mean weight?"},
      {{pipe}, 3, "pipeline_parallel_degree", "must divide the 3 ranks"},
      {{pipe, "pipeline_parallel_schedule=f1b1"},
       2,
       "pipeline_parallel_schedule",
       "one of in_turn, gpipe"},
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
      {{two, "context_parallel_degree=2", pipe},
       4,
       "pipeline_parallel_degree = 2",
       "must divide the 4 ranks / (tensor_parallel_degree x context_parallel_degree) = 1"},
      {{"context_parallel_degree=3"},
       4,
       "context_parallel_degree = 3",
       "must divide the 4 ranks / tensor_parallel_degree = 4, as 2 or 4 does"},
      {{"model.name=deepseek-moe-tiny", "expert_parallel_degree=8"},
       4,
       "expert_parallel_degree = 8",
       "must divide the 4 ranks of a pipeline stage, as 4 does"},
      {{"model.name=deepseek-moe-tiny", "expert_parallel_degree=4", "zero_stage=3",
        "data_parallel_replicate_degree=2"},
       4,
       "expert_parallel_degree = 4",
       "must divide the 2 ranks of a copy of the sharded states"},
      {{"model.name=deepseek-moe-tiny", "expert_parallel_degree=2", "model.router_bias_rate=0",
        "low_communication.method=diloco", "low_communication.every=2"},
       4,
       "expert_parallel_degree = 2",
       "must divide the 1 rank of a member, as 1 does"},
      {{pipe, "pipeline_parallel_schedule=interleaved", "pipeline_parallel_virtual_stages=2",
        "training.micro_batch=8"},
       2,
       "pipeline_parallel_schedule",
       "pp = 2: micro-batches must be a multiple of ranks: micro_batches=3"},
      {{pipe, "pipeline_parallel_schedule=dualpipe-v", "training.micro_batch=8"},
       2,
       "pipeline_parallel_schedule",
       "pp = 2: needs at least two micro-batches a rank: micro_batches=3"},
      {{pipe, "pipeline_parallel_stage_units=[6, 0]"},
       2,
       "pipeline_parallel_stage_units",
       "whole numbers of at least 1"},
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
    const std::string text = said_of(one.sets, one.ranks);
    EXPECT_THAT(text, HasSubstr(one.key)) << fmt::format("{}", fmt::join(one.sets, " "));
    EXPECT_THAT(text, HasSubstr(one.rule)) << fmt::format("{}", fmt::join(one.sets, " "));
  }
}

/// A mistake in how modules are divided, which the error names with the axis.
struct WrongDivision {
  std::vector<std::string> sets;
  int ranks;
  const char* module;  ///< or what of the model a stage has
  const char* axis;    ///< with its degree, or the word that is no axis
  const char* rule;
};

TEST(ParallelMistakes, NameModuleAxisAndRule) {
  const std::string tp = "tensor_parallel_degree=";
  const std::string cp = "context_parallel_degree=";
  const std::string ep = "expert_parallel_degree=";
  const std::string pp = "pipeline_parallel_degree=";
  const std::string two = tp + "2";
  const std::string heads = "context_parallel_method=heads";
  const std::string schedule = "pipeline_parallel_schedule=";
  const std::string stages = "pipeline_parallel_virtual_stages=";
  const std::string units = "pipeline_parallel_stage_units=";
  const std::string mixture = "model.name=deepseek-moe-tiny";  // 8 experts, from block 1 on
  const char* const one_unit = "one unit (embedding, a block, head)";
  const auto layouts = [](const std::string& rules) { return "layouts=[\"" + rules + "\"]"; };
  const std::vector<WrongDivision> mistakes{
      // What one layer gives and the next one reads.
      {{two, layouts("*.mlp.up: weight replicate")},
       2,
       "blocks.0.mlp.down",
       "tp = 2",
       "a column layer and a row layer go together"},
      {{two, layouts("*.attention.qkv: weight replicate")},
       2,
       "blocks.0.attention.qkv",
       "tp = 2",
       "a row layer lacks its column layer"},
      {{two, layouts("blocks.2.attention.out: weight replicate")},
       2,
       "blocks.2.attention.out",
       "tp = 2",
       "a column layer and a row layer go together"},
      {{two, layouts("*.mlp.up: weight shard(1), output shard(-1)")},
       2,
       "blocks.0.mlp.up",
       "tp = 2",
       "a redistribution is missing"},
      {{two, layouts("head.norm: output stream")},
       2,
       "head.output",
       "tp = 2",
       "a redistribution is missing"},
      {{two, layouts("*.mlp.down: output replicate")},
       2,
       "blocks.0.mlp.down",
       "tp = 2",
       "the residual stream that it joins is always divided"},
      // Dimensions that the degree does not divide.
      {{tp + "8"}, 8, "blocks.0.attention.qkv", "tp = 8", "must divide heads = 4, as 4 does"},
      {{"model.name=llama-tiny", "model.hidden=144", "model.heads=12", "model.kv_heads=4",
        tp + "6"},
       6,
       "blocks.0.attention.qkv",
       "tp = 6",
       "must divide kv_heads = 4 or be a multiple of them"},
      {{two, "model.ffn=129"}, 2, "blocks.0.mlp.up", "tp = 2", "must divide ffn = 129"},
      {{two, "model.vocab=1"}, 2, "embedding.tokens", "tp = 2", "the vocabulary of 1"},
      {{cp + "65"}, 65, "embedding.tokens", "cp = 65", "at most the 64 tokens of a sequence"},
      {{cp + "8", heads}, 8, "blocks.0.attention", "cp = 8", "must divide kv_heads = 4, as 4 does"},
      {{two, cp + "4", heads}, 8, "blocks.0.attention", "cp = 4", "tp x cp = 8 must divide"},
      {{mixture, ep + "3"},
       3,
       "blocks.1.mlp.experts",
       "ep = 3",
       "must divide experts = 8, as 2 or"},
      {{"model.name=moe-tiny", ep + "3"}, 3, "blocks.0.mlp.experts", "ep = 3", "experts = 4"},
      {{ep + "2"}, 2, "blocks.0.mlp", "ep = 2", "the model has no experts"},
      // More stages than the model has units.
      {{pp + "8"},
       8,
       one_unit,
       "pipeline_parallel_degree = 8",
       "stages=8 units=6, so that at most"},
      {{pp + "4", schedule + "zb-v"}, 4, one_unit, "pp = 4", "stages=8 units=6"},
      {{pp + "2", schedule + "interleaved", stages + "4", "training.micro_batch=1"},
       2,
       one_unit,
       "pipeline_parallel_virtual_stages = 4",
       "stages=8 units=6"},
      {{pp + "2", units + "[2, 3]"}, 2, "have 5 units", "pp = 2", "the model has 6"},
      {{pp + "2", units + "[2, 2, 2]"}, 2, "(2, 2, 2)", "pp = 2", "units for each stage"},
      // Words and numbers that a layout does not have.
      {{two, layouts("*.mlp.up: weight shard(2)")},
       2,
       "blocks.0.mlp.up",
       "tp = 2",
       "it has 2 dimensions"},
      {{two, layouts("*.mlp.up: bias shard(1)")},
       2,
       "blocks.0.mlp.up",
       "tp = 2",
       "it has 1 dimensions"},
      {{two, layouts("head.output: bias replicate")}, 2, "head.output", "tp = 2", "has no bias"},
      {{two, layouts("*.norm_1: weight shard(0)")},
       2,
       "blocks.0.norm_1",
       "tp = 2",
       "a norm needs all features"},
      {{two, layouts("*.mlp.up: weight shard(0) along tpp")},
       2,
       "*.mlp.up",
       "'tpp'",
       "the axis tp"},
      {{two, layouts("*.mlp.up: weight shard(0) along dp_shard")},
       2,
       "*.mlp.up",
       "'dp_shard'",
       "tp, the axis that"},
      {{two, layouts("*.mlp.upp: weight replicate")}, 2, "*.mlp.upp", "along tp", "fits no module"},
      {{two, layouts("blocks.4.mlp.up: weight replicate")},
       2,
       "blocks.4.mlp.up",
       "along tp",
       "fits no module"},
      // Rules that contradict each other.
      {{two, layouts("*.mlp.*: weight replicate\", \"blocks.0.mlp.up: weight shard(0)")},
       2,
       "blocks.0.mlp.up",
       "along tp",
       "would never count"},
      {{two, layouts("*.mlp.up: weight shard(0), weight shard(1)")},
       2,
       "*.mlp.up",
       "along tp",
       "weight came before"},
      {{two, layouts("head.output: weight replicate")}, 2, "head.output", "tp = 2", "tied"},
  };
  EXPECT_GE(mistakes.size(), 30U);
  for (const WrongDivision& one : mistakes) {
    const std::string text = said_of(one.sets, one.ranks);
    for (const char* words : {one.module, one.axis, one.rule})
      EXPECT_THAT(text, HasSubstr(words)) << fmt::format("{}", fmt::join(one.sets, " "));
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
    EXPECT_EQ(said_of(one.sets, one.ranks), "") << one.sets[0];
  }
}

}  // namespace
}  // namespace shoal::train::parallel_mistakes_test
