// `shoal plan --search` as users and scripts call it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/command/plan_program.h"

namespace shoal::apps::plan_search_command_test {
namespace {

using plan_program::Folder;
using plan_program::json_of;
using plan_program::run;
using testing::HasSubstr;

/// By value: a loop over a part of a temporary would outlive it.
nlohmann::json best_of(const std::string& words) { return json_of(words).at("best"); }

TEST(PlanCommand, SearchKeepsWhatIsGiven) {
  const std::string words =
      "plan --search --model llama-8b --devices 64 --cluster h100 --global-batch 128 --seq-len "
      "8192 --count 20 ";
  for (const auto& one : best_of(words + "--dp 8")) EXPECT_EQ(one.at("dp"), 8);
  for (const auto& one : best_of(words + "--shard 8")) {
    EXPECT_EQ(one.at("shard"), 8);
    EXPECT_GE(one.at("zero"), 1);
  }
  for (const auto& one : best_of(words + "--recompute none --micro-batch 2"))
    EXPECT_EQ(one.at("recompute"), "none");
  for (const auto& one : best_of(words + "--offload-optimizer"))
    EXPECT_EQ(one.at("offload_optimizer"), true);
  const auto run_of = json_of(words + "--tokens 1e12").at("best").at(0);
  EXPECT_NEAR(run_of.at("run").at("days").get<double>() * 86400 /
                  (1e12 / (128 * 8192) * run_of.at("step_time_s").get<double>()),
              1, 0.02)
      << "goodput";
  EXPECT_THAT(run(words + "--tp 5").text, HasSubstr("no mesh of 64 devices"));
  EXPECT_THAT(run(words + "--shard 8").text, HasSubstr("products (shards over 8)"));
}

// All meshes that a search tries sum gradients in every step, which members do not.
TEST(PlanCommand, ASearchRefusesAJobWithMembers) {
  const Folder folder;
  const std::string job =
      folder.write("job.toml",
                   "[model]\nname = \"gpt2-1.5b\"\n[training]\nglobal_batch_sequences = 6\nsteps = "
                   "100\n[parallelism]\nranks = 2\n[low_communication]\nmethod = \"diloco\"\n"
                   "every = 50\n");
  const auto refused = run("plan --search --cluster a100 --devices 8 --model " + job);
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.text, HasSubstr("low_communication.method"));
  EXPECT_THAT(run("plan --cluster a100 --devices 2 --model " + job).text,
              HasSubstr("2 members that exchange parameters every 50 steps"));
}

// Options may make other members of a job's ranks.
TEST(PlanCommand, CountsTheMembersThatOptionsLeave) {
  const Folder folder;
  const std::string job = folder.write(
      "job.toml",
      "[model]\nname = \"gpt2-124m\"\n[training]\nglobal_batch_sequences = 8\nsteps = 100\n"
      "[parallelism]\nranks = 4\nzero_stage = 1\ndata_parallel_replicate_degree = 2\n"
      "[low_communication]\nmethod = \"diloco\"\nevery = 50\ncodec = \"i8\"\n");
  const std::string words = "plan --cluster a100 --devices 4 --model " + job;
  const auto members = [&](const std::string& more) { return run(words + more).text; };
  EXPECT_THAT(members(""), HasSubstr("2 members that exchange"));
  EXPECT_THAT(members(" --shard 1"), HasSubstr("4 members that exchange"));
  EXPECT_THAT(members(" --zero 0"), HasSubstr("4 members that exchange"));
  EXPECT_THAT(members(" --shard 4"),
              HasSubstr("4 data ranks in shards over 4 are one member, and low_communication"));
  EXPECT_THAT(members(" --zero 0 --shard 2"), HasSubstr("each data rank is a member"));
  // Anchor, momentum and what rounding took from the difference and from a member's part of the
  // sum.
  const auto states = [&](const std::string& more) {
    const auto plan = json_of(words + more);
    return plan.at("model_state_bytes").get<double>() / plan.at("parameters").get<double>();
  };
  const std::string without = " --set low_communication.method=none";
  const std::string keys = " --set low_communication.codec=none --set low_communication.every=500";
  EXPECT_GT(states(""), states(keys));
  EXPECT_NEAR(states(" --shard 1") - states(keys + " --shard 1"), 4 + 4.0 / 4, 1e-9);
}

// Neither the batch of the job nor how it divides that among its own ranks binds a search, but
// where nothing else is said its batch is trained.
TEST(PlanCommand, SearchDividesAJobInItsOwnWays) {
  const Folder folder;
  const std::string job =
      folder.write("job.toml",
                   "[model]\nname = \"gpt2-1.5b\"\n[training]\nglobal_batch_sequences = "
                   "6\nmicro_batch = 3\nsteps = 10\n"
                   "[parallelism]\nranks = 2\nzero_stage = 1\ndata_parallel_replicate_degree = 2\n"
                   "[activation_checkpoint]\nmode = \"full\"\n");
  const std::string words =
      "plan --search --cluster a100 --count 1 --seq-len 1024 --devices 8 --model " + job;
  const auto of_model = json_of(
      "plan --search --cluster a100 --count 1 --seq-len 1024 --devices 8 --model gpt2-1.5b "
      "--global-batch 32 --precision fp32");
  const auto found = json_of(words + " --global-batch 32 --precision fp32");
  EXPECT_EQ(found.at("considered"), of_model.at("considered"));
  EXPECT_EQ(found.at("best"), of_model.at("best"));
  const auto own = json_of(words).at("best").at(0);
  EXPECT_EQ(6 % own.at("dp").get<int>(), 0) << own;
  // Only the data ranks share the batch.
  EXPECT_EQ(json_of("plan --cluster a100 --devices 8 --tp 4 --set model.heads=16 --zero 1 "
                    "--global-batch 2 --micro-batch 1 --set "
                    "parallelism.data_parallel_replicate_degree=1 --model " +
                    job)
                .at("mesh")
                .at("dp"),
            2);
}

// One host of eight 32 GB devices: 8 billion parameters in training need the host's memory too.
TEST(PlanCommand, SearchOffloadsWhatDoesNotFitOtherwise) {
  const std::string words =
      "plan --search --model llama-13b --devices 8 --cluster a100-40gb --global-batch 8 --seq-len "
      "2048 --tp 1 --pp 1 --count 3 ";
  const auto best = json_of(words + "--zero 2").at("best");
  ASSERT_FALSE(best.empty());
  for (const auto& one : best) EXPECT_EQ(one.at("offload_optimizer"), true);
}

TEST(PlanCommand, AllNamesEverySchedule) {
  const std::string words =
      "plan --search --model gpt3-13b --devices 8 --pp 8 --global-batch 16 --recompute full "
      "--count 1 --schedules ";
  EXPECT_EQ(
      json_of(words + "all").at("best"),
      json_of(words + "in_turn,gpipe,1f1b,interleaved,zb-h1,zb-h2,zb-v,dualpipe-v").at("best"));
  EXPECT_THAT(run(words + "1f1b,most").text, HasSubstr("--schedules most: must be among in_turn"));
}

// 8-bit products are twice as fast on this device, and nothing else differs.
TEST(PlanCommand, SearchesOverPrecisions) {
  const auto found = json_of(
      "plan --search --model gpt2-1.5b --devices 8 --cluster h100 --global-batch 64 --precisions "
      "fp32,bf16,fp8 --count 1");
  EXPECT_EQ(found.at("best").at(0).at("precision"), "fp8");
  EXPECT_THAT(
      run("plan --search --model gpt2-1.5b --devices 8 --global-batch 64 --precisions fp7").text,
      HasSubstr("--precisions fp7"));
}

// A single pipeline of eight ranks: a schedule that fills bubbles with weight gradients beats the
// one that waits.
TEST(PlanCommand, SearchesOverSchedules) {
  const std::string words =
      "plan --search --model gpt3-13b --devices 8 --pp 8 --global-batch 16 --recompute full "
      "--count 1 --schedules ";
  const auto best = json_of(words + "1f1b,zb-v,zb-h1").at("best").at(0);
  const auto plain = json_of(words + "1f1b").at("best").at(0);
  EXPECT_NE(best.at("schedule"), "1f1b");
  EXPECT_LT(best.at("step_time_s").get<double>(), plain.at("step_time_s").get<double>());
}

}  // namespace
}  // namespace shoal::apps::plan_search_command_test
