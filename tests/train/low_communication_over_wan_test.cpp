// Jobs whose members lie at two sites that a long link joins: what travels, as the link counts it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <thread>

#include "shoal/collective/codec/coding.h"
#include "shoal/train/job_options.h"
#include "tests/emulation/wan.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::low_communication_over_wan_test {
namespace {

using emulation::Wan;
using std::chrono::milliseconds;

constexpr int kMembers = 2;
constexpr Duration kDelay = milliseconds(10);

class LowCommunicationOverWan : public ::testing::Test {
 protected:
  void SetUp() override { prepare_small_text(path("data")); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  /// Returns the job without what is not of the steps: evaluations and checkpoints.
  std::string job() const { return small_job(path("data")); }
  static Sets alone() {
    return {"validation.interval=0", "validation.batches=1", "checkpoint.interval=0",
            "checkpoint.at_end=false", "metrics.tensorboard=false"};
  }
  std::int64_t values() const {
    const Job job = parse_job(this->job(), "small.toml");
    return model::parameter_count(model_spec(job, open_data(job, true)->sizes()));
  }

  /// Trains with one member at each site.
  std::vector<StepMetrics> train_over(const Wan& wan, const Sets& sets) {
    const std::string run = path(fmt::format("run-{}", runs_++));
    const auto start = [&](const std::function<void(const comm::Group&)>& body) {
      std::vector<std::exception_ptr> failures(kMembers);
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < kMembers; ++rank) {
        ranks.emplace_back([&, rank] {
          try {
            wan.enter(rank);
            comm::WorldOptions world{.name = "members",
                                     .key = "key",
                                     .rank = rank,
                                     .size = kMembers,
                                     .arena = false,
                                     .transport = comm::Transport::kTcp,
                                     .rendezvous = wan.address(0) + ":29500",
                                     .timeout = std::chrono::seconds(60)};
            world.network.host = fmt::format("site-{}", rank);
            world.network.interface = wan.address(rank);
            body(comm::connect(world));
          } catch (...) {
            failures[static_cast<std::size_t>(rank)] = std::current_exception();
          }
        });
      }
      for (std::thread& rank : ranks) rank.join();
      for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    };
    return train_on(start, run, job(), alone() + sets);
  }

  TemporaryFolder folder_;
  int runs_ = 0;
};

// Between two exchanges a member says little: two sums of a step, their acknowledgements, and that
// it is alive. All of it is counted with its headers and those of TLS.
TEST_F(LowCommunicationOverWan, TheLinkCarriesExchangesAndLittleElse) {
  constexpr int kEvery = 20;
  constexpr double kOfAStep = 1200;
  constexpr double kHeaders = 1.1;  // of an exchange: 52 bytes of 1500, and acknowledgements
  collective::Coding coding;
  coding.codec = collective::Codec::kE3M0;
  const auto exchange =
      static_cast<double>(collective::encoded_bytes(coding, static_cast<std::size_t>(values())));
  const Sets every{fmt::format("low_communication.every={}", kEvery),
                   "low_communication.codec=e3m0"};
  const std::vector<Sets> methods{
      {"low_communication.method=diloco"},
      {"low_communication.method=streaming_diloco", "low_communication.fragments=4",
       "low_communication.overlap_steps=2"}};
  for (const Sets& method : methods) {
    const auto carried_by = [&](int steps) {
      Wan wan(kMembers);
      wan.set_all({.delay = kDelay, .bits_per_second = 100e6});
      train_over(wan, method + every + Sets{fmt::format("training.steps={}", steps)});
      EXPECT_TRUE(wan.settle(Deadline::in(std::chrono::seconds(10))));
      return static_cast<double>(wan.between(0, 1).delivered.bytes);
    };
    // Two periods more; the rest of both runs is the same.
    const double more = carried_by(3 * kEvery + 2) - carried_by(kEvery + 2);
    EXPECT_GE(more, 2 * exchange) << method.front();
    EXPECT_LE(more, 2 * exchange * kHeaders + 2 * kEvery * kOfAStep) << method.front();
  }
}

}  // namespace
}  // namespace shoal::train::low_communication_over_wan_test
