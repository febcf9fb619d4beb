#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "examples/15_elastic/tiny_model.h"
#include "shoal/base/hex.h"
#include "shoal/collective/elastic/state_exchange.h"
#include "tests/collective/elastic_processes/member_process.h"

namespace shoal::collective::elastic {

inline Deadline soon() { return Deadline::in(std::chrono::minutes(5)); }

class ElasticProcesses : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) {
      for (const auto& member : all_) std::printf("---\n%s", member->text("stderr").c_str());
    }
    all_.clear();
    std::filesystem::remove_all(folder_);
  }

  /// The first one begins the group, the others join it by way of `contact`.
  MemberProcess& start(MemberProcess* contact, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--key",      "a key", "--steps",           "1000000",
                                          "--pause-ms", "10",    "--suspect-after-s", "5"};
    if (contact) arguments.insert(arguments.end(), {"--join", contact->address(soon())});
    arguments.insert(arguments.end(), more.begin(), more.end());
    all_.push_back(std::make_unique<MemberProcess>(folder_ + "/" + std::to_string(all_.size()),
                                                   std::move(arguments)));
    return *all_.back();
  }

  /// Three members, of which the one that joins as number `dying` dies in the middle of the reduce
  /// of step 30.
  std::vector<MemberProcess*> start_three(int dying) {
    std::vector<MemberProcess*> members;
    for (int i = 0; i < 3; ++i) {
      std::vector<std::string> more = {"--members", std::to_string(i == 0 ? 3 : 1)};
      if (i == dying) more.insert(more.end(), {"--die-at", "30"});
      members.push_back(&start(i == 0 ? nullptr : members[0], more));
      members.back()->address(soon());
    }
    return members;
  }

  /// Waits until `observer` has committed a step for which `fits` holds.
  static bool wait_for(const MemberProcess& observer,
                       const std::function<bool(const LineageStep&)>& fits) {
    for (const Deadline end = soon(); !end.passed(); MemberProcess::pause()) {
      const auto steps = observer.lineage();
      if (std::any_of(steps.begin(), steps.end(), fits)) return true;
    }
    return false;
  }
  static bool has_members(const MemberProcess& observer, const std::vector<MemberProcess*>& them) {
    std::vector<std::string> names;
    for (MemberProcess* member : them) names.push_back(member->name(soon()));
    std::sort(names.begin(), names.end());
    return wait_for(observer, [&](const LineageStep& step) {
      std::vector<std::string> members = step.members;
      std::sort(members.begin(), members.end());
      return members == names;
    });
  }

  /// Stops a member in order.
  static void stop(MemberProcess& member) {
    member.signal(SIGTERM);
    ASSERT_EQ(member.wait(soon()), 0);
    ASSERT_THAT(member.text("stdout"), testing::HasSubstr("left at step"));
    // The parameters that it holds are those of its last step.
    ASSERT_THAT(member.text("stdout"),
                testing::HasSubstr("with state " + member.lineage().back().state));
  }

  /// Waits until a step is committed that so many keepers have decided.
  static bool has_keepers(const MemberProcess& observer, std::size_t keepers) {
    return wait_for(observer, [&](const LineageStep& step) { return step.keepers == keepers; });
  }

  /// All lineages together say one thing of each step, and one process that repeats them has the
  /// same bits after each. Where `survivor` has gone on alone without the majority, what others
  /// say of the steps that it has committed alone does not count. Returns the number of steps.
  std::size_t replay(const MemberProcess* survivor = nullptr) const {
    std::vector<const MemberProcess*> members;
    for (const auto& member : all_) members.push_back(member.get());
    return replay_of(members, survivor);
  }
  static std::size_t replay_of(const std::vector<const MemberProcess*>& members,
                               const MemberProcess* survivor = nullptr) {
    std::map<std::uint64_t, LineageStep> steps;
    std::set<std::uint64_t> alone;
    if (survivor) {
      for (const LineageStep& step : survivor->lineage()) {
        if (step.members.size() == 1) alone.insert(step.step);
        steps.emplace(step.step, step);
      }
    }
    for (const MemberProcess* member : members) {
      for (const LineageStep& step : member->lineage()) {
        if (member != survivor && alone.contains(step.step)) continue;
        const auto [entry, is_new] = steps.emplace(step.step, step);
        EXPECT_EQ(entry->second, step) << "step " << step.step;
      }
    }
    tiny::State state;
    std::uint64_t next_step = 0;
    std::uint64_t next_sample = 0;
    for (const auto& [number, step] : steps) {
      EXPECT_EQ(number, next_step++);
      // Each contribution by itself, added in the order of the members, as the group does.
      tiny::Sums all;
      for (std::size_t member = 0; member < step.samples.size(); ++member) {
        const auto [first, end] = step.samples[member];
        EXPECT_EQ(first, next_sample) << "samples were skipped or used twice at step " << number;
        next_sample = end;
        tiny::Sums one;
        tiny::add_samples(state, first, end - first, one);
        if (member == 0) {
          all = one;
        } else {
          all += one;
        }
      }
      state = tiny::updated(state, all);
      const std::string digest = hex(StateAccess::sha256(tiny::bytes_of(state)));
      EXPECT_EQ(digest, step.state) << "step " << number;
      if (digest != step.state) break;
    }
    return steps.size();
  }

  // Fixtures below start members before SetUp would run.
  std::string folder_ = testing::TempDir() + "shoal-elastic-" + std::to_string(::getpid()) + "-" +
                        testing::UnitTest::GetInstance()->current_test_info()->name();
  std::vector<std::unique_ptr<MemberProcess>> all_;
};

}  // namespace shoal::collective::elastic
