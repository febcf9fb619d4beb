// An elastic job as processes that are killed, stopped, delayed and added at random. Every step
// that any of them has committed is the same for all and that of `shoal replay`, and no sample is
// lost or trained twice. SHOAL_CHURN_SEED chooses what happens, SHOAL_CHURN_SECONDS how long.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "shoal/train/config/metrics.h"
#include "tests/apps/program.h"

namespace shoal::apps::testing::churn_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::size_t kMostMembers = 4;
constexpr double kSuspectAfter = 2;  ///< seconds: a busy machine is no reason to leave
constexpr int kGlobalBatch = 12;

double number_in(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atof(text) : otherwise;
}

class Churn : public ::testing::Test {
 protected:
  struct Member {
    std::string name;  ///< of its run directory
    std::unique_ptr<Program> program;
    bool lives = true;
  };

  void SetUp() override {
    const std::string job = fmt::format(R"([model]
family = "mlp"
widths = [16]
[data]
source = "regression"
samples = 512
[training]
global_batch_sequences = {}
micro_batch = 2
steps = 1000000
[optimizer]
learning_rate = 1e-3
[lr_scheduler]
name = "constant"
[checkpoint]
interval = 0
[validation]
interval = 0
[metrics]
tensorboard = false
memory_steps = 0
[parallelism]
threads_per_rank = 1
timeout_s = 60
)",
                                        kGlobalBatch);
    folder_.write("undisturbed.toml", job);
    folder_.write("job.toml", fmt::format("{}[elastic]\nenabled = true\nsuspect_after_s = {}\n",
                                          job, kSuspectAfter));
  }
  void TearDown() override {
    for (Member& member : members_)
      if (member.lives) member.program->signal(SIGKILL);
    if (!HasFailure()) return;
    for (Member& member : members_) {
      const Outcome outcome = member.program->wait(10);
      std::printf("--- %s: code %d, signal %d\n%s%s", member.name.c_str(), outcome.code,
                  outcome.signal, outcome.out.c_str(), outcome.err.c_str());
    }
  }

  /// Starts a member; the first one begins the group.
  void start() {
    const std::string name = fmt::format("run-{}", members_.size());
    std::vector<std::string> words = {shoal_program(), "train", "job.toml", "--run-dir", name};
    if (!members_.empty()) {
      std::istringstream address(folder_.read(living()->name + "/address"));
      std::string contact;
      std::getline(address, contact);
      words.insert(words.end(), {"--join", contact});
    }
    members_.push_back({name, std::make_unique<Program>(words, folder_.path()), true});
    ASSERT_TRUE(appears(folder_, name + "/address"));
    wait_until_all_train();
  }
  std::vector<Member*> all_living() {
    std::vector<Member*> living;
    for (Member& member : members_)
      if (member.lives) living.push_back(&member);
    return living;
  }
  Member* living() { return all_living()[random_() % all_living().size()]; }

  train::LineageStep last_step(const Member& member) const {
    const auto steps =
        train::read_lineage((folder_.path() / member.name / "lineage.jsonl").string());
    return steps.empty() ? train::LineageStep() : steps.back();
  }
  /// Waits until the last step of a member is as `wanted`.
  template <class Wanted>
  void wait_for_step(const Member& member, const std::string& what, const Wanted& wanted) {
    const auto end = steady_clock::now() + std::chrono::minutes(2);
    while (!wanted(last_step(member))) {
      ASSERT_LT(steady_clock::now(), end) << member.name << " has no step " << what;
      std::this_thread::sleep_for(milliseconds(20));
    }
  }
  /// Waits until those that live, and no others, have committed a step together.
  void wait_until_all_train() {
    const std::vector<Member*> living = all_living();
    for (const Member* member : living) {
      ASSERT_NO_FATAL_FAILURE(wait_for_step(
          *member, fmt::format("of {} members", living.size()),
          [&](const train::LineageStep& step) { return step.members.size() == living.size(); }));
    }
  }
  /// Kills a member at any moment of its step.
  void kill() {
    Member* const member = living();
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20000));
    member->program->signal(SIGKILL);
    member->program->wait();
    member->lives = false;
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
    const std::int64_t before = last_step(*member).step;
    member->program->signal(SIGCONT);
    ASSERT_NO_FATAL_FAILURE(
        wait_for_step(*member, "after it went on",
                      [&](const train::LineageStep& step) { return step.step != before; }));
    wait_until_all_train();
  }
  /// Lets a member leave in order.
  void leave() {
    Member* const member = living();
    member->program->signal(SIGTERM);
    const Outcome outcome = member->program->wait();
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
    member->lives = false;
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

  /// All lineages together, which say one thing of each step.
  std::map<std::int64_t, train::LineageStep> all_steps() const {
    std::map<std::int64_t, train::LineageStep> steps;
    for (const Member& member : members_) {
      const auto path = (folder_.path() / member.name / "lineage.jsonl").string();
      for (const train::LineageStep& step : train::read_lineage(path)) {
        const auto [entry, is_new] = steps.emplace(step.step, step);
        EXPECT_EQ(train::to_json(entry->second), train::to_json(step)) << member.name;
      }
    }
    return steps;
  }

  Folder folder_;
  std::vector<Member> members_;
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
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  while (steady_clock::now() < end && !HasFailure()) ++events[happen()];
  for (Member* member : all_living()) {
    member->program->signal(SIGTERM);
    const Outcome outcome = member->program->wait();
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
    member->lives = false;
  }
  ASSERT_FALSE(HasFailure());

  const auto steps = all_steps();
  std::filesystem::create_directories(folder_.path() / "whole");
  std::filesystem::copy_file(folder_.path() / "run-0/config.toml",
                             folder_.path() / "whole/config.toml");
  std::ofstream whole(folder_.path() / "whole/lineage.jsonl");
  std::int64_t step_number = 0;
  std::int64_t sample = 0;
  for (const auto& [number, step] : steps) {
    EXPECT_EQ(number, ++step_number) << "a step is missing";
    for (const train::LineageMember& member : step.members) {
      EXPECT_EQ(member.first_sample, sample) << "samples were lost or trained twice at " << number;
      sample += member.samples;
    }
    EXPECT_EQ(sample, number * kGlobalBatch);
    whole << train::to_json(step) << "\n";
  }
  whole.close();
  const Outcome replay = run({shoal_program(), "replay", "whole"}, folder_.path());
  EXPECT_EQ(replay.code, 0) << replay.err;
  EXPECT_THAT(replay.out,
              HasSubstr(fmt::format("Steps 1 to {} of whole have the same bits", step_number)));
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
  for (const Member& member : members_) {
    for (const auto& line :
         train::read_metrics((folder_.path() / member.name / "metrics.jsonl").string())) {
      if (line.step <= compared) {
        EXPECT_NEAR(line.loss, losses.at(line.step), 1e-3 * losses.at(line.step) + 1e-6)
            << "step " << line.step;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::apps::testing::churn_test
