#include "shoal/forecast/drift.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::forecast::drift_test {
namespace {

const std::vector<KernelWork> kWorks{
    plan::linear_work(64, 768, 3072), plan::linear_work(1024, 768, 3072),
    plan::linear_work(64, 256, 768), plan::linear_work(1024, 256, 768)};

/// Kernels whose times come from known parts. Products drift with the core, whatever becomes of the
/// memory's bandwidth.
struct Machine {
  double core = 1;
  double memory = 1;

  KernelRate linear() const { return {1e-6 * core, 1e-11 * core, 2e-10 * core, 1e-11 * core}; }
  KernelRate optimizer() const { return {0, 0, 3e-10 * memory, 0}; }
  KernelRate all_reduce() const { return {1e-6 * memory, 0, 6e-11 * memory, 0}; }

  std::map<std::string, std::vector<TimedKernel>> timed() const {
    std::map<std::string, std::vector<TimedKernel>> all;
    for (const KernelWork& work : kWorks) all["linear"].push_back({work, linear().seconds(work)});
    for (const double count : {1e5, 1e6, 1e7}) {
      all["optimizer"].push_back(
          {plan::memory_work(count), optimizer().seconds(plan::memory_work(count))});
    }
    for (const double count : {1e5, 1e6, 1e7}) {
      all["all_reduce"].push_back(
          {plan::memory_work(count), all_reduce().seconds(plan::memory_work(count))});
    }
    return all;
  }
  Cluster cluster() const {
    Cluster cluster = *plan::cluster_preset("cpu");
    for (const auto& [name, list] : timed()) cluster.kernels[name] = plan::fit_kernel(list);
    return cluster;
  }
};

// Times are linear in the factors: found up to rounding of the fit.
TEST(Drift, CoreAndMemoryAreFoundApart) {
  const Cluster cluster = Machine{}.cluster();
  for (const Machine& now :
       {Machine{1, 1}, Machine{1.1, 1}, Machine{1, 1.5}, Machine{0.9, 1.4}, Machine{1.3, 0.7}}) {
    const Drift found = drift(cluster, now.timed());
    EXPECT_NEAR(found.core, now.core, 1e-6);
    EXPECT_NEAR(found.memory, now.memory, 1e-6);
  }
}

TEST(Drift, DriftedClusterTakesAsLongAsTheMachineDoes) {
  const Machine now{1.2, 0.8};
  const Cluster cluster = drifted(Machine{}.cluster(), {now.core, now.memory});
  for (const double rows : {64, 200, 1024}) {
    EXPECT_NEAR(cluster.kernels.at("linear").seconds(plan::linear_work(rows, 512, 2048)) /
                    now.linear().seconds(plan::linear_work(rows, 512, 2048)),
                1, 1e-6)
        << rows;
  }
  EXPECT_NEAR(cluster.kernels.at("optimizer").seconds(plan::memory_work(3e6)) /
                  now.optimizer().seconds(plan::memory_work(3e6)),
              1, 1e-6);
  EXPECT_NEAR(cluster.kernels.at("all_reduce").seconds(plan::memory_work(3e6)) /
                  now.all_reduce().seconds(plan::memory_work(3e6)),
              1, 1e-6);
  EXPECT_EQ(drifted(Machine{}.cluster(), {}), Machine{}.cluster());
  // A cluster file may hold the four numbers alone.
  Cluster bare = Machine{}.cluster();
  for (auto& [name, rate] : bare.kernels) rate.timed.clear();
  EXPECT_NEAR(drifted(bare, {now.core, now.memory}).kernels.at("linear").seconds(kWorks[0]) /
                  now.linear().seconds(kWorks[0]),
              1, 1e-6);
}

TEST(Drift, OneKindOfWorkGivesOneNumber) {
  const Cluster cluster = Machine{}.cluster();
  const Drift found = drift(cluster, {{"optimizer", Machine{1, 2}.timed().at("optimizer")}});
  EXPECT_NEAR(found.memory, 2, 1e-6);
  EXPECT_NEAR(found.core, 2, 1e-6) << "nothing tells of the core: it is held to have drifted alike";
}

// Half of what a product takes may be reading weights: it still drifts with the core alone, as a
// faster memory leaves it as it was.
TEST(Drift, ProductsDoNotDriftWithTheMemory) {
  const Cluster then = Machine{}.cluster();
  const Cluster now = drifted(then, {1, 0.7});
  EXPECT_EQ(now.kernels.at("linear"), then.kernels.at("linear"));
  EXPECT_NEAR(now.kernels.at("all_reduce").seconds(plan::memory_work(1e6)) /
                  then.kernels.at("all_reduce").seconds(plan::memory_work(1e6)),
              0.7, 1e-9);
}

TEST(Drift, RefusesWhatTellsNothing) {
  const Cluster cluster = Machine{}.cluster();
  EXPECT_THROW(drift(cluster, {}), Error);
  EXPECT_THROW(drift(cluster, {{"norm", {{plan::pass_work(1e6), 1e-3}}}}), Error);
  EXPECT_THROW(drift(cluster, {{"linear", {{kWorks[0], 0}}}}), Error);
}

}  // namespace
}  // namespace shoal::forecast::drift_test
