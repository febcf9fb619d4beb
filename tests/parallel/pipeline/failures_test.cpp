// A pipeline in which something goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/error_text.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::failures_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3, kMicroBatches = 6;

model::ModelSpec spec() { return tiny_spec("llama-tiny", false); }

TEST(PipelineFailures, ARankThatThrowsEndsTheOthersWithItsError) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
    for (int culprit = 0; culprit < kRanks; ++culprit) {
      std::array<std::string, kRanks> said;
      const auto start = Clock::now();
      const auto body = [&](const comm::Group& group) {
        const auto table = schedule::make_schedule(name, kRanks, chunks_of(name), kMicroBatches);
        int forwards = 0;
        PipelineEvents events;
        events.action = [&](const schedule::Action& action) {
          if (action.kind == schedule::Kind::kForward && group.rank() == culprit && ++forwards == 3)
            throw Error(ErrorKind::kData, "shard", "token 7 is torn");
        };
        Rank rank(spec(), table, even_stages(8, table.stages()), group, events);
        const auto batch = step_of(kMicroBatches);
        try {
          // Only the culprit's neighbours notice within one step of a long table; all do in the
          // next.
          for (int step = 0; step < 2; ++step) rank.pipeline->run(batch);
        } catch (const Error& error) {
          said[group.rank()] = error.what();
          EXPECT_THAT(error_text([&] { rank.pipeline->run(batch); }),
                      HasSubstr("an earlier step ended with an error"));
          throw;
        }
      };
      EXPECT_THAT(error_text([&] { comm::run_on_threads(threads(kRanks), body); }),
                  HasSubstr("token 7 is torn"));
      // Long before the timeout of 30 s, which a rank that was not told would wait for.
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
      for (int rank = 0; rank < kRanks; ++rank)
        EXPECT_THAT(said[rank], HasSubstr("token 7 is torn")) << name << " rank " << rank;
    }
  }
}

TEST(PipelineFailures, ARankThatNeverComesIsATimeout) {
  auto options = threads(2);
  options.timeout = std::chrono::milliseconds(300);
  const auto start = Clock::now();
  const std::string said = error_text([&] {
    comm::run_on_threads(options, [&](const comm::Group& group) {
      const auto table = schedule::one_forward_one_backward(2, kMicroBatches);
      Rank rank(spec(), table, {4, 4}, group);
      if (group.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        throw Error(ErrorKind::kInternal, "test", "rank 1 does not take part");
      }
      rank.pipeline->run(step_of(kMicroBatches));
    });
  });
  EXPECT_THAT(said, HasSubstr("not complete after 0.3 s"));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(PipelineFailures, WhatDoesNotFitIsRefusedBeforeTheStep) {
  const auto table = schedule::gpipe(1, 2);
  Rank rank(spec(), table, {8}, {});
  EXPECT_THAT(error_text([&] { rank.pipeline->run(step_of(3)); }),
              HasSubstr("gpipe is for 2 micro-batches, there are 3"));
  auto unlabelled = step_of(2);
  unlabelled[0].context.labels = at::Tensor();
  EXPECT_THAT(error_text([&] { rank.pipeline->run(unlabelled); }),
              HasSubstr("has the context labels"));

  const auto two = schedule::gpipe(2, 2);
  const auto model = nn::make_model(spec());
  Stages stages = cut_stages(*model, two, {4, 4}, 0);
  EXPECT_THAT(error_text([&] { Pipeline({}, two, stages); }),
              HasSubstr("gpipe is for 2 ranks, the group has 1"));
  EXPECT_THAT(error_text([&] { Pipeline({}, table, Stages{}); }),
              HasSubstr("rank 0 has stages [0], and holds []"));
  schedule::Schedule broken = table;
  broken.table[0].pop_back();
  EXPECT_THAT(error_text([&] { Pipeline({}, broken, stages); }), HasSubstr("is missing"));
  schedule::Schedule endless = table;
  endless.micro_batches = 1 << 30;
  EXPECT_THAT(error_text([&] { Messages({}, endless, at::kFloat); }), HasSubstr("tags"));
}

TEST(PipelineFailures, AnActivationOfAnotherTypeIsNamed) {
  EXPECT_THAT(error_text([&] {
                comm::run_on_threads(threads(2), [&](const comm::Group& group) {
                  const auto table = schedule::gpipe(2, 1);
                  const auto model = nn::make_model(spec());
                  Stages stages = cut_stages(*model, table, {4, 4}, group.rank());
                  fill(*model);
                  Pipeline(group, table, std::move(stages), {}, at::kDouble).run(step_of(1));
                });
              }),
              AllOf(HasSubstr("0F0 gives [3, 8, 16] of type Float"), HasSubstr("of type Double")));
}

}  // namespace
}  // namespace shoal::parallel::failures_test
