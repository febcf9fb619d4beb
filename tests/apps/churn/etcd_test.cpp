// An elastic job whose decisions an etcd keeps, as processes that are killed, while the etcd is
// killed and started again: every step that any of them has committed is that of `shoal replay`.
// First as a script, then at random.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/train/config/lineage.h"
#include "tests/apps/churn/elastic_members.h"
#include "tests/apps/churn/random_churn.h"
#include "tests/support/etcd_server.h"

namespace shoal::apps::testing::etcd_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class WithEtcd : public ElasticMembers {
 protected:
  void SetUp() override {
    write_job(fmt::format("suspect_after_s = 2\netcd = [\"{}\"]\netcd_patience_s = 300\n",
                          etcd_.address()));
  }
  /// Starts a member; the first one begins the group.
  Member& start() {
    std::vector<std::string> more;
    if (!members_.empty()) more = {"--join", address(all_living().front()->name)};
    Member& member = ElasticMembers::start(fmt::format("run-{}", members_.size()), more);
    EXPECT_TRUE(appears(folder_, member.name + "/address"));
    wait_until_all_train();
    return member;
  }
  void expect_more_steps(const Member& member) {
    const std::int64_t before = last_step(member.name).step;
    wait_for_step(member.name, "beyond the last one",
                  [&](const train::LineageStep& step) { return step.step > before + 20; });
  }

  shoal::testing::EtcdServer etcd_;
};

TEST_F(WithEtcd, EveryStepIsThatOfAReplayThoughMembersAndTheEtcdAreKilled) {
  Member& owner = start();
  Member& second = start();
  Member& third = start();
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));
  etcd_.kill();
  // Each member may commit the step whose decision it was about to learn, and no other one.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const std::int64_t step = last_step(third.name).step;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(last_step(third.name).step, step) << "a step was committed without the etcd";
  etcd_.start();
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));
  EXPECT_EQ(last_step(third.name).members.size(), 3u) << "somebody was removed meanwhile";

  // The owner dies while the etcd is away.
  etcd_.kill();
  end(owner, SIGKILL);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  etcd_.start();
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));

  // One of two is no majority. It goes on, and another one joins it.
  end(second, SIGKILL);
  ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(third));
  Member& fourth = start();
  ASSERT_NO_FATAL_FAILURE(expect_more_steps(fourth));
  for (Member* member : all_living()) EXPECT_EQ(end(*member, SIGTERM).code, 128 + SIGTERM);

  const auto steps = all_steps();
  const auto branch = branch_to(furthest_of(steps), steps);
  EXPECT_EQ(branch.size(), steps.size()) << "the group has gone on in two branches";
  expect_replay_of(branch, third.name, "replayed");
}

TEST_F(WithEtcd, AJobSaysWhereItsEtcdIsMissing) {
  etcd_.kill();
  const Outcome outcome =
      run({shoal_program(), "train", "job.toml", "--run-dir", "run"}, folder_.path());
  EXPECT_EQ(outcome.code, 202);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no etcd says which cluster it is"),
                                 HasSubstr(etcd_.address()), HasSubstr("Hint: ")));
}

/// The random churn with an etcd, which lies at a site of its own where there are any. It is killed
/// and started again, also while something happens to members, and cut from single ones. Any of the
/// members may go on without all others.
class ChurnWithEtcd : public RandomChurn {
 protected:
  static constexpr int kSite = kSites;

  std::string start_etcd() {
    at_etcd([&] {
      const std::string host = has_sites() ? wan().address(kSite) : "127.0.0.1";
      etcd_.emplace(shoal::testing::EtcdServer::Tls::kOff, host);
    });
    return etcd_->address();
  }
  bool happens_to_keeper() override {
    const std::vector<Member*> members = in_order();
    // A short run has one of each kind.
    constexpr std::array kFirst = {1, 4, 0};
    switch (happened_ < kFirst.size() ? kFirst.at(happened_++) : static_cast<int>(below(8))) {
      case 0:
        note("etcd killed");
        etcd_->kill();
        std::this_thread::sleep_for(up_to(2000));
        start_again();
        return true;
      case 1:
      case 2:
        return members.size() < 3 ? false : happens_while_it_is_away(members);
      case 3:
        if (!has_sites() || members.size() < 2) return false;
        return cut_from_etcd(one_of(members));
      case 4:
        if (members.size() < 3) return false;
        return lose_all_but_one(members);
      default:
        return false;
    }
  }

 private:
  template <class Body>
  void at_etcd(const Body& body) {
    has_sites() ? wan().at(kSite, body) : body();
  }
  void start_again() {
    at_etcd([&] { etcd_->start(); });
    note("etcd started");
  }
  /// Nobody joins then: who starts asks the etcd once.
  bool happens_while_it_is_away(const std::vector<Member*>& members) {
    note("etcd killed while something happens");
    etcd_->kill();
    std::this_thread::sleep_for(up_to(300));
    const std::size_t what = below(6);
    if (what == 0) {
      leave_one(one_of(members));
    } else if (what == 1) {
      disturb(members);
    } else {
      const std::size_t place = below(members.size());
      lose_one(*members[place], place == 0);
    }
    std::this_thread::sleep_for(up_to(3000));
    start_again();
    return true;
  }
  bool cut_from_etcd(Member& member) {
    note("cut from the etcd: " + member.name);
    cut_from_site(member, kSite);
    std::this_thread::sleep_for(up_to(3000));
    restore_links(member, delay_);
    return true;
  }
  bool lose_all_but_one(const std::vector<Member*>& members) {
    // The one that gives wrong states must not be the last: nobody could join it.
    std::size_t left = below(members.size());
    if (members[left] == liar_) left = (left + 1) % members.size();
    for (std::size_t place = 0; place < members.size(); ++place)
      if (place != left) lose_one(*members[place], place == 0);
    return true;
  }

  std::optional<shoal::testing::EtcdServer> etcd_;
  std::size_t happened_ = 0;
};

TEST_F(ChurnWithEtcd, EveryCommittedStepIsThatOfAReplay) {
  begin(7, 10, 1);
  const std::string address = start_etcd();
  expect_replay_of_churn(fmt::format("etcd = [\"{}\"]\netcd_patience_s = 300\n", address));
}

}  // namespace
}  // namespace shoal::apps::testing::etcd_test
