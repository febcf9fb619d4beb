#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "tests/apps/program.h"

namespace shoal::apps::testing {

/// Returns the number that an environment variable has, or `otherwise`.
inline double number_in(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atof(text) : otherwise;
}

/// Members of an elastic job of tiny steps, as processes: each has a run directory of its own.
class ElasticMembers : public ::testing::Test {
 protected:
  static constexpr int kGlobalBatch = 12;

  struct Member {
    std::string name;  ///< of its run directory
    std::unique_ptr<Program> program;
    bool lives = true;
  };

  /// Returns a job that does not end by itself, without the section [elastic].
  static std::string job() {
    return fmt::format(R"([model]
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
  }
  /// Writes job.toml; `keys` are those of [elastic].
  void write_job(const std::string& keys) {
    std::string rounds;
    if (round_ > 0) {
      rounds = fmt::format(
          "[low_communication]\nmethod = \"diloco\"\nevery = {}\nmomentum = 0.5\n"
          "codec = \"i8\"\n",
          round_);
    }
    folder_.write("job.toml",
                  fmt::format("{}{}[elastic]\nenabled = true\n{}", job(), rounds, keys));
  }

  void TearDown() override {
    for (const auto& member : members_)
      if (member->lives) member->program->signal(SIGKILL);
    if (!HasFailure()) return;
    for (const auto& member : members_) {
      const Outcome outcome = member->program->wait(10);
      std::printf("--- %s: code %d, signal %d\n%s%s", member->name.c_str(), outcome.code,
                  outcome.signal, outcome.out.c_str(), outcome.err.c_str());
    }
  }

  /// Starts a process with the run directory `name`.
  Member& start(const std::string& name, const std::vector<std::string>& more = {}) {
    std::filesystem::remove(folder_.path() / name / "address");
    std::vector<std::string> words{shoal_program(), "train", "job.toml", "--run-dir", name};
    words.insert(words.end(), more.begin(), more.end());
    members_.push_back(
        std::make_unique<Member>(Member{name, std::make_unique<Program>(words, folder_.path())}));
    return *members_.back();
  }
  /// Waits for the address of a member, unless that ends before it has one.
  std::string address(const std::string& name) const {
    constexpr double kLook = 0.1;
    const auto member = std::find_if(members_.rbegin(), members_.rend(),
                                     [&](const auto& other) { return other->name == name; });
    bool appeared = false;
    bool may_appear = true;
    for (double waited = 0; !appeared && may_appear && waited < kLongest; waited += kLook) {
      may_appear = !(*member)->program->ended();
      appeared = appears(folder_, name + "/address", kLook);
    }
    EXPECT_TRUE(appeared) << name << " has no address";
    const std::string text = folder_.read(name + "/address");
    return text.substr(0, text.find('\n'));
  }
  Outcome end(Member& member, int signal) {
    member.program->signal(signal);
    member.lives = false;
    return member.program->wait();
  }
  std::vector<Member*> all_living() const {
    std::vector<Member*> living;
    for (const auto& member : members_)
      if (member->lives) living.push_back(member.get());
    return living;
  }

  /// Returns the last step in the lineage of a member; step 0 where there is none.
  train::LineageStep last_step(const std::string& name) const {
    std::string text = end_of(name + "/lineage.jsonl");
    text.resize(text.rfind('\n') == text.npos ? 0 : text.rfind('\n'));
    if (text.empty()) return {};
    return train::parse_lineage(text.substr(text.rfind('\n') + 1));
  }
  /// Waits until the last step of a member is as `wanted`.
  template <class Wanted>
  void wait_for_step(const std::string& name, const std::string& what, const Wanted& wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!wanted(last_step(name))) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << name << " has no step " << what;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  void wait_for_members(const std::string& name, std::size_t members) {
    wait_for_step(name, fmt::format("of {} members", members),
                  [&](const train::LineageStep& step) { return step.members.size() == members; });
  }
  /// Waits until those that live, and no others, have committed a step together.
  void wait_until_all_train() {
    const std::vector<Member*> living = all_living();
    for (const Member* member : living)
      ASSERT_NO_FATAL_FAILURE(wait_for_members(member->name, living.size()));
  }

  /// The lines of all lineages, by the state behind the step: equal states have equal histories.
  std::map<std::string, train::LineageStep> all_steps() const {
    std::map<std::string, train::LineageStep> steps;
    for (const auto& member : members_) {
      const auto path = (folder_.path() / member->name / "lineage.jsonl").string();
      for (const train::LineageStep& step : train::read_lineage(path)) {
        const auto [entry, is_new] = steps.emplace(step.state, step);
        EXPECT_EQ(train::to_json(entry->second), train::to_json(step)) << member->name;
      }
    }
    return steps;
  }
  /// Returns the step with the greatest number.
  static train::LineageStep furthest_of(const std::map<std::string, train::LineageStep>& steps) {
    train::LineageStep furthest;
    for (const auto& [state, step] : steps)
      if (step.step > furthest.step) furthest = step;
    return furthest;
  }
  /// Returns all steps that led to `last`, in order, after it has checked that no sample is lost or
  /// trained twice in them; in a round those of lost members are.
  std::vector<train::LineageStep> branch_to(
      const train::LineageStep& last,
      const std::map<std::string, train::LineageStep>& steps) const {
    std::vector<train::LineageStep> branch{last};
    while (branch.back().behind() > 0) {
      const auto before = steps.find(branch.back().before);
      if (before == steps.end()) {
        ADD_FAILURE() << "step " << branch.back().behind() << " is missing";
        return {};
      }
      branch.push_back(before->second);
    }
    std::reverse(branch.begin(), branch.end());
    std::int64_t sample = 0;
    for (const train::LineageStep& step : branch) {
      if (step.steps > 0) {
        expect_samples_of_a_round(step);
        continue;
      }
      for (const train::LineageMember& member : step.members) {
        EXPECT_EQ(member.first_sample, sample)
            << "samples were lost or trained twice at step " << step.step;
        sample += member.samples;
      }
      EXPECT_EQ(sample, step.step * kGlobalBatch);
    }
    return branch;
  }
  static void expect_samples_of_a_round(const train::LineageStep& round) {
    const std::int64_t begin = round.behind() * kGlobalBatch;
    std::int64_t next = 0;
    for (const train::LineageMember& member : round.members) {
      if (member.samples == 0) continue;
      EXPECT_GE(member.first_sample - begin, next) << "samples were trained twice";
      next = member.first_sample - begin + member.samples / round.steps;
    }
    EXPECT_GT(next, 0) << "nobody has trained";
    EXPECT_LE(next, kGlobalBatch) << "behind step " << round.behind();
  }
  /// Repeats a branch on one process, in the folder `name` with the job of `like`.
  void expect_replay_of(const std::vector<train::LineageStep>& branch, const std::string& like,
                        const std::string& name) {
    std::filesystem::create_directories(folder_.path() / name);
    std::filesystem::copy_file(folder_.path() / like / "config.toml",
                               folder_.path() / name / "config.toml");
    std::ofstream whole(folder_.path() / name / "lineage.jsonl");
    for (const train::LineageStep& step : branch) whole << train::to_json(step) << "\n";
    whole.close();
    const Outcome replay = run({shoal_program(), "replay", name}, folder_.path());
    EXPECT_EQ(replay.code, 0) << replay.err;
    EXPECT_THAT(replay.out, ::testing::HasSubstr(fmt::format("Steps 1 to {} of {} have the same "
                                                             "bits",
                                                             branch.back().step, name)));
  }

  Folder folder_;
  std::vector<std::unique_ptr<Member>> members_;
  std::int64_t round_ = 0;  ///< steps; 0: members add up gradients in every step

 private:
  /// Returns more of a file than the longest line of a lineage has: a long run has many of them.
  std::string end_of(const std::string& name) const {
    constexpr std::streamoff kLongestLine = 1 << 14;
    std::ifstream file(folder_.path() / name, std::ios::binary | std::ios::ate);
    if (!file) return "";
    file.seekg(-std::min<std::streamoff>(kLongestLine, file.tellg()), std::ios::end);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

}  // namespace shoal::apps::testing
