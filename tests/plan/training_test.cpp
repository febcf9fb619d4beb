#include "shoal/plan/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/plan/memory.h"
#include "tests/error_text.h"

namespace shoal::plan::training_test {
namespace {

using ::testing::HasSubstr;

/// What `validate` says of a job of gpt2-124m (12 blocks, 12 heads, width 768) on two data ranks.
template <class Change>
std::string complaint_of(Change change, const char* model = "gpt2-124m") {
  ModelSpec spec = *named_model(model);
  Training training;
  training.degrees.dp_shard = 2;
  training.global_batch = 24;
  training.sequence = 64;
  change(training);
  return error_text([&] { validate(spec, training); });
}

TEST(TrainingRules, OfNumbersAlone) {
  EXPECT_EQ(complaint_of([](Training&) {}), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.micro_batch = 0; }), HasSubstr("micro-batch = 0"));
  EXPECT_THAT(complaint_of([](Training& t) { t.global_batch = 0; }), HasSubstr("global-batch = 0"));
  EXPECT_THAT(complaint_of([](Training& t) { t.sequence = -1; }), HasSubstr("seq-len = -1"));
  EXPECT_EQ(complaint_of([](Training& t) { t.sequence = 1024; }), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.sequence = 1025; }),
              HasSubstr("seq-len = 1025: the model has 1024 learned positions"));
  EXPECT_EQ(complaint_of([](Training& t) { t.gather_ahead = 1000; }), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.gather_ahead = 1001; }),
              HasSubstr("prefetch = 1001: must lie between 0 and 1000"));
  EXPECT_THAT(complaint_of([](Training& t) { t.zero_stage = -1; }), HasSubstr("zero = -1"));
  EXPECT_EQ(complaint_of([](Training& t) { t.zero_stage = 3; }), "");
  EXPECT_EQ(complaint_of([](Training& t) { t.expert_imbalance = 1.5; }, "moe-tiny"), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.expert_imbalance = 0.9; }, "moe-tiny"),
              HasSubstr("expert-imbalance = 0.9: must be at least 1"));
  EXPECT_THAT(complaint_of([](Training& t) { t.global_batch = 25; }),
              HasSubstr("global-batch = 25: must be a multiple of dp x micro-batch = 2"));
  for (const auto& [member, option] : {std::pair{&Degrees::dp_replicate, "dp_replicate"},
                                       {&Degrees::dp_shard, "dp_shard"},
                                       {&Degrees::tp, "tp"},
                                       {&Degrees::pp, "pp"},
                                       {&Degrees::cp, "cp"},
                                       {&Degrees::ep, "ep"}}) {
    EXPECT_THAT(complaint_of([member = member](Training& t) { t.degrees.*member = 0; }),
                HasSubstr(std::string(option) + " = 0: must lie between 1"));
  }
  EXPECT_THAT(complaint_of([](Training& t) { t.virtual_stages = 0; }),
              HasSubstr("vpp = 0: must lie between 1"));
  EXPECT_THAT(complaint_of([](Training& t) { t.expert_tensor = 0; }),
              HasSubstr("etp = 0: must lie between 1"));
}

TEST(TrainingRules, OfTheModelAndTheSmallestBatch) {
  Training one;
  one.global_batch = 1;
  EXPECT_EQ(error_text([&] { validate(*named_model("gpt2-124m"), one); }), "");
  ModelSpec broken = *named_model("gpt2-124m");
  broken.head_size = -1;
  EXPECT_NE(error_text([&] { validate(broken, one); }), "");
  broken = *named_model("mlp-digits");
  broken.widths = {-1};
  EXPECT_NE(error_text([&] { validate(broken, one); }), "");
}

TEST(TrainingRules, OfTechniquesThatNeedAStage) {
  const auto stage_3 = [](auto change) {
    return [change](Training& t) {
      t.zero_stage = 3;
      change(t);
    };
  };
  EXPECT_EQ(complaint_of(stage_3([](Training& t) { t.zero_plus_plus = true; })), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.zero_plus_plus = true; }),
              HasSubstr("zero = 0: ZeRO++ is a way of stage 3"));
  EXPECT_THAT(complaint_of(stage_3([](Training& t) {
                t.zero_plus_plus = true;
                t.precision = "fp32";
              })),
              HasSubstr("precision = fp32: ZeRO++ gathers 16-bit parameters"));
  const auto often = [](int stage) {
    return [stage](Training& t) {
      t.zero_stage = stage;
      t.reduce_every_micro_batch = true;
    };
  };
  EXPECT_EQ(complaint_of(often(0)), "");
  EXPECT_EQ(complaint_of(often(1)), "");
  EXPECT_EQ(complaint_of(often(2)), "");
  const auto offloaded = [](int stage, bool optimizer) {
    return [stage, optimizer](Training& t) {
      t.zero_stage = stage;
      t.offload_parameters = true;
      t.offload_optimizer = optimizer;
    };
  };
  EXPECT_EQ(complaint_of(offloaded(3, true)), "");
  EXPECT_THAT(complaint_of(offloaded(2, true)), HasSubstr("zero = 2: parameters are offloaded"));
  EXPECT_THAT(complaint_of(offloaded(3, false)), HasSubstr("offload-parameters: the optimizer"));
}

TEST(TrainingRules, OfTheMesh) {
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.tp = 4; }), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.degrees.tp = 8; }),
              HasSubstr("tp = 8: must divide heads = 12"));
  // Two of four key-value heads: ranks share heads or divide them.
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.tp = 4; }, "llama-tiny"), "");
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.tp = 2; }, "llama-tiny"), "");
  ModelSpec odd = *named_model("gpt2-124m");
  odd.kv_heads = 4;
  Training three;
  three.degrees.tp = 6;
  three.sequence_parallel = false;
  EXPECT_THAT(error_text([&] { validate(odd, three); }),
              HasSubstr("tp = 6: must divide kv_heads = 4, as 4 does, or be a multiple of them"));
  odd = *named_model("gpt2-124m");
  odd.ffn = 770;
  three.degrees.tp = 4;
  EXPECT_THAT(error_text([&] { validate(odd, three); }),
              HasSubstr("tp = 4: must divide ffn = 770"));
  EXPECT_THAT(complaint_of([](Training& t) { t.expert_tensor = 2; }),
              HasSubstr("etp = 2: the model has no experts"));
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.ep = 2; }, "moe-tiny"), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.degrees.ep = 4; }, "moe-tiny"),
              HasSubstr("ep = 4: ep x etp = 4 must divide tp x cp x dp = 2"));
  EXPECT_THAT(complaint_of(
                  [](Training& t) {
                    t.degrees.dp_shard = 3;
                    t.degrees.ep = 3;
                  },
                  "moe-tiny"),
              HasSubstr("ep = 3: must divide experts = 4, as 2 or 4 does"));
  EXPECT_EQ(complaint_of([](Training& t) { t.expert_tensor = 2; }, "moe-tiny"), "");
  EXPECT_THAT(complaint_of(
                  [](Training& t) {
                    t.degrees.dp_shard = 3;
                    t.expert_tensor = 3;
                  },
                  "moe-tiny"),
              HasSubstr("etp = 3: must divide ffn = 176"));
  // A sequence of 64 tokens.
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.cp = 16; }), "");
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.cp = 3; }), "") << "of 22, 21 and 21";
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees = {.cp = 32, .tp = 4}; }), "");
  EXPECT_EQ(complaint_of([](Training& t) { t.degrees.cp = 64; }), "");
  EXPECT_THAT(complaint_of([](Training& t) { t.degrees.cp = 65; }),
              HasSubstr("cp = 65: must be at most the 64 tokens of a sequence"));
  for (const auto& [member, option] :
       {std::pair{&Degrees::tp, "tp"}, {&Degrees::pp, "pp"}, {&Degrees::cp, "cp"}}) {
    EXPECT_THAT(
        complaint_of([member = member](Training& t) { t.degrees.*member = 2; }, "mlp-digits"),
        HasSubstr(std::string(option) + " = 2: a multi-layer perceptron is planned"));
  }
  EXPECT_EQ(complaint_of([](Training&) {}, "mlp-digits"), "");
}

TEST(TrainingRules, OfPipelines) {
  const auto piped = [](std::int64_t p, const char* schedule, std::int64_t v, std::int64_t m) {
    return [=](Training& t) {
      t.degrees.dp_shard = 1;
      t.degrees.pp = p;
      t.virtual_stages = v;
      t.schedule = schedule;
      t.global_batch = m;
    };
  };
  EXPECT_EQ(complaint_of(piped(12, "1f1b", 1, 24)), "");
  EXPECT_EQ(complaint_of(piped(14, "1f1b", 1, 24)), "") << "embedding and head alone";
  EXPECT_THAT(complaint_of(piped(15, "1f1b", 1, 24)),
              HasSubstr("pp = 15: a stage needs at least one unit (embedding, a block, head): "
                        "stages=15 units=14"));
  EXPECT_EQ(complaint_of(piped(4, "interleaved", 3, 24)), "");
  EXPECT_THAT(complaint_of(piped(4, "interleaved", 4, 24)), HasSubstr("stages=16 units=14"));
  EXPECT_THAT(complaint_of(piped(4, "interleaved", 3, 23)),
              HasSubstr("vpp = 3: the interleaved schedule needs a multiple of pp = 4"));
  EXPECT_EQ(complaint_of(piped(4, "interleaved", 1, 23)), "");
  EXPECT_THAT(complaint_of(piped(4, "1f1b", 3, 24)),
              HasSubstr("vpp = 3: only the interleaved schedule has virtual stages, not 1f1b"));
  EXPECT_EQ(complaint_of(piped(4, "dualpipe-v", 1, 8)), "");
  EXPECT_THAT(complaint_of(piped(4, "dualpipe-v", 1, 7)),
              HasSubstr("pp = 4: dualpipe-v needs at least 2 pp micro-batches; there are 7"));
  EXPECT_EQ(complaint_of(piped(6, "zb-v", 1, 24)), "");
  EXPECT_EQ(complaint_of(piped(7, "zb-v", 1, 24)), "");
  EXPECT_THAT(complaint_of(piped(8, "zb-v", 1, 24)), HasSubstr("stages=16 units=14"));
  const auto laid = [&](std::vector<std::int64_t> layers) {
    return [=](Training& t) {
      piped(3, "1f1b", 1, 24)(t);
      t.stage_layers = layers;
    };
  };
  EXPECT_EQ(complaint_of(laid({0, 8, 4})), "");
  EXPECT_THAT(complaint_of(laid({6, 6})),
              HasSubstr("stage_layers = 2: must name the blocks of each of 3 stages"));
  EXPECT_THAT(complaint_of(laid({4, 4, 5})),
              HasSubstr("stage_layers = 13: must add up to the model's 12 blocks"));
  EXPECT_THAT(complaint_of(laid({-1, 9, 4})), HasSubstr("stage_layers = -1: must not be negative"));
}

TEST(Stages, MiddleOnesTakeTheRemainder) {
  using Blocks = std::vector<std::int64_t>;
  const auto blocks = [](std::int64_t layers, std::int64_t pipeline, std::int64_t rounds = 1) {
    ModelSpec spec = *named_model("gpt2-124m");
    spec.layers = layers;
    Training training;
    training.degrees.pp = pipeline;
    training.virtual_stages = rounds;
    if (rounds > 1) training.schedule = "interleaved";
    return stage_blocks(spec, training);
  };
  EXPECT_EQ(blocks(12, 4), (Blocks{3, 3, 3, 3}));
  EXPECT_EQ(blocks(13, 4), (Blocks{3, 4, 3, 3}));
  EXPECT_EQ(blocks(14, 4), (Blocks{3, 4, 4, 3}));
  EXPECT_EQ(blocks(15, 4), (Blocks{4, 4, 4, 3}));
  EXPECT_EQ(blocks(5, 1), Blocks{5});
  EXPECT_EQ(blocks(3, 4), (Blocks{1, 1, 1, 0})) << "the head alone";
  EXPECT_EQ(blocks(3, 5), (Blocks{0, 1, 1, 1, 0})) << "embedding and head alone";
  // Llama 3 405B: 126 blocks on 16 ranks of 8 stages each, where embedding and head count as one.
  Blocks wanted(128, 1);
  wanted.front() = wanted.back() = 0;
  EXPECT_EQ(blocks(126, 16, 8), wanted);
}

TEST(Stages, GoRoundTheRanksOrThereAndBack) {
  Training training;
  training.degrees.pp = 3;
  training.virtual_stages = 2;
  training.schedule = "interleaved";
  EXPECT_EQ(training.chunks(), 2);
  EXPECT_EQ(training.stages(), 6);
  std::vector<std::int64_t> ranks;
  for (int stage = 0; stage < 6; ++stage) ranks.push_back(rank_of_stage(training, stage));
  EXPECT_EQ(ranks, (std::vector<std::int64_t>{0, 1, 2, 0, 1, 2}));
  for (const char* schedule : {"zb-v", "dualpipe-v"}) {
    training.virtual_stages = 1;
    training.schedule = schedule;
    EXPECT_EQ(training.chunks(), 2);
    ranks.clear();
    for (int stage = 0; stage < 6; ++stage) ranks.push_back(rank_of_stage(training, stage));
    EXPECT_EQ(ranks, (std::vector<std::int64_t>{0, 1, 2, 2, 1, 0}));
    training.degrees.pp = 1;
    EXPECT_EQ(training.chunks(), 1) << "one rank has no V";
    training.degrees.pp = 3;
  }
  training.schedule = "zb-h1";
  EXPECT_EQ(training.chunks(), 1);
}

TEST(Stages, MicroBatchesAndTokensOfAStep) {
  Training training;
  training.degrees.dp_shard = 3;
  training.micro_batch = 2;
  training.global_batch = 24;
  const ModelSpec spec = *named_model("gpt2-124m");
  EXPECT_EQ(training.micro_batches(), 4);
  EXPECT_EQ(training.length(spec), 1024) << "the model's longest";
  EXPECT_EQ(training.tokens_per_step(spec), 24 * 1024);
  training.sequence = 100;
  EXPECT_EQ(training.tokens_per_step(spec), 2400);
}

// Rows go to every tensor rank of an expert; without sequence parallelism as many of them as there
// are tensor ranks hold the same rows already.
TEST(Experts, CopiesOfARow) {
  Training training;
  const auto copies = [&](std::int64_t tensor, std::int64_t expert_tensor, bool cut) {
    training.degrees.tp = tensor;
    training.expert_tensor = expert_tensor;
    training.sequence_parallel = cut;
    return expert_copies(training);
  };
  EXPECT_EQ(copies(4, 1, true), 1);
  EXPECT_EQ(copies(4, 4, true), 4);
  EXPECT_EQ(copies(4, 4, false), 1);
  EXPECT_EQ(copies(2, 4, false), 2);
  EXPECT_EQ(copies(4, 2, false), 1);
}

TEST(MeshSizes, AreProducts) {
  Training training;
  Degrees& degrees = training.degrees;
  degrees.dp_shard = 6;
  degrees.tp = 2;
  degrees.pp = 5;
  degrees.cp = 4;
  degrees.ep = 3;
  training.expert_tensor = 2;
  EXPECT_EQ(degrees.ranks(), 240);
  EXPECT_EQ(degrees.shard_ranks(), 24);
  EXPECT_EQ(training.expert_data(), 8);
  degrees.shard_over(12, degrees.dp());
  EXPECT_EQ(degrees.shard_ranks(), 12);
}

struct Format {
  const char* name;
  ElementType compute;
  double activation;
  double dispatch;
  StateBytes state;
};

TEST(Precisions, KeepTheirStates) {
  for (const Format& format : {Format{"fp32", ElementType::kF32, 4, 4, {4, 4, 0, 8}},
                               Format{"mixed", ElementType::kBF16, 2, 2, {2, 2, 4, 8}},
                               Format{"bf16", ElementType::kBF16, 2, 2, {2, 4, 4, 8}},
                               Format{"fp16", ElementType::kF16, 2, 2, {2, 2, 8, 8}},
                               Format{"bf16-moments", ElementType::kBF16, 2, 2, {2, 4, 4, 4}},
                               Format{"fp8", ElementType::kF8E4M3, 2, 1, {2, 4, 4, 8}}}) {
    const Precision found = *precision(format.name);
    EXPECT_EQ(found.name, format.name);
    EXPECT_EQ(found.compute, format.compute) << format.name;
    EXPECT_EQ(found.activation_bytes, format.activation) << format.name;
    EXPECT_EQ(found.dispatch_bytes, format.dispatch) << format.name;
    EXPECT_EQ(found.state, format.state) << format.name;
    StateBytes half = format.state;
    half.moments /= 2;
    EXPECT_EQ(precision(format.name, Optimizer::kMomentum)->state, half) << format.name;
    half.moments = 0;
    EXPECT_EQ(precision(format.name, Optimizer::kSgd)->state, half) << format.name;
  }
  EXPECT_EQ(precision_names().size(), 6u);
  EXPECT_EQ(precision("fp7"), std::nullopt);
}

// ZeRO-Infinity's stages one by one, of three ranks.
TEST(Precisions, StagesShardOneStateMoreEach) {
  const StateBytes whole{2, 3, 5, 7};
  EXPECT_EQ(state_bytes(whole, 0, 4), whole);
  EXPECT_EQ(state_bytes(whole, 1, 4), (StateBytes{2, 3, 5.0 / 4, 7.0 / 4}));
  EXPECT_EQ(state_bytes(whole, 2, 4), (StateBytes{2, 3.0 / 4, 5.0 / 4, 7.0 / 4}));
  EXPECT_EQ(state_bytes(whole, 3, 4), (StateBytes{2.0 / 4, 3.0 / 4, 5.0 / 4, 7.0 / 4}));
  EXPECT_EQ(whole.optimizer(), 12);
  EXPECT_EQ(whole.all(), 17);
}

}  // namespace
}  // namespace shoal::plan::training_test
