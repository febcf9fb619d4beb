// An elastic job as processes that are killed, stopped, delayed and added at random. Every step
// that any of them has committed is the same for all and that of `shoal replay`, and no sample is
// lost or trained twice. SHOAL_CHURN_SEED chooses what happens, SHOAL_CHURN_SECONDS how long.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "shoal/train/config/metrics.h"
#include "tests/apps/churn/elastic_members.h"

namespace shoal::apps::testing::churn_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMostMembers = 4;
constexpr double kSuspectAfter = 2;  ///< seconds: a busy machine is no reason to leave

double number_in(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atof(text) : otherwise;
}

class Churn : public ElasticMembers {
 protected:
  void SetUp() override {
    folder_.write("undisturbed.toml", job());
    write_job(fmt::format("suspect_after_s = {}\n", kSuspectAfter));
  }

  /// Starts a member; the first one begins the group.
  void start() {
    std::vector<std::string> more;
    if (!members_.empty()) more = {"--join", address(living()->name)};
    ElasticMembers::start(fmt::format("run-{}", members_.size()), more);
    ASSERT_TRUE(appears(folder_, members_.back()->name + "/address"));
    wait_until_all_train();
  }
  Member* living() { return all_living()[random_() % all_living().size()]; }

  /// Kills a member at any moment of its step.
  void kill() {
    Member* const member = living();
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20000));
    end(*member, SIGKILL);
    wait_until_all_train();
  }
  /// Stops a member for longer than the others wait for it: it is removed, and ends when it goes
  /// on.
  void stop_for_good() {
    Member* const member = living();
    member->program->signal(SIGSTOP);
    member->lives = false;
    wait_until_all_train();
    member->program->signal(SIGCONT);
    EXPECT_EQ(member->program->wait().code, 202) << member->name << " lives on";
  }
  /// Stops a member for less than that: nobody is removed.
  void delay() {
    Member* const member = living();
    member->program->signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(50 + random_() % 250));
    const std::int64_t before = last_step(member->name).step;
    member->program->signal(SIGCONT);
    ASSERT_NO_FATAL_FAILURE(
        wait_for_step(member->name, "after it went on",
                      [&](const train::LineageStep& step) { return step.step != before; }));
    wait_until_all_train();
  }
  /// Lets a member leave in order.
  void leave() {
    Member* const member = living();
    const Outcome outcome = end(*member, SIGTERM);
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
    wait_until_all_train();
  }
  /// What happens next. At least two live on, of which one may be lost.
  std::string happen() {
    const std::size_t living = all_living().size();
    if (living < 3) {
      start();
      return "join";
    }
    switch (random_() % (living < kMostMembers ? 5 : 4)) {
      case 0:
        kill();
        return "kill";
      case 1:
        stop_for_good();
        return "stop";
      case 2:
        delay();
        return "delay";
      case 3:
        leave();
        return "leave";
      default:
        start();
        return "join";
    }
  }

  std::mt19937 random_;
};

TEST_F(Churn, EveryCommittedStepIsThatOfAReplay) {
  const auto seed = static_cast<unsigned>(number_in("SHOAL_CHURN_SEED", 1));
  const double seconds = number_in("SHOAL_CHURN_SECONDS", 8);
  std::printf("SHOAL_CHURN_SEED=%u SHOAL_CHURN_SECONDS=%g\n", seed, seconds);
  random_.seed(seed);
  for (int i = 0; i < 3; ++i) start();
  std::map<std::string, int> events;
  // Whatever the seed chooses: a member that is gone in the middle of a step.
  kill();
  ++events["kill"];
  const auto until = steady_clock::now() + std::chrono::duration<double>(seconds);
  while (steady_clock::now() < until && !HasFailure()) ++events[happen()];
  for (Member* member : all_living()) {
    const Outcome outcome = end(*member, SIGTERM);
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  }
  ASSERT_FALSE(HasFailure());

  const auto steps = all_steps();
  const auto branch = branch_to(furthest_of(steps), steps);
  EXPECT_EQ(branch.size(), steps.size()) << "there are two branches";
  expect_replay_of(branch, "run-0", "whole");
  const auto step_number = static_cast<std::int64_t>(branch.size());
  for (const auto& [event, count] : events) std::printf("%s %d, ", event.c_str(), count);
  std::printf("%lld steps by %zu processes\n", static_cast<long long>(step_number),
              members_.size());

  // An undisturbed run of the same samples has the same losses, but for the order of additions.
  const std::int64_t compared = std::min<std::int64_t>(step_number, 300);
  const Outcome undisturbed =
      run({shoal_program(), "train", "undisturbed.toml", "--run-dir", "undisturbed", "--set",
           fmt::format("training.steps={}", compared)},
          folder_.path());
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
  std::map<std::int64_t, double> losses;
  for (const auto& line :
       train::read_metrics((folder_.path() / "undisturbed/metrics.jsonl").string()))
    losses[line.step] = line.loss;
  for (const auto& member : members_) {
    for (const auto& line :
         train::read_metrics((folder_.path() / member->name / "metrics.jsonl").string())) {
      if (line.step <= compared) {
        EXPECT_NEAR(line.loss, losses.at(line.step), 1e-3 * losses.at(line.step) + 1e-6)
            << "step " << line.step;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::apps::testing::churn_test
