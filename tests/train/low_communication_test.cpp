// Jobs whose members train by themselves, against the same loop by hand, against ranks that
// exchange gradients, and against what they promise to send.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

#include "shoal/base/error.h"
#include "shoal/collective/codec/coding.h"
#include "shoal/optim/synchronisation.h"
#include "shoal/train/checkpoint_use.h"
#include "shoal/train/config/members.h"
#include "shoal/train/job_options.h"
#include "shoal/train/step.h"
#include "tests/error_text.h"
#include "tests/train/member_runs.h"

namespace shoal::train::low_communication_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// With something in flight after every even step.
const Sets kStreaming{"low_communication.method=streaming_diloco",
                      "low_communication.every=4",
                      "low_communication.fragments=2",
                      "low_communication.overlap_steps=1",
                      "low_communication.mix=0.5",
                      "low_communication.codec=e3m0"};

using LowCommunication = MemberRuns;

/// Members by hand: each has a model, an optimizer and samples of its own, and
/// optim::Synchronisation on plain tensors. Returns the anchors by parameter and the mean losses.
struct ByHand {
  Values anchors;
  std::vector<double> losses;
};
ByHand train_by_hand(const Job& job, int members, int steps) {
  const JobConfig& config = job.config;
  ByHand result;
  result.losses.resize(static_cast<std::size_t>(steps));
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(members));
  comm::run_on_threads({.size = members, .arena = false}, [&](const comm::Group& group) {
    const auto data = open_data(job, true);
    const BatchPlan plan = batch_plan(job, members);
    const Key seed(static_cast<std::uint64_t>(config.debug.seed));
    const auto model = make_job_model(model_spec(job, data->sizes()), config, data->task());
    model->materialize();
    model->reset_parameters(seed.child("init"));
    const auto optimizer = optim::make_optimizer(slices_of(*model), optimizer_options(config));
    const auto reduction = parallel::reduce_after_backward(*model, {});
    TrainingStep step(*model, *optimizer, *reduction, {}, seed.child("dropout"));
    std::vector<at::Tensor> parameters;
    for (const optim::Slice& slice : optimizer->slices()) parameters.push_back(slice.parameter);
    const LowCommunicationSection& section = config.low_communication;
    optim::Synchronisation exchange(
        {parameters}, group,
        {.every = section.every,
         .outer = {.learning_rate = section.learning_rate, .momentum = section.momentum}});
    const auto schedule = schedule_options(config, steps);
    for (int s = 0; s < steps; ++s) {
      const RankBatch batch = rank_batch(*data, s * plan.global, plan, group.rank());
      const StepInput input{.step = s,
                            .learning_rate = optim::learning_rate(schedule, s),
                            .clip_norm = config.optimizer.clip_norm,
                            .labels = count_labels(batch.micro_batches)};
      losses[static_cast<std::size_t>(group.rank())].push_back(step.run(batch, input).loss);
      exchange.after_step(s + 1);
    }
    if (group.rank() != 0) return;
    const auto* anchor = static_cast<const char*>(exchange.anchors().const_data_ptr());
    for (const optim::Slice& slice : optimizer->slices()) {
      result.anchors["model." + slice.name] = {anchor, anchor + slice.parameter.nbytes()};
      anchor += slice.parameter.nbytes();
    }
  });
  for (int s = 0; s < steps; ++s) {
    for (const auto& of_member : losses)
      result.losses[static_cast<std::size_t>(s)] += of_member[static_cast<std::size_t>(s)];
    result.losses[static_cast<std::size_t>(s)] /= members;
  }
  return result;
}

TEST_F(LowCommunication, DiLoCoIsTheLoopByHandBitForBit) {
  const Sets sets = kDiLoCo + Sets{"validation.interval=3", "checkpoint.interval=6"};
  for (const int members : {2, 4}) {
    const std::string run = fmt::format("of-{}", members);
    const auto found = train(run, sets, members);
    const ByHand expected = train_by_hand(parse_job(job(), "small.toml", sets), members, 6);
    ASSERT_EQ(found.size(), 6u);
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Sums of `members` doubles in another order.
      EXPECT_NEAR(found[i].loss, expected.losses[i], 1e-14 * expected.losses[i]) << i;
    }
    EXPECT_EQ(values(run, 6, "model."), expected.anchors) << members;
  }
}

// With the mean after every step, and updates that are linear in the gradient, members make the
// step of synchronous ranks, whatever a member consists of.
TEST_F(LowCommunication, TheMeanAfterEveryStepOfSgdIsSynchronousTraining) {
  const Sets sgd = alone() + Sets{"optimizer.name=sgd",          "optimizer.momentum=0.0",
                                  "optimizer.learning_rate=0.1", "optimizer.clip_norm=0",
                                  "lr_scheduler.warmup_steps=0", "training.micro_batch=1"};
  const Sets mean{"low_communication.method=local_sgd", "low_communication.every=1"};
  const auto synchronous = train("synchronous", sgd, 1);
  expect_steps_differ(synchronous);
  const std::vector<Way> ways{
      {"four members of one rank", 4, {}},
      {"FSDP inside members", 4, kFsdp},
      {"ZeRO-1 inside members, copied",
       4,
       {"parallelism.zero_stage=1", "parallelism.data_parallel_replicate_degree=2",
        "parallelism.arena=false"}},
      {"tensor-parallel members", 4, {"parallelism.tensor_parallel_degree=2"}},
      {"context-parallel members", 4, {"parallelism.context_parallel_degree=2"}},
      {"members that are pipelines with tied embeddings",
       4,
       {"parallelism.pipeline_parallel_degree=2"}}};
  for (const Way& way : ways) {
    const auto found = train(way.name, sgd + mean + way.sets, way.ranks);
    expect_same_losses(found, synchronous, 0, way.name);
  }
}

/// Returns the f32 values that rank 0 has exchanged with ranks of another member, by call, and the
/// most values of any other type in one of these exchanges. Ranks from `half` on are the other
/// member.
std::pair<std::vector<std::int64_t>, std::int64_t> crossed(const collective::FlightBook& flight,
                                                           int half) {
  std::vector<std::int64_t> floats;
  std::int64_t most = 0;
  for (const collective::FlightPage& page : flight.pages()) {
    if (page.members.front() >= half || page.members.back() < half) continue;
    for (const collective::FlightEntry& entry : page.entries) {
      if (entry.rank != 0) continue;
      long count = 0;
      char type[16] = "";
      if (std::sscanf(entry.call.c_str(), "all_reduce of %ld x %15s", &count, type) != 2) continue;
      if (std::string(type) == "f32") {
        floats.push_back(count);
      } else {
        most = std::max<std::int64_t>(most, count);
      }
    }
  }
  return {floats, most};
}

TEST_F(LowCommunication, BetweenExchangesOnlyScalarsTravelBetweenMembers) {
  flight_ = std::make_shared<collective::FlightBook>();
  train("run",
        alone() + kFsdp + Sets{"low_communication.method=diloco", "low_communication.every=3"}, 4);
  const auto [floats, most] = crossed(*flight_, 2);
  // Two exchanges in six steps, each of this rank's shard: half of the parameters.
  ASSERT_EQ(floats.size(), 2u);
  EXPECT_EQ(floats[0], floats[1]);
  EXPECT_GT(floats[0], 10'000);
  EXPECT_LT(most, 64) << "sums that all ranks take in a step: labels, memory, signals, loss";
}

// One for each rank that owns what another rank of its member owns too, unless a codec gives both
// the same bits anyway.
TEST_F(LowCommunication, OwnersOfTheSameValuesTakeTheSumOfTheFirst) {
  const auto broadcasts = [&](const Sets& sets, int every) {
    flight_ = std::make_shared<collective::FlightBook>();
    train(fmt::format("{} {}", fmt::join(sets, " "), every),
          alone() + sets +
              Sets{"low_communication.method=diloco",
                   fmt::format("low_communication.every={}", every), "training.steps=2",
                   "lr_scheduler.warmup_steps=0"},
          4);
    std::int64_t count = 0;
    for (const collective::FlightPage& page : flight_->pages()) {
      for (const collective::FlightEntry& entry : page.entries)
        count += entry.call.starts_with("broadcast");
    }
    return count;
  };
  const Sets tensors{"parallelism.tensor_parallel_degree=2"};
  const std::vector<std::pair<Sets, std::int64_t>> ways{
      {tensors, 4},
      {{"parallelism.pipeline_parallel_degree=2", "training.micro_batch=1"}, 4},
      {kFsdp, 0},
      {tensors + Sets{"low_communication.codec=i8"}, 0}};
  // Two steps have two exchanges, or one; they are few, so that the records hold all calls.
  for (const auto& [sets, expected] : ways)
    EXPECT_EQ(broadcasts(sets, 1) - broadcasts(sets, 2), expected) << sets.front();
}

TEST_F(LowCommunication, TheBytesOfARunAreThoseOfItsExchanges) {
  const auto sent = [&](const Sets& sets, int steps) {
    double bytes = 0;
    const std::string run = fmt::format("{}-{}", sets.at(0), steps);
    std::filesystem::create_directories(path(run));
    const Job job = parse_job(this->job(), "small.toml",
                              alone() + sets + Sets{fmt::format("training.steps={}", steps)});
    validate(job, 2);
    comm::run_on_threads({.size = 2, .arena = false}, [&](const comm::Group& group) {
      RunOptions options;
      options.job = job;
      options.run_directory = path(run);
      options.world = group;
      options.console = false;
      shoal::train::train(options);
      if (group.rank() == 0) bytes = group.bytes_sent();
    });
    return bytes;
  };
  const Job plain = parse_job(job(), "small.toml");
  const auto count = static_cast<std::size_t>(
      model::parameter_count(model_spec(plain, open_data(plain, true)->sizes())));
  // All but one of the sums of a step, which are the same in both runs, are of few numbers.
  constexpr double kScalars = 1024;
  const std::vector<std::pair<Sets, collective::Codec>> ways{
      {{"low_communication.method=local_sgd"}, collective::Codec::kNone},
      {{"low_communication.method=diloco", "low_communication.codec=e3m0"},
       collective::Codec::kE3M0},
      {{"low_communication.method=streaming_diloco", "low_communication.fragments=2",
        "low_communication.codec=i8"},
       collective::Codec::kI8}};
  for (const auto& [sets, codec] : ways) {
    const Sets every = sets + Sets{"low_communication.every=4"};
    const double more = sent(every, 12) - sent(every, 8);
    collective::Coding coding;
    coding.codec = codec;
    const double exchange = codec == collective::Codec::kNone
                                ? 4.0 * static_cast<double>(count)
                                : static_cast<double>(collective::encoded_bytes(coding, count));
    // Of two members each sends 2 (M - 1) / M = 1 times what it exchanges.
    EXPECT_GE(more, exchange) << sets.at(0);
    EXPECT_LE(more, exchange + 4 * kScalars) << sets.at(0);
  }
}

TEST_F(LowCommunication, AResumedRunHasTheSameBits) {
  const std::vector<std::pair<Way, Sets>> ways{
      {{"diloco", 2, {}}, kDiLoCo + Sets{"low_communication.every=3"}},
      {{"streaming over FSDP in bf16", 4, kFsdp + Sets{"precision.type=bf16"}}, kStreaming},
      // Both stages own the embedding, at other places among their values: what they exchange must
      // stay the same, as a checkpoint has one of them.
      {{"streaming over pp",
        4,
        {"parallelism.pipeline_parallel_degree=2", "training.micro_batch=1"}},
       kStreaming},
      {{"streaming over tp in fp16",
        4,
        {"parallelism.tensor_parallel_degree=2", "precision.type=fp16"}},
       kStreaming}};
  for (const auto& [way, method] : ways) {
    const Sets sets = method + way.sets + Sets{"checkpoint.interval=2", "validation.interval=3"};
    const auto whole = train(way.name, sets, way.ranks);
    const std::string again = way.name + " again";
    const auto resumed = go_on(again, way.name, 4, sets, way.ranks);
    ASSERT_EQ(resumed.size(), 2u) << way.name;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(resumed[i].loss, whole[4 + i].loss) << way.name;
      EXPECT_EQ(resumed[i].grad_norm, whole[4 + i].grad_norm) << way.name;
    }
    EXPECT_EQ(resumed[1].evaluation->loss, whole[5].evaluation->loss) << way.name;
    EXPECT_EQ(values(again, 6, "model."), values(way.name, 6, "model.")) << way.name;
    EXPECT_EQ(values(again, 6, "member.1."), values(way.name, 6, "member.1.")) << way.name;
    EXPECT_EQ(values(again, 6, "outer."), values(way.name, 6, "outer.")) << way.name;
  }
}

// Members whose scales of the loss differ, and a run that goes on with another type.
TEST_F(LowCommunication, EachMemberGoesOnWithItsLossScale) {
  const Sets fp16 = kStreaming + Sets{"precision.type=fp16", "checkpoint.interval=2"};
  const Sets overflow{"debug.fault=overflow", "debug.fault_step=2", "debug.fault_rank=1"};
  const auto whole = train("whole", fp16 + overflow, 2);
  const auto scale_of = [&](const std::string& run, int step, int member) {
    const std::string name = fmt::format("member.{}.loss_scale", member);
    double scale = 0;
    std::memcpy(&scale, values(run, step, name).at(name).data(), sizeof scale);
    return scale;
  };
  EXPECT_EQ(scale_of("whole", 4, 1), scale_of("whole", 4, 0) / 2)
      << "the second one skipped a step";
  const auto again = go_on("again", "whole", 4, fp16, 2);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[1].loss, whole[5].loss);
  EXPECT_EQ(values("again", 6, "member."), values("whole", 6, "member."));
  // A run that has no scale leaves none behind, and one that had none begins with the job's.
  const Sets fp32 = kStreaming + Sets{"checkpoint.interval=2"};
  EXPECT_EQ(go_on("to fp32", "whole", 4, fp32, 2).size(), 2u);
  EXPECT_EQ(scale_of("to fp32", 6, 1), 0);
  train("fp32", fp32, 2);
  EXPECT_EQ(go_on("to fp16", "fp32", 4, fp16 + Sets{"precision.loss_scale=1024"}, 2).size(), 2u);
  EXPECT_EQ(scale_of("to fp16", 6, 1), 1024);
}

TEST_F(LowCommunication, ATraceShowsExchanges) {
  train("run", alone() + kDiLoCo + Sets{"metrics.trace_steps=[2, 2]"}, 2);
  std::ifstream file(RunDirectory(path("run")).trace());
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(trace, HasSubstr("member exchange"));
}

TEST_F(LowCommunication, WarnsWhereTheLastStepsAreLost) {
  const auto warning = [&](const Sets& sets, std::int64_t steps) {
    return warn_of_last_steps(parse_job(job(), "small.toml", sets).config, steps);
  };
  EXPECT_EQ(warning({}, 7), "") << "no members";
  const Sets diloco{"low_communication.method=diloco", "low_communication.every=20"};
  EXPECT_EQ(warning(diloco, 400), "");
  EXPECT_THAT(warning(diloco, 397), AllOf(HasSubstr("nothing of the last 17 steps"),
                                          HasSubstr("380 or 400 steps would end with")));
  // The result of the last fragment comes two steps after each multiple of 20.
  const Sets streaming{"low_communication.method=streaming_diloco", "low_communication.every=20",
                       "low_communication.fragments=4", "low_communication.overlap_steps=2"};
  EXPECT_EQ(warning(streaming, 402), "");
  EXPECT_THAT(warning(streaming, 400),
              AllOf(HasSubstr("18 steps before the end"), HasSubstr("382 or 402 steps would end")));
  EXPECT_EQ(warning(streaming + Sets{"low_communication.overlap_steps=0"}, 400), "");
}

// With alpha above 0 members differ from the anchor, and from each other, in every step.
TEST_F(LowCommunication, TheModelIsTheAnchor) {
  const auto steps = train("run", kStreaming + Sets{"validation.batches=0"}, 2);
  const auto anchor = values("run", 6, "model.");
  const auto first = values("run", 6, "member.0.model.");
  const auto second = values("run", 6, "member.1.model.");
  const std::string name = "blocks.0.mlp.up.weight";
  ASSERT_TRUE(anchor.contains("model." + name));
  EXPECT_NE(first.at("member.0.model." + name), second.at("member.1.model." + name));
  EXPECT_NE(first.at("member.0.model." + name), anchor.at("model." + name));
  // What evaluates and generates from a checkpoint reads the anchor.
  const TrainedModel trained = open_trained(saved("run", 6));
  const Evaluation evaluation = evaluate_split(trained, "validation", {}, 0);
  ASSERT_TRUE(steps.back().evaluation);
  // Sums over two ranks and over one.
  EXPECT_NEAR(evaluation.loss, steps.back().evaluation->loss, 1e-6 * evaluation.loss);
}

TEST_F(LowCommunication, OtherExchangesCannotGoOn) {
  const Sets sets = kDiLoCo + Sets{"checkpoint.interval=2", "checkpoint.keep_last=0"};
  train("run", sets, 2);
  const auto error_of = [&](const Sets& other, int ranks) {
    return error_text([&] { go_on("again", "run", 2, other, ranks); });
  };
  for (const int ranks : {2, 4}) {
    EXPECT_THAT(error_of(sets + Sets{"low_communication.every=3"}, ranks),
                HasSubstr("low_communication.every was 2 and is 3"));
    EXPECT_THAT(error_of(sets + Sets{"low_communication.codec=i8"}, ranks),
                HasSubstr("low_communication.codec was \"none\" and is \"i8\""));
  }
  EXPECT_THAT(error_of(sets, 1), AllOf(HasSubstr("2 ranks would be two members"),
                                       HasSubstr("a job without [low_communication]")));
  // Four members that begin with what two have saved.
  std::string text = job();
  const std::size_t model = text.find("[model]");
  text.replace(model, text.find("[data]") - model,
               fmt::format("[model]\nfrom = \"{}\"\n", saved("run", 2)));
  EXPECT_EQ(train_on_threads(path("four"), text, sets, 4).size(), 6u);
}

TEST_F(LowCommunication, MistakesOfAJobAreNamedBeforeItBegins) {
  const auto error_of = [&](const Sets& sets, int ranks = 2) {
    return error_text([&] { validate(parse_job(job(), "small.toml", sets), ranks); });
  };
  EXPECT_EQ(error_of(kDiLoCo), "");
  EXPECT_EQ(error_of(kStreaming), "");
  EXPECT_THAT(error_of({"low_communication.every=2"}), HasSubstr("method is \"none\""));
  EXPECT_THAT(error_of({"low_communication.method=local_sgd", "low_communication.every=2",
                        "low_communication.momentum=0.5"}),
              HasSubstr("which takes the mean"));
  EXPECT_THAT(error_of(kDiLoCo + Sets{"low_communication.mix=0.5"}),
              HasSubstr("belongs to streaming_diloco"));
  EXPECT_THAT(error_of(kDiLoCo, 1), HasSubstr("2 ranks would be two members"));
  EXPECT_THAT(error_of(kDiLoCo + Sets{"parallelism.zero_stage=3"}, 4),
              HasSubstr("data_parallel_replicate_degree"));
  EXPECT_THAT(error_of(kDiLoCo + Sets{"low_communication.every=7"}),
              AllOf(HasSubstr("would not have exchanged all parameters once"),
                    HasSubstr("low_communication.every = 6 would do")));
  // Four fragments that travel for two steps each need eight steps between exchanges.
  EXPECT_THAT(
      error_of(kStreaming + Sets{"low_communication.every=8", "low_communication.fragments=4",
                                 "low_communication.overlap_steps=2"}),
      HasSubstr("a run of 10 steps would do"));
  EXPECT_THAT(error_of(kStreaming + Sets{"low_communication.fragments=5"}), HasSubstr("at most 4"));
  EXPECT_THAT(error_of(kStreaming + Sets{"low_communication.overlap_steps=3"}),
              HasSubstr("at most 2"));
  EXPECT_THAT(error_of(kStreaming + Sets{"parallelism.transport=mpi"}),
              HasSubstr("low_communication.codec"));
  EXPECT_THAT(error_of(kDiLoCo + Sets{"precision.type=bf16", "precision.master_weights=false"}),
              HasSubstr("need their masters"));
  EXPECT_THAT(error_of(kDiLoCo + Sets{"parallelism.pipeline_parallel_degree=2",
                                      "parallelism.pipeline_parallel_post_validation=true"},
                       4),
              HasSubstr("may have exchanged already"));
  EXPECT_THAT(
      error_of(kDiLoCo + Sets{"model.name=deepseek-moe-tiny", "model.router_bias_rate=0.01"}),
      HasSubstr("router_bias_rate"));
}

}  // namespace
}  // namespace shoal::train::low_communication_test
