#include "shoal/train/config/elastic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "shoal/train/config/lineage.h"
#include "shoal/train/config/validate.h"
#include "tests/train/temporary_folder.h"
#include "tests/train_config/jobs.h"

namespace shoal::train::elastic_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Job elastic(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"elastic.enabled=true", "training.micro_batch=2"});
  return job_with(sets);
}

TEST(Elastic, OneRankWithTheWholeModelIsAMember) {
  validate(elastic({}), 1);
  validate(elastic({"elastic.members=12", "precision.type=bf16", "elastic.ports=7000-7009",
                    "elastic.join=[\"10.0.0.1:7000\", \"node3:7000\"]"}),
           1);
  validate(elastic({"elastic.listen=10.0.0.2", "elastic.key_file=key"}), 1);
  validate(elastic({"elastic.on_quorum_loss=survivors"}), 1);
  validate(elastic({"elastic.advertise=1.2.3.4:9000", "elastic.ports=7000-7010"}), 1);
  validate(elastic({"elastic.token_key=" + std::string(64, 'a')}), 1);
  validate(elastic({"elastic.join=[\"a:1\"]", "elastic.token_file=token"}), 1);
}

TEST(Elastic, AnEtcdIsCheckedBeforeTheStart) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return refusal([&] { validate(elastic(sets), 1); });
  };
  validate(elastic({"elastic.etcd=[\"http://10.0.0.1:2379\", \"https://node3:2379\"]",
                    "elastic.etcd_ca_file=ca.pem", "elastic.etcd_patience_s=5"}),
           1);
  EXPECT_THAT(refused({"elastic.etcd=[\"10.0.0.1:2379\"]"}),
              HasSubstr("\"10.0.0.1:2379\" is no address: http://HOST:PORT or https://HOST:PORT"));
  EXPECT_THAT(refused({"elastic.etcd=[\"http://a:1\"]", "elastic.on_quorum_loss=survivors"}),
              HasSubstr("with elastic.etcd whoever reaches the etcd goes on"));
  EXPECT_THAT(refused({"elastic.etcd_patience_s=5"}), HasSubstr("elastic.etcd names none"));
  EXPECT_THAT(refused({"elastic.etcd_ca_file=ca.pem"}), HasSubstr("elastic.etcd names none"));
  EXPECT_THAT(refusal([] { validate(job_with({"elastic.etcd=[\"http://a:1\"]"}), 1); }),
              HasSubstr("elastic.enabled is false"));
}

TEST(Elastic, RoundsEndAtAWholeNumberOfThemAndTravelAtOnce) {
  const std::vector<std::string> rounds{"low_communication.method=diloco",
                                        "low_communication.every=4", "checkpoint.interval=8"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = rounds;
    sets.insert(sets.end(), more.begin(), more.end());
    return elastic(sets);
  };
  validate(with({}), 1);
  validate(with({"low_communication.codec=e3m0", "checkpoint.interval=0"}), 1);
  validate(with({"low_communication.every=1000000", "checkpoint.interval=0"}), 1);
  EXPECT_THAT(refusal([&] { validate(with({"checkpoint.interval=10"}), 1); }),
              HasSubstr("low_communication.every = 4 steps are done: a multiple of that, such as "
                        "12"));
  EXPECT_THAT(refusal([&] { validate(with({"checkpoint.interval=1"}), 1); }),
              HasSubstr("such as 4"));
  EXPECT_THAT(refusal([&] { validate(with({"low_communication.method=streaming_diloco"}), 1); }),
              HasSubstr("take \"diloco\" or \"local_sgd\""));
  // The ranks are one member, however they divide the model.
  validate(with({}), 2);
  validate(with({"parallelism.zero_stage=1"}), 2);
}

// What several ranks of a member hold must stay the same on all of them, and their blocks differ.
TEST(Elastic, CodecsRoundWhatOneRankHoldsOrAllAlike) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets{"low_communication.method=diloco", "low_communication.every=4",
                                  "low_communication.codec=i4", "checkpoint.interval=8"};
    sets.insert(sets.end(), more.begin(), more.end());
    return elastic(sets);
  };
  const std::string tensor = "parallelism.tensor_parallel_degree=2";
  const std::string pipeline = "parallelism.pipeline_parallel_degree=2";
  EXPECT_THAT(refusal([&] { validate(with({tensor}), 2); }),
              HasSubstr("has tensor- or expert-parallel ranks: \"none\""));
  EXPECT_THAT(refusal([&] { validate(with({pipeline}), 2); }),
              HasSubstr("has stages with tied embeddings: \"none\""));
  validate(with({tensor, "low_communication.codec=none"}), 2);
  validate(with({pipeline, "model.tied_embeddings=false"}), 2);
  validate(with({"parallelism.context_parallel_degree=2"}), 2);
  validate(with({"parallelism.zero_stage=1"}), 2);
}

TEST(Elastic, MembersMayHaveSeveralRanks) {
  const auto mesh = [](const std::vector<std::string>& sets, int ranks) {
    const Job job = elastic(sets);
    validate(job, ranks);
    return describe_mesh(job, ranks);
  };
  EXPECT_EQ(mesh({}, 1), "");
  EXPECT_EQ(mesh({}, 2), "dp 2");
  EXPECT_EQ(mesh({"parallelism.zero_stage=3"}, 4), "dp 4, zero_stage 3");
  EXPECT_EQ(mesh({"parallelism.zero_stage=1", "parallelism.data_parallel_replicate_degree=2"}, 4),
            "dp 4, dp_replicate 2, zero_stage 1");
  EXPECT_EQ(
      mesh({"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2"}, 4),
      "tp 2, pp 2");
  EXPECT_EQ(mesh({"parallelism.context_parallel_degree=2"}, 2), "cp 2");
  // Stages of other blocks, and units of other sizes, are other parts of the model.
  EXPECT_EQ(mesh({"parallelism.pipeline_parallel_degree=2",
                  "parallelism.pipeline_parallel_stages_by=count"},
                 2),
            R"(pp 2, pipeline_parallel_stages_by "count")");
  EXPECT_EQ(mesh({"parallelism.zero_stage=3", "parallelism.shard_units=model"}, 2),
            R"(dp 2, zero_stage 3, shard_units "model")");
  // Members that sum the same parts in another order have other bits.
  EXPECT_EQ(
      mesh({"parallelism.context_parallel_degree=2", "parallelism.context_parallel_method=heads"},
           2),
      R"(cp 2, context_parallel_method "heads")");
  EXPECT_EQ(mesh({"parallelism.zero_stage=2", "parallelism.reduce_every_micro_batch=true"}, 2),
            "dp 2, zero_stage 2, reduce_every_micro_batch true");
}

TEST(Elastic, WhatCannotBeLostIsRefused) {
  const auto refused = [](const std::vector<std::string>& sets, int ranks = 1) {
    return refusal([&] { validate(elastic(sets), ranks); });
  };
  const std::string pipeline = "parallelism.pipeline_parallel_degree=2";
  EXPECT_THAT(refused({pipeline, "parallelism.pipeline_parallel_schedule=dualpipe-v"}, 2),
              HasSubstr("members of an elastic group (elastic.enabled) one would run"));
  EXPECT_THAT(refused({pipeline, "parallelism.pipeline_parallel_schedule=zb-h1",
                       "parallelism.pipeline_parallel_post_validation=true"},
                      2),
              HasSubstr("agree on each: leave it out"));
  EXPECT_THAT(refused({"training.micro_batch=5"}, 2), HasSubstr("must divide a rank's share"));
  EXPECT_THAT(refused({"parallelism.transport=tcp"}),
              HasSubstr("use TCP, and the ranks of each share memory: \"auto\""));
  EXPECT_THAT(refused({"precision.type=auto"}), HasSubstr("all of an elastic group"));
  EXPECT_THAT(refused({"optimizer.state_folder=states"}), HasSubstr("keeps a copy"));
  EXPECT_THAT(
      refused({"elastic.listen=10.0.0.2"}),
      HasSubstr(
          "elastic.key_file = \"\" (default): members that other hosts reach (elastic.listen = "
          "\"10.0.0.2\") need a secret"));
  EXPECT_THAT(refused({"elastic.members=13"}), HasSubstr("a step has 12 micro-batches"));
  EXPECT_THAT(refused({"training.micro_batch=0"}), HasSubstr("set training.micro_batch"));
  EXPECT_THAT(refused({"elastic.join=[\"7000\"]"}), HasSubstr("elastic.join"));
  EXPECT_THAT(refused({"elastic.ports=x"}), HasSubstr("elastic.ports"));
  EXPECT_THAT(refused({"elastic.advertise=1.2.3.4:9000"}), HasSubstr("the system chooses"));
  EXPECT_THAT(refused({"elastic.token_key=abc"}),
              HasSubstr("the key to join tokens is 64 hexadecimal digits"));
}

TEST(Elastic, ItsKeysBelongToElasticJobs) {
  for (const char* key : {"elastic.join=[\"a:1\"]", "elastic.members=2",
                          "elastic.suspect_after_s=1", "elastic.step_timeout_s=9"}) {
    EXPECT_THAT(refusal([key] { validate(job_with({key}), 1); }),
                HasSubstr("elastic.enabled is false (--elastic)"));
  }
}

TEST(Elastic, WhatAStepComputesIsSetAlike) {
  const Job group = elastic({"optimizer.learning_rate=0.1", "debug.seed=3"});
  const Job own = elastic({"optimizer.learning_rate=0.2", "debug.seed=3", "checkpoint.interval=7",
                           "elastic.join=[\"a:1\"]", "parallelism.threads_per_rank=2",
                           "validation.interval=9", "data.folders=[\"elsewhere\"]"});
  EXPECT_THAT(keys_that_differ(group.config, own.config),
              ElementsAre("optimizer.learning_rate is 0.1 there and 0.2 here"));
  EXPECT_THAT(keys_that_differ(group.config, group.config), ElementsAre());
}

/// A step of the branch `branch` of a group.
LineageStep step(std::int64_t number, const std::string& branch = "a") {
  return {.step = number,
          .epoch = 2,
          .members = {{"m1", 8 * number, 6, 2}, {"m2", 8 * number + 6, 2, 1}},
          .instruction_set = "avx2",
          .before = branch + std::to_string(number - 1),
          .state = branch + std::to_string(number)};
}

TEST(Lineage, LinesReadBack) {
  EXPECT_EQ(parse_lineage(to_json(step(3))), step(3));
  EXPECT_THROW(parse_lineage("{\"step\": 3}"), Error);
}

TEST(Lineage, KeepsTheStepsThatLeadToTheOneThatItGoesOnFrom) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lineage.jsonl";
  {
    LineageFile file(path, 0, "a0");
    for (const std::int64_t number : {1, 2, 3, 4}) file.append(step(number));
  }
  LineageFile(path, 3, "a3").append(step(4));
  EXPECT_THAT(read_lineage(path), ElementsAre(step(1), step(2), step(3), step(4)));
  // This member was away from step 5 to step 9.
  LineageFile(path, 9, "a9").append(step(10));
  EXPECT_THAT(read_lineage(path), ElementsAre(step(10)));
  std::ofstream(path, std::ios::app) << to_json(step(12)) << "\n";
  try {
    read_lineage(path);
    ADD_FAILURE() << "a lineage with a gap is accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("lineage.jsonl:2: step 12 follows step 10"));
  }
}

// A group that has parted in two has two steps of one number.
TEST(Lineage, StepsOfTwoBranchesAreNotMixedUp) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lineage.jsonl";
  const auto write = [&](const std::vector<LineageStep>& steps) {
    std::ofstream out(path);
    for (const LineageStep& one : steps) out << to_json(one) << "\n";
  };
  write({step(1), step(2), step(3)});
  // It goes on behind step 2 of the other branch.
  LineageFile(path, 2, "b2").append(step(3, "b"));
  EXPECT_THAT(read_lineage(path), ElementsAre(step(3, "b")));
  write({step(1), step(2, "b")});
  try {
    read_lineage(path);
    ADD_FAILURE() << "steps of two branches are taken for one lineage";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("lineage.jsonl:2: step 2 goes on from the state b1, and "
                                        "step 1 has led to a1"));
  }
}

}  // namespace
}  // namespace shoal::train::elastic_test
