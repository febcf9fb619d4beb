// Members of several ranks of an elastic job, as threads: whatever divides the model inside them,
// they train what one rank trains, lose members as a whole, and let others in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <future>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/train/elastic/member_ranks.h"
#include "tests/train/elastic/elastic_job.h"

namespace shoal::train::wide_members_test {
namespace {

using testing::HasSubstr;

/// A way to divide a model among ranks.
struct Mesh {
  std::string name;
  int ranks = 2;
  Sets sets;
};
const Mesh kReplicas{.name = "replicas", .sets = {}};
const Mesh kZero3{.name = "zero3", .sets = {"parallelism.zero_stage=3"}};

const Sets kShort{"training.steps=6", "validation.interval=0"};
const Sets kForever{"training.steps=100000", "validation.interval=0", "lr_scheduler.name=constant",
                    "checkpoint.interval=0"};

class WideMembers : public ElasticJob {
 protected:
  /// Starts a member whose ranks are threads; returns the exit code of the first.
  std::future<int> start_wide(const std::string& name, const Mesh& mesh, const Sets& sets,
                              std::atomic<int>* stop = nullptr) const {
    return std::async(std::launch::async, [=, this] {
      const Sets all =
          Sets{"elastic.enabled=true", "elastic.suspect_after_s=1", "parallelism.in_process=true",
               "parallelism.ranks=" + std::to_string(mesh.ranks)} +
          mesh.sets + sets;
      std::filesystem::create_directories(path(name));
      std::atomic<int> code = -1;
      comm::run_on_threads(
          {.size = mesh.ranks, .arena = false, .timeout = std::chrono::seconds(60)},
          [&](const comm::Group& group) {
            at::set_num_threads(1);
            const int own = train(options_of(name, all, group, stop));
            if (group.rank() == 0) code = own;
          });
      return code.load();
    });
  }
  /// Runs two members to the end, and returns the lineage of the first.
  std::vector<LineageStep> train_two(const std::string& name, const Mesh& mesh, const Sets& sets,
                                     const Sets& of_second = {}) const {
    const std::string a = name + "-a";
    const std::string b = name + "-b";
    auto first = start_wide(a, mesh, sets + Sets{"elastic.members=2"});
    auto second = start_wide(b, mesh, sets + joining(a) + of_second);
    EXPECT_EQ(first.get() + second.get(), 0) << name;
    EXPECT_EQ(lineage(a), lineage(b)) << name;
    return lineage(a);
  }
  void expect_replayed(const std::string& name) const {
    const Replayed replayed = replay_of(name);
    EXPECT_FALSE(replayed.differs) << name << " differs behind step " << replayed.differs->step;
  }
};

TEST_F(WideMembers, TrainTheSamplesOfOneRunHoweverTheModelIsDivided) {
  ASSERT_EQ(train_in("plain", kShort), 0);
  const auto plain = metrics("plain");
  ASSERT_EQ(plain.size(), 6u);
  for (const Mesh& mesh :
       {kReplicas, kZero3,
        Mesh{.name = "zero1", .sets = {"parallelism.zero_stage=1", "precision.type=bf16"}},
        Mesh{.name = "tp", .sets = {"parallelism.tensor_parallel_degree=2"}},
        Mesh{.name = "cp", .sets = {"parallelism.context_parallel_degree=2"}},
        Mesh{.name = "pp", .sets = {"parallelism.pipeline_parallel_degree=2"}}}) {
    const auto steps = train_two(mesh.name, mesh, kShort);
    ASSERT_EQ(steps.size(), 6u) << mesh.name;
    for (const LineageStep& step : steps) {
      ASSERT_EQ(step.members.size(), 2u);
      EXPECT_EQ(step.members[0].first_sample, 8 * (step.step - 1));
      EXPECT_EQ(step.members[0].samples, 4);
      EXPECT_EQ(step.members[1].first_sample, 8 * (step.step - 1) + 4);
      EXPECT_EQ(step.members[1].samples, 4);
    }
    const auto own = metrics(mesh.name + "-b");
    ASSERT_EQ(own.size(), 6u);
    // Sums in another order cost float32 its last bits; products of bf16 half of theirs.
    const double tolerance = mesh.name == "zero1" ? 1e-2 : 1e-4;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(own[i].loss, plain[i].loss, tolerance * plain[i].loss)
          << mesh.name << " step " << i + 1;
      EXPECT_NEAR(own[i].grad_norm, plain[i].grad_norm, 10 * tolerance * plain[i].grad_norm)
          << mesh.name << " step " << i + 1;
      EXPECT_EQ(own[i].members, 2);
    }
    expect_replayed(mesh.name + "-b");
  }
}

TEST_F(WideMembers, DivideExperts) {
  const Sets mixture = kShort + Sets{"model.name=moe-tiny", "model.experts=4", "model.ffn=12",
                                     "model.balance_loss=0.0"};
  ASSERT_EQ(train_in("plain", mixture), 0);
  train_two("ep", {.name = "ep", .sets = {"parallelism.expert_parallel_degree=2"}}, mixture);
  const auto plain = metrics("plain");
  const auto own = metrics("ep-a");
  ASSERT_EQ(own.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_NEAR(own[i].loss, plain[i].loss, 1e-4 * plain[i].loss) << "step " << i + 1;
  expect_replayed("ep-a");
}

// Three members divide four micro-batches of two ranks each, 4, 2 and 2 samples, or two of four
// ranks, where one has nothing to do.
TEST_F(WideMembers, HaveWholeMicroBatchesOfTheirRanks) {
  const Mesh pipeline{.name = "pp", .ranks = 4, .sets = {"parallelism.pipeline_parallel_degree=2"}};
  const Mesh shards{.name = "zero3", .ranks = 4, .sets = {"parallelism.zero_stage=3"}};
  for (const auto& [mesh, unit] : {std::pair{pipeline, 2}, std::pair{shards, 4}}) {
    const std::string a = "a-" + mesh.name;
    auto first = start_wide(a, mesh, kShort + Sets{"elastic.members=3"});
    auto second = start_wide("b-" + mesh.name, mesh, kShort + joining(a));
    auto third = start_wide("c-" + mesh.name, mesh, kShort + joining(a));
    EXPECT_EQ(first.get() + second.get() + third.get(), 0);
    ASSERT_EQ(lineage(a).size(), 6u);
    for (const LineageStep& step : lineage(a)) {
      ASSERT_EQ(step.members.size(), 3u);
      std::int64_t all = 0;
      for (const LineageMember& member : step.members) {
        EXPECT_EQ(member.samples % unit, 0);
        all += member.samples;
      }
      EXPECT_EQ(all, 8);
    }
    expect_replayed("c-" + mesh.name);
  }
}

// An update that the others do not commit is taken back on all ranks, and made again.
TEST_F(WideMembers, AFaultThatPassesLeavesTheBitsOfARunWithoutIt) {
  for (const Mesh& mesh : {kReplicas, kZero3}) {
    const auto undisturbed = train_two("undisturbed-" + mesh.name, mesh, kShort);
    const auto steps = train_two(
        mesh.name, mesh, kShort,
        {"debug.fault=flip", "debug.fault_step=3", "debug.fault_rank=1", "optimizer.clip_norm=1"});
    ASSERT_EQ(steps.size(), undisturbed.size());
    for (std::size_t i = 0; i < steps.size(); ++i)
      EXPECT_EQ(steps[i].state, undisturbed[i].state) << mesh.name << " step " << i + 1;
    EXPECT_GT(steps[2].epoch, steps[1].epoch) << "no attempt was given up";
    EXPECT_EQ(steps[2].members.size(), 2u);
  }
}

// Not the leader: it must take its member with it, and no rank of the others may wait for it.
TEST_F(WideMembers, AMemberOfWhichARankFailsIsLostAndTheOthersGoOn) {
  for (const char* place : {"0F1", "reduce", "update"}) {
    const std::string a = std::string("a-") + place;
    const std::string b = std::string("b-") + place;
    auto first = start_wide(a, kZero3, kShort + Sets{"elastic.members=2"});
    auto second =
        start_wide(b, kZero3,
                   kShort + joining(a) +
                       Sets{"debug.fault=error", "debug.fault_step=3", "debug.fault_rank=1",
                            std::string("debug.fault_action=") + place});
    EXPECT_THROW(second.get(), Error) << place;
    EXPECT_EQ(first.get(), 0) << place;
    const auto steps = lineage(a);
    ASSERT_EQ(steps.size(), 6u) << place;
    EXPECT_EQ(steps[1].members.size(), 2u) << place;
    EXPECT_EQ(steps[2].members.size(), 1u) << place;
    expect_replayed(a);
  }
}

TEST_F(WideMembers, JoinAGroupThatTrainsWhereTheirRanksAreTheSame) {
  std::atomic<int> stop = 0;
  auto group = start_wide("a", kZero3, kForever, &stop);
  const auto refusal = [&](const std::string& name, const Mesh& mesh,
                           const Sets& more = {}) -> std::string {
    try {
      start_wide(name, mesh, kForever + joining("a") + more, &stop).get();
    } catch (const Error& error) {
      return error.what();
    }
    return "it is let in";
  };
  EXPECT_THAT(refusal("narrow", {.name = "narrow", .ranks = 1, .sets = {}}),
              HasSubstr("a member of 1 rank and protocol 1 cannot join members of 2 ranks (dp 2, "
                        "zero_stage 3)"));
  EXPECT_THAT(refusal("other", {.name = "tp", .sets = {"parallelism.tensor_parallel_degree=2"}}),
              HasSubstr("a member of 2 ranks (tp 2) and protocol 1 cannot join members of 2 ranks "
                        "(dp 2, zero_stage 3)"));
  // Its ranks have the state when they see that it is of another job, and the others go on.
  EXPECT_THAT(refusal("another", kZero3, {"optimizer.learning_rate=0.5"}),
              HasSubstr("the group trains another job: optimizer.learning_rate is "));
  auto joiner = start_wide("b", kZero3, kForever + joining("a"), &stop);
  wait_for("b", [](const LineageStep& step) { return step.members.size() == 2; });
  wait_for("a", [](const LineageStep& step) { return step.members.size() == 2; });
  stop = SIGTERM;
  EXPECT_EQ(group.get(), 128 + SIGTERM);
  EXPECT_EQ(joiner.get(), 128 + SIGTERM);
  EXPECT_GT(lineage("b").front().step, 1);
  expect_replayed("a");
}

// The leader waits for another member, and the other rank for what the leader says.
TEST_F(WideMembers, WhoWaitsForOthersStopsWhenItIsAsked) {
  std::atomic<int> stop = 0;
  auto first = start_wide("a", kReplicas, {"elastic.members=2"}, &stop);
  joining("a");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stop = SIGTERM;
  ASSERT_EQ(first.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(first.get(), 128 + SIGTERM);
  EXPECT_TRUE(lineage("a").empty());
}

TEST_F(WideMembers, NumbersThatAreNoneEndAllMembersWithTheStateBefore) {
  const Sets sets =
      kShort + Sets{"checkpoint.interval=0", "checkpoint.at_end=false", "debug.fault=overflow",
                    "debug.fault_step=5", "debug.fault_rank=1"};
  const Sets rounds{"low_communication.method=diloco", "low_communication.every=3"};
  for (const auto& [name, more, before] :
       {std::tuple{"steps", Sets{}, 4}, std::tuple{"rounds", rounds, 3}}) {
    auto alone = start_wide(name, kZero3, sets + more);
    try {
      alone.get();
      ADD_FAILURE() << "an infinite gradient is taken in " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNonFinite) << error.what();
    }
    EXPECT_EQ(lineage(name).back().step, before);
    EXPECT_TRUE(std::filesystem::exists(path(name) + "/checkpoints/step-" + std::to_string(before)))
        << name;
  }
}

// Two members of two ranks are the four ranks of a job without [elastic].
TEST_F(WideMembers, RoundsHaveTheBitsOfAJobOfFourRanks) {
  const Sets rounds{"low_communication.method=diloco", "low_communication.every=3",
                    "checkpoint.interval=3", "training.steps=6", "low_communication.codec=i8"};
  const Sets zero{"parallelism.zero_stage=1"};
  train_on_threads(path("ranks"), small_job(path("data"), 12),
                   Sets{"training.micro_batch=1", "lr_scheduler.warmup_steps=0",
                        "parallelism.data_parallel_replicate_degree=2"} +
                       rounds + zero,
                   4);
  const auto steps = train_two("elastic", {.name = "zero1", .sets = zero}, rounds);
  ASSERT_EQ(steps.size(), 2u);
  for (const int step : {3, 6}) {
    EXPECT_EQ(model_of("elastic-a", step), model_of("ranks", step)) << step;
    EXPECT_EQ(model_of("elastic-b", step), model_of("ranks", step)) << step;
  }
  expect_replayed("elastic-a");
}

TEST_F(WideMembers, JoinInTheMiddleOfARound) {
  std::atomic<int> stop = 0;
  const Sets rounds =
      kForever + Sets{"low_communication.method=local_sgd", "low_communication.every=3"};
  const Mesh tensor{.name = "tp", .sets = {"parallelism.tensor_parallel_degree=2"}};
  auto group = start_wide("a", tensor, rounds, &stop);
  auto joiner = start_wide("b", tensor, rounds + joining("a"), &stop);
  const auto both_train = [](const LineageStep& step) {
    return step.members.size() == 2 && step.members[0].samples > 0 && step.members[1].samples > 0;
  };
  wait_for("b", both_train);
  wait_for("a", both_train);
  stop = SIGTERM;
  EXPECT_EQ(group.get(), 128 + SIGTERM);
  EXPECT_EQ(joiner.get(), 128 + SIGTERM);
  expect_replayed("a");
}

/// Runs three ranks of a member as threads.
void on_ranks(const std::function<void(const MemberRanks&)>& body) {
  comm::run_on_threads({.size = 3, .arena = false, .timeout = std::chrono::seconds(60)},
                       [&](const comm::Group& group) { body(MemberRanks(group)); });
}

TEST(MemberRanks, WhatFailsOnOneRankFailsOnAllAndTheyGoOn) {
  for (int failing = 0; failing < 3; ++failing) {
    std::atomic<int> given_up = 0;
    on_ranks([&](const MemberRanks& ranks) {
      for (int turn = 0; turn < 5; ++turn) {
        MemberRanks::Part part;
        int looks = 0;
        part.goes_on = [&] {
          if (ranks.rank() == failing && looks++ == turn)
            throw Error(ErrorKind::kTimeout, "test", "no answer");
          // The others would never be done: they must hear of it.
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          return false;
        };
        part.give_up = [&](const Error&) { ++given_up; };
        try {
          ranks.together(part);
          ADD_FAILURE() << "rank " << ranks.rank() << " goes on";
        } catch (const FailedTogether& error) {
          EXPECT_THAT(error.what(), HasSubstr("no answer"));
          // To the group a follower's failure is that of a peer.
          EXPECT_EQ(error.kind(), failing == 0 ? ErrorKind::kTimeout : ErrorKind::kPeerLost);
        }
        part.goes_on = [] { return true; };
        EXPECT_NO_THROW(ranks.together(part));
      }
    });
    EXPECT_EQ(given_up, 15);
  }
}

TEST(MemberRanks, ARankThatIsSilentIsNotWaitedForWithoutEnd) {
  std::atomic<bool> is_over = false;
  const auto body = [&](const comm::Group& group) {
    const MemberRanks ranks(
        group, {.answer = std::chrono::milliseconds(100), .part = std::chrono::milliseconds(100)});
    while (ranks.rank() == 2 && !is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    MemberRanks::Part part;
    part.goes_on = [] { return true; };
    try {
      ranks.together(part);
    } catch (const Error&) {
      is_over = true;
      throw;
    }
  };
  try {
    comm::run_on_threads({.size = 3, .arena = false, .timeout = std::chrono::seconds(60)}, body);
    ADD_FAILURE() << "nobody misses rank 2";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_THAT(error.what(), HasSubstr("2 of the 3 ranks of this member say what became"));
  }
}

TEST(MemberRanks, TheLeaderSendsAndGetsParts) {
  const auto bytes = [](std::size_t size, int value) {
    return MemberRanks::Bytes(size, static_cast<std::byte>(value));
  };
  on_ranks([&](const MemberRanks& ranks) {
    EXPECT_EQ(ranks.from_leader(ranks.leads() ? bytes(5, 7) : bytes(1, 1)), bytes(5, 7));
    EXPECT_EQ(ranks.from_leader({}), bytes(0, 0));
    // Rank 1 has nothing to say that rank 0 has not.
    const auto all = ranks.to_leader(bytes(3, ranks.rank()), {false, true, false});
    if (ranks.leads()) {
      EXPECT_EQ(all, (std::vector{bytes(3, 0), bytes(0, 0), bytes(3, 2)}));
    }
    const std::vector parts{bytes(2, 4), bytes(0, 0), bytes(9, 6)};
    std::vector<std::span<const std::byte>> spans;
    for (const auto& part : parts) spans.emplace_back(part);
    EXPECT_EQ(ranks.part_from_leader(ranks.leads() ? spans : decltype(spans){}),
              parts[static_cast<std::size_t>(ranks.rank())]);
  });
}

}  // namespace
}  // namespace shoal::train::wide_members_test
