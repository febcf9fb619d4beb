#include "apps/shoal/rank_environment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "apps/shoal/slurm.h"
#include "shoal/base/error.h"
#include "shoal/base/philox.h"

namespace shoal::apps::rank_environment_test {
namespace {

using ::testing::StartsWith;
using Variables = std::map<std::string, std::string>;

auto look_up(const Variables& variables) {
  return [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::optional<RankEnvironment> detect(const Variables& variables) {
  return detect_rank_environment(look_up(variables));
}

Variables changed(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

// As torchrun --nproc-per-node 2 --nnodes 2, srun -N 2 -n 5 and Open MPI's mpirun set them.
const Variables kTorchrun = {
    {"RANK", "3"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "h0"},
    {"MASTER_PORT", "29500"},
    {"GROUP_RANK", "1"},
    {"TORCHELASTIC_RUN_ID", "none"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a1/none_b2/attempt_0/1/error.json"}};
const Variables kSlurm = {{"SLURM_PROCID", "4"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "3,2"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "0"},
                          {"MASTER_ADDR", "h1"},
                          {"MASTER_PORT", "7000"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "12345"}};

// As a training operator sets them for a pod of one rank, and what an indexed Job brings by itself.
const Variables kKubernetes = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                               {"RANK", "2"},
                               {"WORLD_SIZE", "3"},
                               {"MASTER_ADDR", "job-master-0"},
                               {"MASTER_PORT", "23456"}};
const Variables kIndexedJob = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                               {"JOB_COMPLETION_INDEX", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "train-0.train"},
                               {"MASTER_PORT", "7000"}};

void expect_place(const RankEnvironment& found, const char* launcher, int rank, int world,
                  int local_rank, int local_world) {
  EXPECT_EQ(found.launcher, launcher);
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.world, world);
  EXPECT_EQ(found.local_rank, local_rank);
  EXPECT_EQ(found.local_world, local_world);
}

TEST(RankEnvironment, NoneOfThem) {
  EXPECT_FALSE(detect({}));
  EXPECT_FALSE(detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}})) << "anybody may use such names";
  EXPECT_FALSE(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}))
      << "a batch script is no rank";
}

std::string ignored(const Variables& variables) {
  return ignored_rank_variables(look_up(variables));
}

TEST(RankEnvironment, WarnsOfARankThatNoLauncherStarted) {
  EXPECT_THAT(ignored({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
              StartsWith("RANK=1 of WORLD_SIZE=2 is set, and no launcher is recognised: this "
                         "process trains alone. Hint: set TORCHELASTIC_RUN_ID too"));
  EXPECT_EQ(ignored({}), "");
  EXPECT_EQ(ignored({{"RANK", "0"}}), "");
  EXPECT_EQ(ignored({{"WORLD_SIZE", "2"}}), "");
  EXPECT_EQ(ignored({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "") << "it would train alone anyway";
  EXPECT_EQ(ignored({{"RANK", "x"}, {"WORLD_SIZE", "many"}}), "") << "anybody may use such names";
}

TEST(RankEnvironment, KnowsVariablesThatWereSetByHand) {
  EXPECT_EQ(detect(kTorchrun)->started_by(), "torchrun");
  Variables by_hand = kTorchrun;
  by_hand.erase("TORCHELASTIC_RESTART_COUNT");
  EXPECT_EQ(detect(by_hand)->started_by(), "RANK and WORLD_SIZE");
  EXPECT_EQ(detect(by_hand)->launcher, "torchrun") << "whose rules hold";
  EXPECT_EQ(detect(kOpenMpi)->started_by(), "Open MPI");
}

TEST(RankEnvironment, SaysWhatNamedTheMeetingPlace) {
  EXPECT_EQ(detect(kTorchrun)->rendezvous_source, "MASTER_ADDR and MASTER_PORT");
  EXPECT_EQ(detect(changed(kTorchrun, "SHOAL_RENDEZVOUS", "h:1"))->rendezvous_source,
            "SHOAL_RENDEZVOUS");
  Variables by_itself = changed(kSlurm, "SLURM_JOB_NODELIST", "n[08-09],m");
  by_itself.erase("MASTER_ADDR");
  EXPECT_EQ(detect(by_itself)->rendezvous_source, "Slurm's list of nodes");
}

TEST(RankEnvironment, ReadsEveryLauncher) {
  expect_place(*detect(kTorchrun), "torchrun", 3, 4, 1, 2);
  expect_place(*detect(kSlurm), "Slurm", 4, 5, 1, 2);
  expect_place(*detect(kOpenMpi), "Open MPI", 1, 2, 1, 2);
  expect_place(*detect(kKubernetes), "Kubernetes", 2, 3, 0, 1);
  expect_place(*detect(kIndexedJob), "Kubernetes", 1, 2, 0, 1);
  const Variables two_hosts =
      changed(changed(kOpenMpi, "OMPI_COMM_WORLD_RANK", "3"), "OMPI_COMM_WORLD_SIZE", "4");
  expect_place(*detect(changed(two_hosts, "SHOAL_RENDEZVOUS", "h:1")), "Open MPI", 3, 4, 1, 2);
  expect_place(
      *detect(changed(changed(changed(kKubernetes, "WORLD_SIZE", "4"), "LOCAL_WORLD_SIZE", "2"),
                      "LOCAL_RANK", "1")),
      "Kubernetes", 2, 4, 1, 2);
  expect_place(*detect(changed(changed(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
                               "SLURM_NODEID", "2")),
               "Slurm", 4, 5, 1, 2);
  Variables nested = kSlurm;
  nested.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(detect(nested)->launcher, "torchrun") << "the inner one counts";
}

TEST(RankEnvironment, RanksOfSeveralHostsMeetWhereTheEnvironmentSays) {
  EXPECT_EQ(detect(kTorchrun)->rendezvous, "h0:29501") << "torchrun itself listens at MASTER_PORT";
  EXPECT_EQ(detect(changed(kTorchrun, "MASTER_ADDR", "fd00::1"))->rendezvous, "[fd00::1]:29501");
  EXPECT_EQ(detect(changed(kTorchrun, "SHOAL_RENDEZVOUS", "file:/shared/x"))->rendezvous,
            "file:/shared/x");
  EXPECT_EQ(detect(changed(changed(kTorchrun, "RANK", "1"), "WORLD_SIZE", "2"))->rendezvous, "")
      << "all on one host";
  EXPECT_EQ(detect(kSlurm)->rendezvous, "h1:7000");
  Variables by_itself = changed(kSlurm, "SLURM_JOB_NODELIST", "n[08-09],m");
  by_itself.erase("MASTER_ADDR");
  EXPECT_EQ(detect(by_itself)->rendezvous, "n08:7000");
  by_itself.erase("MASTER_PORT");
  const std::string port = std::to_string(slurm_port("77", "0"));
  EXPECT_EQ(detect(by_itself)->rendezvous, "n08:" + port);
  EXPECT_EQ(detect(changed(by_itself, "SLURM_STEP_NODELIST", "m[2,1]"))->rendezvous, "m2:" + port)
      << "a step may have a part of the job's nodes";
  EXPECT_EQ(detect(kOpenMpi)->rendezvous, "");
  EXPECT_EQ(detect(kKubernetes)->rendezvous, "job-master-0:23456");
  EXPECT_EQ(detect(kIndexedJob)->rendezvous, "train-0.train:7000");
}

TEST(RankEnvironment, TheKeyIsOfOneStart) {
  const std::string key = detect(kTorchrun)->job_key;
  EXPECT_EQ(key.size(), 32u);
  Variables other_rank = changed(changed(kTorchrun, "RANK", "2"), "LOCAL_RANK", "0");
  other_rank["TORCHELASTIC_ERROR_FILE"] = "/tmp/torchelastic_a1/none_b2/attempt_0/0/error.json";
  EXPECT_EQ(detect(other_rank)->job_key, key);
  const Variables elsewhere = changed(kTorchrun, "TORCHELASTIC_ERROR_FILE",
                                      "/tmp/torchelastic_c3/none_d4/attempt_0/1/error.json");
  EXPECT_EQ(detect(elsewhere)->job_key, key) << "the folder of another host";
  const Variables one_host = changed(changed(kTorchrun, "RANK", "1"), "WORLD_SIZE", "2");
  EXPECT_NE(
      detect(changed(one_host, "TORCHELASTIC_ERROR_FILE", elsewhere.at("TORCHELASTIC_ERROR_FILE")))
          ->job_key,
      detect(one_host)->job_key);
  EXPECT_NE(detect(changed(kTorchrun, "SHOAL_JOB_KEY", "secret"))->job_key, key);
  EXPECT_NE(detect(changed(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1"))->job_key, key);
  EXPECT_NE(detect(changed(kSlurm, "SLURM_STEP_ID", "1"))->job_key, detect(kSlurm)->job_key);
  EXPECT_EQ(detect(changed(kSlurm, "SLURM_PROCID", "3"))->job_key, detect(kSlurm)->job_key);
  EXPECT_NE(detect(changed(kOpenMpi, "PMIX_NAMESPACE", "12346"))->job_key,
            detect(kOpenMpi)->job_key);
}

// 64 bits could be searched for, by whoever has heard one handshake.
TEST(RankEnvironment, NoHalfOfTheKeyFollowsFromTheOther) {
  const std::string key = detect(kTorchrun)->job_key;
  const Key first(std::stoull(key.substr(0, 16), nullptr, 16));
  EXPECT_NE(fmt::format("{:016x}", first.child("second").value()), key.substr(16));
}

void expect_broken(const Variables& variables, const char* says) {
  try {
    detect(variables);
    ADD_FAILURE() << "accepted; expected: " << says;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(says));
  }
}

TEST(RankEnvironment, NamesWhatIsBroken) {
  Variables missing = kTorchrun;
  missing.erase("WORLD_SIZE");
  expect_broken(missing, "torchrun's environment is incomplete or broken: WORLD_SIZE is not set");
  expect_broken(changed(kTorchrun, "RANK", "two"), "RANK=two is no whole number");
  expect_broken(changed(kTorchrun, "RANK", "-1"), "RANK=-1 is no whole number");
  expect_broken(changed(kTorchrun, "RANK", "4"), "rank 4 of 4");
  expect_broken(changed(kTorchrun, "LOCAL_RANK", "2"), "local rank 2 of 2");
  Variables nowhere = kSlurm;
  nowhere.erase("MASTER_ADDR");
  expect_broken(nowhere, "neither SHOAL_RENDEZVOUS nor MASTER_ADDR is set");
  expect_broken(changed(nowhere, "SLURM_STEP_NODELIST", "n[1"), "Slurm's list \"n[1\" is broken");
  expect_broken(changed(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "five"),
                "SLURM_STEP_TASKS_PER_NODE=five");
  expect_broken(changed(kSlurm, "SLURM_NODEID", "2"),
                "SLURM_STEP_TASKS_PER_NODE=3,2 does not say how many tasks node 2 has");
}

TEST(RankEnvironment, PortsAreThoseOfTcp) {
  EXPECT_EQ(detect(changed(kSlurm, "MASTER_PORT", "65535"))->rendezvous, "h1:65535");
  EXPECT_EQ(detect(changed(kSlurm, "MASTER_PORT", "1"))->rendezvous, "h1:1");
  expect_broken(changed(kSlurm, "MASTER_PORT", "65536"), "port 65536 is none");
  expect_broken(changed(kSlurm, "MASTER_PORT", "0"), "port 0 is none");
  expect_broken(changed(kTorchrun, "MASTER_PORT", "65535"), "port 65536 is none");
  EXPECT_EQ(detect(changed(kTorchrun, "MASTER_PORT", "0"))->rendezvous, "h0:1");
  EXPECT_EQ(detect(changed(kSlurm, "MASTER_ADDR", "[fd00::1]"))->rendezvous, "[fd00::1]:7000");
}

TEST(RankEnvironment, UnderMpiNothingElseMeets) {
  Variables nowhere = kSlurm;
  nowhere.erase("MASTER_ADDR");
  const auto found = detect_rank_environment(
      [&](const char* name) {
        const auto at = nowhere.find(name);
        return at == nowhere.end() ? nullptr : at->second.c_str();
      },
      true);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rendezvous, "");
}

TEST(RankEnvironment, APlaceIsCompleteOrBroken) {
  Variables local = changed(changed(kKubernetes, "LOCAL_WORLD_SIZE", "4"), "LOCAL_RANK", "0");
  expect_broken(local, "local rank 0 of 4 on this host, of 3 in all");
  local["LOCAL_WORLD_SIZE"] = "3";
  expect_place(*detect(local), "Kubernetes", 2, 3, 0, 3);
  expect_broken(changed(kTorchrun, "RANK", "3x"), "RANK=3x is no whole number");
  // Without one of its variables a launcher is not there.
  for (const char* name : {"KUBERNETES_SERVICE_HOST", "WORLD_SIZE", "RANK"}) {
    Variables without = kKubernetes;
    without.erase(name);
    EXPECT_FALSE(detect(without)) << name;
  }
  Variables step = kSlurm;
  step.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_FALSE(detect(step));
  // Slurm's counts: three tasks on each of two nodes, then one on each of two.
  const Variables counted = changed(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "3(x2),2(x2)");
  for (const auto& [node, tasks] : {std::pair{"0", 3}, {"1", 3}, {"2", 2}, {"3", 2}})
    EXPECT_EQ(detect(changed(counted, "SLURM_NODEID", node))->local_world, tasks) << node;
  expect_broken(changed(counted, "SLURM_NODEID", "4"), "how many tasks node 4 has");
}

// What tells starts apart counts; what ranks of one start differ in does not.
TEST(RankEnvironment, TheKeyHasEveryVariableOfAStart) {
  const auto differs = [](const Variables& of, const char* name) {
    return detect(changed(of, name, "31"))->job_key != detect(of)->job_key;
  };
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"})
    EXPECT_TRUE(differs(kTorchrun, name)) << name;
  EXPECT_FALSE(differs(kTorchrun, "GROUP_RANK"));
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})
    EXPECT_TRUE(differs(kSlurm, name)) << name;
  for (const char* name :
       {"PMIX_NAMESPACE", "PMIX_SERVER_URI2", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})
    EXPECT_TRUE(differs(kOpenMpi, name)) << name;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"})
    EXPECT_TRUE(differs(kKubernetes, name)) << name;
}

}  // namespace
}  // namespace shoal::apps::rank_environment_test
