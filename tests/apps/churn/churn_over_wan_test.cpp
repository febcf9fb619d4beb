// An elastic job whose members lie at sites that long links join, and the links are cut: whole
// sites, one direction, and the group in two parts. The time from each fault to the next commit is
// printed and bounded, and all that was committed is what `shoal replay` computes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/apps/churn/elastic_members.h"
#include "tests/emulation/wan.h"

namespace shoal::apps::testing::churn_over_wan_test {
namespace {

using emulation::Wan;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

using Sites = std::set<int>;

constexpr int kPeerLost = 202;  ///< the exit code of a member that the others have removed
/// What is late once may be the fault of a busy machine.
constexpr int kTries = 3;

std::string name_of(int site) { return fmt::format("site-{}", site); }

class ChurnOverWan : public ElasticMembers {
 protected:
  /// Starts a member at each site, and waits until all train together.
  void start_group(Wan& wan, const std::string& keys) {
    wan_ = &wan;
    folder_.write("key", "a secret of the members\n");
    write_job(keys + "key_file = \"key\"\n");
    start_at(0, {"--set", fmt::format("elastic.members={}", wan.sites())});
    const std::string contact = address(name_of(0));
    for (int site = 1; site < wan.sites(); ++site) start_at(site, {"--join", contact});
    ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  }
  void start_at(int site, std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "elastic.listen=" + wan_->address(site)});
    at_site_[site] = wan_->at(site, [&] { return &start(name_of(site), more); });
  }
  void join_at(int site, int contact) {
    start_at(site, {"--join", address(name_of(contact))});
    ASSERT_NO_FATAL_FAILURE(wait_until_all_train());
  }
  Sites living_sites() const {
    Sites sites;
    for (const auto& [site, member] : at_site_)
      if (member->lives) sites.insert(site);
    return sites;
  }

  /// Returns the seconds from the fault, which `lost` do not survive as members, to the next commit
  /// of the others.
  double seconds_to_commit(const Sites& lost, const std::function<void()>& fault) {
    Sites left = living_sites();
    for (const int site : lost) left.erase(site);
    const std::string first = name_of(*left.begin());
    const auto begin = steady_clock::now();
    fault();
    wait_for_members(first, left.size());
    const std::chrono::duration<double> seconds = steady_clock::now() - begin;
    for (const int site : lost) at_site_[site]->lives = false;
    wait_until_all_train();
    return seconds.count();
  }
  /// Heals the links. Those that were lost end, because the others have gone on.
  void heal(const Sites& lost) {
    wan_->heal();
    for (const int site : lost) {
      const Outcome outcome = at_site_[site]->program->wait();
      EXPECT_EQ(outcome.code, killed_.erase(site) > 0 ? -1 : kPeerLost) << outcome.err;
    }
  }
  /// Lets a fault happen, and again where it took too long; the lost ones join again, but for
  /// `left_out`.
  void expect_commit_within(double longest, const std::string& what, const Sites& lost,
                            const std::function<void()>& fault, const Sites& left_out = {}) {
    double seconds = 0;
    for (int tries = 0; tries < kTries; ++tries) {
      seconds = seconds_to_commit(lost, fault);
      std::printf("%s: %.2f s to the next commit\n", what.c_str(), seconds);
      if (HasFatalFailure()) return;
      heal(lost);
      const bool again = seconds >= longest && tries + 1 < kTries;
      const int contact = *living_sites().begin();
      for (const int site : lost)
        if (again || !left_out.contains(site)) join_at(site, contact);
      if (!again) break;
    }
    EXPECT_LT(seconds, longest) << what;
  }
  void kill(int site) {
    killed_.insert(site);
    at_site_[site]->program->signal(SIGKILL);
  }
  /// Cuts what a site sends, and not what it hears.
  void mute(int site) {
    for (int other = 0; other < wan_->sites(); ++other)
      if (other != site) cut_way(site, other);
  }
  void cut_way(int from, int to) {
    auto spec = wan_->spec(from, to);
    spec.open = false;
    wan_->set(from, to, spec);
  }
  void end_all() {
    for (Member* member : all_living()) EXPECT_EQ(end(*member, SIGTERM).code, 128 + SIGTERM);
  }

  Wan* wan_ = nullptr;
  std::map<int, Member*> at_site_;
  Sites killed_;  ///< by the test, and not waited for
};

TEST_F(ChurnOverWan, CutsAndPartitionsAtARoundTripOf50Milliseconds) {
  constexpr double kLongest = 5;
  constexpr double kLongestOfPair = 7;
  Wan wan(5);
  wan.set_all({.delay = milliseconds(25), .bits_per_second = 100e6});
  ASSERT_NO_FATAL_FAILURE(start_group(wan, "suspect_after_s = 1.5\nquorum_patience_s = 2\n"));
  expect_commit_within(kLongest, "blackhole", {4}, [&] { wan.cut({4}); });
  expect_commit_within(kLongest, "one-way cut", {4}, [&] { mute(4); });
  // All others hear both. Site 0 has the owner, and 4 has come last, so it is the one that goes.
  expect_commit_within(kLongestOfPair, "one-way cut between two", {4}, [&] { cut_way(4, 0); });
  expect_commit_within(kLongest, "partition 3|2", {3, 4}, [&] { wan.cut({3, 4}); }, {4});
  // Sites 0 to 2 keep decisions: the two of them that are on one side go on.
  expect_commit_within(kLongest, "partition 2|2", {0, 3}, [&] { wan.cut({0, 3}); }, {0, 3});
  ASSERT_FALSE(HasFailure());
  end_all();
  const auto steps = all_steps();
  const auto branch = branch_to(furthest_of(steps), steps);
  EXPECT_EQ(branch.size(), steps.size()) << "two parts have gone on";
  expect_replay_of(branch, name_of(1), "whole");
}

TEST_F(ChurnOverWan, AKilledMemberCostsLessThanTwoSecondsOnALan) {
  constexpr double kLongest = 2;
  Wan wan(3);
  ASSERT_NO_FATAL_FAILURE(start_group(wan, "suspect_after_s = 0.8\nquorum_patience_s = 2\n"));
  expect_commit_within(kLongest, "killed", {2}, [&] { kill(2); });
  // The owner, which proposes what steps come to.
  expect_commit_within(kLongest, "owner killed", {0}, [&] { kill(0); });
  ASSERT_FALSE(HasFailure());
  end_all();
}

// Both parts go on where the job says so. When they meet, the one that has committed less ends:
// there are two branches, each of which is that of a replay. Two members and one add up in another
// order, so that the states differ.
TEST_F(ChurnOverWan, SurvivorsOnBothSidesAreTwoBranches) {
  Wan wan(3);
  ASSERT_NO_FATAL_FAILURE(start_group(
      wan, "suspect_after_s = 1\nquorum_patience_s = 1\non_quorum_loss = \"survivors\"\n"));
  wan.cut({2});
  ASSERT_NO_FATAL_FAILURE(wait_for_members(name_of(0), 2));
  ASSERT_NO_FATAL_FAILURE(wait_for_members(name_of(2), 1));
  wan.heal();
  const auto until = steady_clock::now() + std::chrono::minutes(1);
  const auto ended = [&](int site) { return at_site_[site]->program->ended(); };
  while (!ended(0) && !ended(2) && steady_clock::now() < until)
    std::this_thread::sleep_for(milliseconds(20));
  const Sites lost = ended(2) ? Sites{2} : Sites{0, 1};
  for (const int site : lost) {
    const Outcome outcome = at_site_[site]->program->wait();
    at_site_[site]->lives = false;
    EXPECT_THAT(outcome.err, ::testing::HasSubstr("another lineage has committed"));
  }
  const std::string winner = name_of(*living_sites().begin());
  const std::string loser = name_of(*lost.begin());
  ASSERT_NO_FATAL_FAILURE(wait_for_step(winner, "after the meeting", [&](const auto& last) {
    return last.step > last_step(loser).step;
  }));
  end_all();
  const auto steps = all_steps();
  // Who is ended last goes on alone for a while.
  const auto first = branch_to(furthest_of(steps), steps);
  const auto second = branch_to(last_step(loser), steps);
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(first.size() + second.size(), steps.size()) << "they have a beginning in common";
  EXPECT_NE(first[second.size() - 1].state, second.back().state);
  expect_replay_of(first, name_of(0), "first");
  expect_replay_of(second, name_of(0), "second");
}

}  // namespace
}  // namespace shoal::apps::testing::churn_over_wan_test
