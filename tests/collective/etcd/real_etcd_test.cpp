// Groups whose decisions a real etcd keeps, which is killed and started again in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/elastic/etcd_keeper.h"
#include "tests/collective/elastic/some_carriers.h"
#include "tests/collective/membership/some_members.h"
#include "tests/error_text.h"
#include "tests/support/etcd_server.h"

namespace shoal::collective::elastic::real_etcd_test {
namespace {

using membership::ChainAnswered;
using membership::ChainEntry;
using membership::ChainQuestion;
using membership::Outcome;
using shoal::testing::EtcdServer;
using ::testing::AllOf;
using ::testing::HasSubstr;

ChainQuestion question(std::uint64_t lineage, std::uint64_t number, std::uint64_t samples) {
  return {.slot = {lineage, 1, number},
          .before = {lineage, 1, number - 1},
          .keep_from = {lineage, 0, 0},
          .wish = Outcome{.step = number - 1,
                          .kind = Outcome::Kind::kCommit,
                          .state = {},
                          .samples = samples,
                          .cause = {},
                          .odd = {}}};
}

membership::View first_view(std::uint64_t lineage) {
  membership::View first = membership::first_view(1);
  first.lineage = lineage;
  return first;
}

/// Asks until there is an answer, however often the server is away.
ChainAnswered answer_in_the_end(EtcdKeeper& keeper, const ChainQuestion& question) {
  for (const Deadline end = soon();;) {
    try {
      return keeper.answer(question);
    } catch (const Error&) {
      if (end.passed()) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

// Requests whose answers are lost with the server are sent again: they may find what they wrote.
TEST(RealEtcd, OneOfManyProposersWinsEachEntryThoughTheServerIsKilled) {
  constexpr int kProposers = 4;
  constexpr std::uint64_t kEntries = 300;
  EtcdServer server;
  const EtcdKeeper::Options options{.addresses = {server.address()}};
  EtcdKeeper(options).begin(first_view(7));
  std::mutex mutex;
  std::map<std::uint64_t, std::vector<std::uint64_t>> winners;  // by entry, as each proposer learns
  std::atomic<std::uint64_t> furthest = 0;
  // All want the same entry at a time: otherwise one may be ahead of the others to the end.
  std::barrier next(kProposers);
  std::vector<std::thread> proposers;
  for (int proposer = 0; proposer < kProposers; ++proposer) {
    proposers.emplace_back([&, proposer] {
      EtcdKeeper keeper(options);
      for (std::uint64_t number = 1; number <= kEntries; ++number) {
        next.arrive_and_wait();
        const auto answer =
            answer_in_the_end(keeper, question(7, number, static_cast<std::uint64_t>(proposer)));
        const std::lock_guard lock(mutex);
        winners[number].push_back(answer.entry ? std::get<Outcome>(*answer.entry).samples : 99);
        furthest = std::max(furthest.load(), number);
      }
    });
  }
  for (const std::uint64_t when : {50u, 120u, 200u}) {
    while (furthest < when) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server.kill();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server.start();
  }
  for (std::thread& proposer : proposers) proposer.join();
  ASSERT_EQ(winners.size(), kEntries);
  std::set<std::uint64_t> all;
  for (const auto& [number, learned] : winners) {
    ASSERT_EQ(learned, std::vector<std::uint64_t>(kProposers, learned[0])) << "entry " << number;
    ASSERT_LT(learned[0], kProposers);
    all.insert(learned[0]);
  }
  EXPECT_GT(all.size(), 1u) << "one proposer won every entry: nothing was contended";
}

TEST(RealEtcd, NothingIsCreatedBehindAnEntryThatIsMissing) {
  EtcdServer server;
  EtcdKeeper keeper({.addresses = {server.address()}});
  EXPECT_EQ(keeper.answer(question(7, 1, 0)).entry, std::nullopt);
  keeper.begin(first_view(7));
  EXPECT_EQ(keeper.answer(question(7, 2, 0)).entry, std::nullopt);
  EXPECT_NE(keeper.answer(question(7, 1, 5)).entry, std::nullopt);
  const auto again = keeper.answer(question(7, 1, 6));
  ASSERT_TRUE(again.entry);
  EXPECT_EQ(std::get<Outcome>(*again.entry).samples, 5);
}

// What is deleted is not created anew, also not with the one before it, which was deleted too.
TEST(RealEtcd, WhatIsDeletedStaysDeleted) {
  EtcdServer server;
  EtcdKeeper keeper({.addresses = {server.address()}});
  for (const std::uint64_t lineage : {7u, 8u}) keeper.begin(first_view(lineage));
  ASSERT_TRUE(keeper.answer(question(8, 1, 1)).entry);
  for (std::uint64_t number = 1; number <= 40; ++number) {
    ChainQuestion next = question(7, number, 0);
    if (number > 16) next.keep_from = {7, 1, number - 16};
    ASSERT_TRUE(keeper.answer(next).entry) << number;
  }
  for (std::uint64_t number = 1; number <= 40; ++number) {
    const auto entry = keeper.answer(question(7, number, 1)).entry;
    ASSERT_EQ(entry.has_value(), number >= 24) << number;
    if (entry) {
      ASSERT_EQ(std::get<Outcome>(*entry).samples, 0) << number;
    }
  }
  // Another lineage keeps its own.
  EXPECT_TRUE(keeper.answer(question(8, 1, 2)).entry);
}

// The next view begins an epoch of its own.
TEST(RealEtcd, AViewIsKeptAndBeginsTheChainOfItsEpoch) {
  EtcdServer server;
  EtcdKeeper keeper({.addresses = {server.address()}});
  keeper.begin(first_view(7));
  membership::View next = membership::first_view(3);
  next.lineage = 7;
  next.epoch = 2;
  ChainQuestion asked = question(7, 1, 0);
  asked.wish = next;
  ASSERT_TRUE(keeper.answer(asked).entry);
  EXPECT_EQ(std::get<View>(*keeper.answer(question(7, 1, 3)).entry), next);
  ChainQuestion behind = question(7, 1, 4);
  behind.slot.epoch = behind.before.epoch = 2;
  EXPECT_TRUE(keeper.answer(behind).entry);
}

TEST(RealEtcd, OverTlsItsCertificateMustBeSignedByOneThatIsTrusted) {
  EtcdServer server(EtcdServer::Tls::kOwnCertificate);
  EtcdKeeper keeper({.addresses = {server.address()}, .ca_file = server.ca_file()});
  keeper.begin(first_view(7));
  EXPECT_TRUE(keeper.answer(question(7, 1, 0)).entry);
  // Longer than a handshake takes on a busy machine.
  constexpr Duration kEnough = std::chrono::seconds(30);
  EXPECT_THAT(error_text([&] {
                EtcdKeeper({.addresses = {server.address()}, .request_timeout = kEnough});
              }),
              AllOf(HasSubstr(server.address()), HasSubstr("certificate")));
}

Digest digest_of(int value) {
  Digest digest{};
  digest.fill(static_cast<std::byte>(value));
  return digest;
}

void attempt(const LetterCarrier& member, LetterCarrier& to, std::uint64_t step) {
  to.post(membership::StepReady{.epoch = member.status().view->epoch,
                                .step = step,
                                .state = digest_of(static_cast<int>(step) + 1),
                                .samples = 10});
}

LetterCarrier::Options with_etcd(const EtcdServer& server, const membership::Settings& settings) {
  LetterCarrier::Options options = network(settings);
  options.etcd = EtcdKeeper::Options{.addresses = {server.address()}};
  return options;
}

TEST(RealEtcd, MembersHoldWhileItIsAwayAndGoOnWhenItIsBack) {
  EtcdServer server;
  const auto members = carriers(3, with_etcd(server, patient()));
  ASSERT_EQ(members.size(), 3u);
  EXPECT_THAT(members[0]->status().view->kept_by, HasSubstr("etcd cluster "));
  for (const auto& member : members) attempt(*member, *member, 0);
  for (const auto& member : members) ASSERT_TRUE(next_outcome(*member));
  // Now that a step is committed with all, three of them are keepers.
  for (const auto& member : members) ASSERT_TRUE(view_of(*member, 3));
  server.kill();
  for (const auto& member : members) attempt(*member, *member, 1);
  EXPECT_FALSE(members[1]->take_news(Deadline::in(std::chrono::milliseconds(700))));
  server.start();
  for (const auto& member : members) {
    const auto outcome = next_outcome(*member);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->state, digest_of(2));
  }
}

// Two of three are gone, and so is the majority: the last one goes on, because it reaches the etcd.
TEST(RealEtcd, TheLastOfThreeMembersGoesOn) {
  EtcdServer server;
  auto members = carriers(3, with_etcd(server, watchful()));
  ASSERT_EQ(members.size(), 3u);
  members.erase(members.begin(), members.begin() + 2);
  const auto alone = view_of(*members[0], 1);
  ASSERT_TRUE(alone);
  attempt(*members[0], *members[0], alone->first_step);
  const auto outcome = next_outcome(*members[0]);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->kind, Outcome::Kind::kCommit);
}

TEST(RealEtcd, AJoinerThatNamesNoneOrOtherKeysIsRefused) {
  EtcdServer server;
  const auto founder = LetterCarrier::found(with_etcd(server, patient()), Digest{});
  LetterCarrier::Options other = with_etcd(server, patient());
  other.etcd->prefix = "elsewhere/";
  for (const auto& options : {network(), other}) {
    const auto joiner = LetterCarrier::join(options, {founder->endpoint()});
    founder->post(membership::JoinersAwaited{.epoch = 1, .step = 0});
    ASSERT_TRUE(joiner->wait_for_end(soon()));
    ASSERT_TRUE(joiner->status().ended);
    EXPECT_THAT(joiner->status().ended->what(),
                HasSubstr("the decisions of this group are kept by etcd cluster"));
  }
}

TEST(RealEtcd, AnEtcdThatStaysAwayEndsItsMembersByName) {
  EtcdServer server;
  membership::Settings settings = patient();
  settings.chain_patience = std::chrono::seconds(1);
  const auto members = carriers(1, with_etcd(server, settings));
  server.kill();
  attempt(*members[0], *members[0], 0);
  ASSERT_TRUE(members[0]->wait_for_end(soon()));
  EXPECT_THAT(members[0]->status().ended->what(),
              AllOf(HasSubstr("has not answered for 1 s"), HasSubstr(server.address())));
}

}  // namespace
}  // namespace shoal::collective::elastic::real_etcd_test
