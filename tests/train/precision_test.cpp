#include "shoal/train/precision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "shoal/base/error.h"
#include "shoal/train/config/validate.h"
#include "shoal/train/training_state.h"
#include "tests/error_text.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::precision_test {
namespace {

const Sets kBf16{"precision.type=bf16"};
const Sets kBf16All{"precision.type=bf16", "precision.gradients=bf16", "precision.moments=bf16"};
const Sets kStochastic{"precision.type=bf16", "precision.master_weights=false",
                       "precision.moments=bf16", "precision.gradients=bf16"};
const Sets kFp16{"precision.type=fp16"};

class PrecisionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data");
  }
  std::vector<StepMetrics> train(const std::string& name, const Sets& sets, int ranks) {
    return train_on_threads(folder_.path() + "/" + name, job_, sets, ranks);
  }
  std::string checkpoint(const std::string& name, int step) const {
    return fmt::format("{}/{}/checkpoints/step-{}", folder_.path(), name, step);
  }

  TemporaryFolder folder_;
  std::string job_;
};

void expect_close(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b,
                  double bound, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i].loss - b[i].loss) / b[i].loss);
  ::testing::Test::RecordProperty(what, fmt::format("{:.2g}", worst));
  EXPECT_LE(worst, bound) << what;
}

void expect_equal(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].loss, b[i].loss) << what << ", step " << i + 1;
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm) << what << ", step " << i + 1;
    EXPECT_EQ(a[i].loss_scale, b[i].loss_scale) << what << ", step " << i + 1;
    EXPECT_EQ(a[i].skipped, b[i].skipped) << what << ", step " << i + 1;
  }
}

// A factor rounded to 8 bits is off by up to 2^-8, the mean of many products far less: the first
// losses differ by 1e-5 and less. Then runs drift apart as any two do that differ in rounding, to
// about 3e-4 in this job in every type; the bound leaves room for other processors.
TEST_F(PrecisionTest, LossesAreThoseOfFloat32WithinABound) {
  const auto reference = train("fp32", {}, 1);
  EXPECT_LT(reference.back().loss, reference.front().loss - 0.5)
      << "nothing was learnt: the comparison would show nothing";
  expect_close(train("bf16", kBf16, 1), reference, 2e-3, "bf16 with masters");
  expect_close(train("bf16 all", kBf16All, 1), reference, 2e-3,
               "bf16 with bf16 gradients and moments");
  expect_close(train("stochastic", kStochastic, 1), reference, 2e-3, "bf16 without masters");
  expect_close(train("fp16", kFp16, 1), reference, 2e-3, "fp16");
  const auto different = train("bf16 once more", kBf16, 1);
  EXPECT_NE(different[5].loss, reference[5].loss) << "bf16 weights were not used";
}

TEST_F(PrecisionTest, RanksMicroBatchesAndShardsTrainTheSame) {
  for (const auto& [name, sets] : std::vector<std::pair<std::string, Sets>>{
           {"bf16", kBf16}, {"stochastic", kStochastic}, {"fp16", kFp16}}) {
    // Sums in another order round to other 16-bit numbers now and then; gradients in bf16 are
    // rounded once more by each sum.
    const double bound = name == "stochastic" ? 1e-3 : name == "bf16" ? 2e-4 : 5e-5;
    const auto reference = train(name + " one", sets, 1);
    expect_close(train(name + " micro", sets + Sets{"training.micro_batch=2"}, 1), reference, bound,
                 name + ", 1 rank x 4 x 2");
    expect_close(train(name + " two", sets, 2), reference, bound, name + ", 2 ranks");
    for (const char* arena : {"parallelism.arena=true", "parallelism.arena=false"}) {
      for (const char* stage :
           {"parallelism.zero_stage=1", "parallelism.zero_stage=2", "parallelism.zero_stage=3"}) {
        // One kind of weights through every way of sharding; the others through one of each kind.
        const bool some =
            std::string(stage).back() == (std::string(arena).ends_with("true") ? '3' : '2');
        if (name != "bf16" && !some) continue;
        expect_close(
            train(fmt::format("{} {} {}", name, arena, stage), sets + Sets{arena, stage}, 2),
            reference, bound, fmt::format("{}, 2 ranks, {}, {}", name, arena, stage));
      }
    }
    expect_close(train(name + " hybrid",
                       sets + Sets{"parallelism.zero_stage=3",
                                   "parallelism.data_parallel_replicate_degree=2"},
                       4),
                 reference, bound, name + ", hybrid 2 x 2");
  }
}

TEST_F(PrecisionTest, ActivationCheckpointingGivesTheSameBits) {
  for (const auto& [name, sets] :
       std::vector<std::pair<std::string, Sets>>{{"bf16", kBf16}, {"fp16", kFp16}}) {
    const auto plain = train(name, sets, 1);
    for (const char* mode :
         {"activation_checkpoint.mode=full", "activation_checkpoint.mode=selective"})
      expect_equal(train(name + mode, sets + Sets{mode}, 1), plain, name + ", " + mode);
  }
}

TEST_F(PrecisionTest, ResumedRunsAreBitwiseEqual) {
  for (const auto& [name, sets] : std::vector<std::pair<std::string, Sets>>{
           {"bf16", kBf16},
           {"bf16 all", kBf16All},
           {"stochastic", kStochastic},
           {"fp16", kFp16 + Sets{"precision.loss_scale_growth_interval=3"}}}) {
    for (const int ranks : {1, 2}) {
      if (ranks == 1 && name != "stochastic") continue;
      const std::string what = fmt::format("{} on {}", name, ranks);
      const auto whole = train(what + " whole", sets, ranks);
      EXPECT_THROW(train(what, sets + Sets{"debug.fault=error", "debug.fault_step=10"}, ranks),
                   Error);
      expect_equal(train(what, sets, ranks), whole, what);
    }
  }
}

// One rank's gradient overflows: every rank skips that step, the scale is halved, and the run goes
// on; no update, no decay, no count.
TEST_F(PrecisionTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const Sets fault =
      kFp16 + Sets{"debug.fault=overflow", "debug.fault_step=6", "precision.loss_scale=1024",
                   "precision.loss_scale_growth_interval=4"};
  for (const char* stage :
       {"parallelism.zero_stage=0", "parallelism.zero_stage=2", "parallelism.zero_stage=3"}) {
    const auto metrics = train(stage, fault + Sets{stage, "debug.fault_rank=1"}, 2);
    const auto alone = train(fmt::format("one {}", stage), fault + Sets{stage}, 1);
    ASSERT_EQ(metrics.size(), 20u);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(metrics[i].skipped, i == 5) << i;
      EXPECT_EQ(std::isfinite(metrics[i].grad_norm), i != 5) << i;
      EXPECT_NEAR(metrics[i].loss, alone[i].loss, 1e-3 * alone[i].loss)
          << "the ranks did not skip together: step " << i + 1;
    }
    // Four good steps double it, after step 4; step 6 halves it; four more good ones and it doubles
    // again.
    EXPECT_EQ(metrics[3].loss_scale, 1024);
    EXPECT_EQ(metrics[4].loss_scale, 2048);
    EXPECT_EQ(metrics[5].loss_scale, 2048);
    EXPECT_EQ(metrics[6].loss_scale, 1024);
    EXPECT_EQ(metrics[9].loss_scale, 1024);
    EXPECT_EQ(metrics[10].loss_scale, 2048);
    EXPECT_LT(metrics.back().loss, metrics.front().loss - 0.5);
  }
}

TEST_F(PrecisionTest, AnOverflowWithoutALossScaleIsAnError) {
  try {
    train("bf16", kBf16 + Sets{"debug.fault=overflow", "debug.fault_step=3"}, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNonFinite);
    EXPECT_NE(std::string(error.what()).find("step 3"), std::string::npos) << error.what();
  }
}

// A scale so high that real gradients overflow float16 comes down by itself, one skipped step after
// the other.
TEST_F(PrecisionTest, TheLossScaleFindsItsHeight) {
  const auto metrics =
      train("high", kFp16 + Sets{"precision.loss_scale=549755813888", "training.steps=40"}, 2);
  EXPECT_TRUE(metrics.front().skipped);
  EXPECT_FALSE(metrics.back().skipped);
  EXPECT_LT(*metrics.back().loss_scale, *metrics.front().loss_scale);
  EXPECT_LT(metrics.back().loss, metrics.front().loss - 0.3);
}

// Checkpoints hold masters in float32: a run of any precision goes on from that of any other.
TEST_F(PrecisionTest, ARunGoesOnInAnotherPrecision) {
  const auto reference = train("fp32", {}, 1);
  const std::vector<Sets> ways{kBf16, {}, kStochastic, kFp16};
  for (std::size_t first = 0; first < ways.size(); ++first) {
    const std::string name = "chain " + std::to_string(first);
    for (int i = 0; i < 3; ++i) {
      const Sets fault{"debug.fault=error", fmt::format("debug.fault_step={}", 5 * i + 7)};
      EXPECT_THROW(train(name, ways[(first + static_cast<std::size_t>(i)) % 4] + fault, 2), Error);
    }
    expect_close(train(name, ways[(first + 3) % 4], 1), reference, 2e-3, name);
  }
}

TEST_F(PrecisionTest, MastersBeginWithTheInitialWeightsThemselves) {
  std::atomic<int> stop = 15;
  for (const auto& [name, sets] : std::vector<std::pair<std::string, Sets>>{
           {"fp32", {}}, {"bf16", kBf16}, {"sharded", kFp16 + Sets{"parallelism.zero_stage=3"}}})
    train_on_threads(folder_.path() + "/" + name, job_, sets, 2, &stop);
  const auto load = [&](const std::string& name) {
    auto model = nn::make_model(read_record(checkpoint(name, 0)).model);
    model->materialize();
    load_model(*model, checkpoint(name, 0), {});
    return model;
  };
  const auto reference = load("fp32");
  for (const char* name : {"bf16", "sharded"}) {
    const auto model = load(name);
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_TRUE(model->parameters()[i]->tensor().equal(reference->parameters()[i]->tensor()))
          << name << " " << model->parameters()[i]->name();
    }
  }
}

TEST_F(PrecisionTest, RulesByNameComeFirstAndVectorsStayInFloat32) {
  const Job job = parse_job(job_, "small.toml",
                            {"precision.parameters=[\"*.norm_1.weight=fp16\", \"head.*=fp32\", "
                             "\"*.mlp.*=bf16\", \"blocks.1.mlp.up.*=fp16\"]",
                             "precision.gradients=bf16"});
  model::ModelSpec spec = model_spec(job, {.vocab = 257});
  spec.tied_embeddings = false;
  const auto model = nn::make_model(spec);
  set_types(*model, job, Precision::kBf16);
  const auto type = [&](const char* name) {
    return model->find_parameter(name)->tensor().scalar_type();
  };
  EXPECT_EQ(type("embedding.tokens.weight"), at::kBFloat16);
  EXPECT_EQ(type("head.output.weight"), at::kFloat);
  EXPECT_EQ(type("blocks.0.norm_1.weight"), at::kHalf);
  EXPECT_EQ(type("blocks.0.norm_2.weight"), at::kFloat);
  EXPECT_EQ(type("blocks.0.attention.qkv.bias"), at::kFloat);
  EXPECT_EQ(type("blocks.1.mlp.up.bias"), at::kBFloat16) << "the first rule that fits counts";
  EXPECT_EQ(model->find_parameter("head.output.weight")->gradient_type(), at::kBFloat16);
  const Job wrong =
      parse_job(job_, "small.toml", {"precision.parameters=[\"blocks.*.mpl.*=fp32\"]"});
  EXPECT_NE(shoal::error_text([&] {
              set_types(*model, wrong, Precision::kBf16);
            }).find("\"blocks.*.mpl.*\" fits no parameter"),
            std::string::npos);
}

TEST_F(PrecisionTest, IsToldWithAllThatIsNotFloat32) {
  std::string weights;
  const auto told = [&](const Sets& sets) {
    const Job job = parse_job(job_, "small.toml", sets);
    const auto model = nn::make_model(model_spec(job, {.vocab = 257}));
    set_types(*model, job, job.config.precision.type);
    std::size_t matrices = 0;
    for (const auto& parameter : model->parameters())
      matrices += parameter->global_shape().size() > 1 ? 1 : 0;
    weights = fmt::format("bf16 weights ({} of {} tensors)", matrices, model->parameters().size());
    return describe_precision(*model, job.config);
  };
  EXPECT_EQ(told({}), "");
  std::string found = told(kBf16);
  EXPECT_EQ(found, weights + " with fp32 masters, gradients fp32, moments fp32");
  found = told(kStochastic);
  EXPECT_EQ(found, weights + " rounded stochastically, gradients bf16, moments bf16");
  EXPECT_EQ(told({"precision.gradients=bf16"}), "fp32 weights, gradients bf16, moments fp32");
  EXPECT_EQ(told({"precision.gathers=bf16"}),
            "fp32 weights, gradients fp32, moments fp32, gathers bf16");
  EXPECT_EQ(told({"optimizer.name=sgd", "precision.gradients=bf16"}),
            "fp32 weights, gradients bf16");
}

TEST_F(PrecisionTest, EveryParameterMayHaveSixteenBits) {
  const auto reference = train("fp32", {}, 1);
  expect_close(train("all bf16", kBf16 + Sets{"precision.parameters=[\"*=bf16\"]"}, 2), reference,
               4e-3, "norms and biases too");
  expect_close(
      train("mixed", {"precision.parameters=[\"*.mlp.*=bf16\", \"*.attention.*=fp16\"]"}, 2),
      reference, 2e-3, "three types");
}

TEST_F(PrecisionTest, AutoTakesTheFasterTypeAndKeepsIt) {
  const ProductTimes fast{.fp32_s = 2e-3, .narrow_s = 1e-3};
  const ProductTimes slow{.fp32_s = 1e-3, .narrow_s = 2e-3};
  const ProductTimes same{.fp32_s = 1.02e-3, .narrow_s = 1e-3};
  EXPECT_EQ(faster_type(fast), Precision::kBf16);
  EXPECT_EQ(faster_type(slow), Precision::kFp32);
  EXPECT_EQ(faster_type(same), Precision::kFp32);
  EXPECT_EQ(describe_choice(fast),
            "precision.type = \"auto\": bf16. A layer's products take 1 ms in bf16 and 2 ms in "
            "fp32 on this processor (2.00 x).");
  EXPECT_EQ(faster_type({.fp32_s = 1.06e-3, .narrow_s = 1e-3}), Precision::kBf16);
  EXPECT_EQ(warn_if_slow(Precision::kFp16, slow), std::nullopt);
  EXPECT_EQ(warn_if_slow(Precision::kFp16, {.fp32_s = 1, .narrow_s = 9.9}), std::nullopt);
  EXPECT_TRUE(warn_if_slow(Precision::kFp16, {.fp32_s = 1, .narrow_s = 10.1}));
  const auto warning = warn_if_slow(Precision::kFp16, {.fp32_s = 1e-3, .narrow_s = 5e-2});
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("fp16 50 times slower than fp32"), std::string::npos) << *warning;

  train("auto", {"precision.type=auto", "training.steps=5"}, 2);
  const Precision chosen = read_record(checkpoint("auto", 5)).precision;
  EXPECT_TRUE(chosen == Precision::kBf16 || chosen == Precision::kFp32) << name_of(chosen);
  const auto resumed = train("auto", {"precision.type=auto"}, 2);
  EXPECT_EQ(read_record(checkpoint("auto", 20)).precision, chosen);
  const auto fixed = train("fixed", {std::string("precision.type=") + name_of(chosen)}, 2);
  expect_equal(resumed, fixed, "auto, resumed");
}

TEST_F(PrecisionTest, ProductsAreMeasuredOnEveryRankAlike) {
  model::ModelSpec spec;
  spec.hidden = 64, spec.ffn = 128;
  const ProductTimes times =
      measure_products(spec, 32, Precision::kBf16, std::chrono::milliseconds(5), {});
  EXPECT_GT(times.fp32_s, 0);
  EXPECT_GT(times.narrow_s, 0);
}

}  // namespace
}  // namespace shoal::train::precision_test
