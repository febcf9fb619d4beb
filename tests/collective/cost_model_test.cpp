// The predicted times of small tables against sums that are done by hand: each cost has a value
// that no other sum of them gives.
#include "shoal/collective/algorithm/cost_model.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/direct.h"

namespace shoal::collective::cost_model_test {
namespace {

constexpr std::size_t kBytes = 10;

// In units of a second: 100 and 2 a byte inside, 1000 and 5 a byte between hosts.
const CostModel kModel{.inside = {100, 2}, .between = {1000, 5}, .overhead = 7, .fold = 0.1};

constexpr Range kAll{0, kBytes};

Step sending(int to) { return {Action::kSend, to, kAll}; }
Step copying(int from) { return {Action::kReceiveCopy, from, kAll}; }

double seconds(const StepTable& table, std::span<const int> hosts = {}) {
  return predict_seconds(table, 1, kModel, hosts);
}

TEST(CostModel, AMessageCostsItsLinkAndBothEnds) {
  const StepTable one{{sending(1)}, {copying(0)}};
  EXPECT_DOUBLE_EQ(seconds(one), 7 + 100 + 20 + 7);
  EXPECT_DOUBLE_EQ(seconds(one, std::vector<int>{0, 0}), 7 + 100 + 20 + 7);
  EXPECT_DOUBLE_EQ(seconds(one, std::vector<int>{0, 1}), 7 + 1000 + 50 + 7);
  EXPECT_DOUBLE_EQ(predict_seconds(one, 4, kModel), 7 + 100 + 80 + 7);
}

TEST(CostModel, ReducingCostsTheBytesOfEveryContribution) {
  const StepTable reduced{{sending(1)}, {{Action::kReceiveReduce, 0, kAll}}};
  EXPECT_DOUBLE_EQ(seconds(reduced), 7 + 100 + 20 + 7 + 1);
  // Rank 2 takes both messages, one after the other, and then folds two contributions.
  const StepTable folded{
      {sending(2)},
      {sending(2)},
      {{Action::kHold, 0, kAll}, {Action::kHold, 1, kAll}, {Action::kFold, 2, kAll}}};
  EXPECT_DOUBLE_EQ(seconds(folded), 7 + 100 + 20 + 20 + 7 + 2);
  // What was folded is not held any more.
  const StepTable twice{{sending(1), sending(1)},
                        {{Action::kHold, 0, kAll},
                         {Action::kFold, 1, kAll},
                         {Action::kHold, 0, kAll},
                         {Action::kFold, 1, kAll}}};
  // The second message leaves when the first has: at 27, and not at 14.
  EXPECT_DOUBLE_EQ(seconds(twice), 7 + 20 + 20 + 100 + 7 + 1);
}

TEST(CostModel, APortCarriesOneMessageAtATime) {
  // Both leave rank 0: the second one after the first.
  EXPECT_DOUBLE_EQ(seconds({{sending(1), sending(2)}, {copying(0)}, {copying(0)}}),
                   7 + 20 + 20 + 100 + 7);
  // In opposite directions they do not meet.
  EXPECT_DOUBLE_EQ(seconds({{sending(1), copying(1)}, {sending(0), copying(0)}}), 7 + 100 + 20 + 7);
}

// The ranks of a host share its link, those inside do not use it.
TEST(CostModel, AHostsLinkIsShared) {
  const StepTable pairs{{sending(2)}, {sending(3)}, {copying(0)}, {copying(1)}};
  EXPECT_DOUBLE_EQ(seconds(pairs, std::vector<int>{0, 0, 1, 1}), 7 + 1000 + 50 + 50 + 7);
  EXPECT_DOUBLE_EQ(seconds(pairs, std::vector<int>{0, 1, 2, 3}), 7 + 1000 + 50 + 7);
  EXPECT_DOUBLE_EQ(seconds(pairs, std::vector<int>{0, 1, 0, 1}), 7 + 100 + 20 + 7);
  // Two hosts send to two ranks of a third one: its link is the bottleneck.
  EXPECT_DOUBLE_EQ(seconds(pairs, std::vector<int>{0, 1, 2, 2}), 7 + 1000 + 50 + 50 + 7);
}

TEST(CostModel, NothingCostsNothing) {
  EXPECT_EQ(seconds({}), 0);
  EXPECT_EQ(seconds({{{Action::kSend, 1, {}}}, {{Action::kReceiveCopy, 0, {}}}}), 0);
}

TEST(CostModel, ATableThatCannotFinishIsOurMistake) {
  try {
    seconds({{copying(1)}, {copying(0)}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
  try {
    seconds({{sending(1)}, {copying(0)}}, std::vector<int>{0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
}

// Loopback and 10-gigabit Ethernet: what a job gets that brings no figures of its own.
TEST(CostModel, HasTheDefaultsOfItsDocumentation) {
  const CostModel model;
  EXPECT_DOUBLE_EQ(model.inside.alpha, 15e-6);
  EXPECT_DOUBLE_EQ(model.inside.beta, 1 / 2.0e9);
  EXPECT_DOUBLE_EQ(model.between.alpha, 30e-6);
  EXPECT_DOUBLE_EQ(model.between.beta, 1 / 1.15e9);
  EXPECT_DOUBLE_EQ(model.overhead, 3e-6);
  EXPECT_DOUBLE_EQ(model.fold, 1 / 8.0e9);
}

// The fastest of all that the kind has, for the next power of two.
TEST(Choice, IsTheFastestAsPredicted) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3, 4, 5, 6}}) {
    const bool one_host = hosts.back() == 0;
    const Choice choose(hosts, {});
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                            Kind::kReduceScatter, Kind::kBarrier}) {
      for (const auto& [bytes, rounded] : {std::pair{0, 1},
                                           {1, 1},
                                           {2, 2},
                                           {3, 4},
                                           {4096, 4096},
                                           {4097, 8192},
                                           {65536, 65536},
                                           {1 << 20, 1 << 20},
                                           {(1 << 24) - 1, 1 << 24}}) {
        for (const bool once : {false, true}) {
          if (once && (kind == Kind::kBroadcast || kind == Kind::kAllGather)) continue;
          std::optional<Algorithm> best;
          double least = 0;
          for (const Algorithm a : algorithms_for(kind)) {
            if (once && a != Algorithm::kOneShot && a != Algorithm::kDirect) continue;
            if (one_host && a == Algorithm::kHierarchical) continue;
            const double s = predict_seconds(
                make_table(a, kind, static_cast<std::size_t>(rounded), 0, hosts), 1, {}, hosts);
            if (!best || s < least) best = a, least = s;
          }
          EXPECT_EQ(name(choose(kind, static_cast<std::size_t>(bytes), once)), name(*best))
              << name(kind) << " of " << bytes << " bytes, once: " << once;
        }
      }
    }
  }
}

TEST(Choice, EveryAlgorithmHasAName) {
  for (int i = 0; i <= static_cast<int>(Algorithm::kHierarchical); ++i)
    EXPECT_EQ(algorithm(name(static_cast<Algorithm>(i))), static_cast<Algorithm>(i));
  EXPECT_EQ(algorithm("ringg"), std::nullopt);
  EXPECT_STREQ(name(static_cast<Algorithm>(99)), "unknown");
}

TEST(Choice, KnowsWhatEachKindHas) {
  using A = Algorithm;
  const auto has = [](Kind kind, std::vector<A> all) {
    EXPECT_EQ(algorithms_for(kind), all) << name(kind);
  };
  has(Kind::kAllReduce, {A::kOneShot, A::kDirect, A::kRecursiveDoubling, A::kHalvingDoubling,
                         A::kRing, A::kDoubleBinaryTree, A::kHierarchical});
  has(Kind::kBarrier, {A::kRecursiveDoubling, A::kOneShot});
  for (const Kind kind : {Kind::kReduce, Kind::kBroadcast}) has(kind, {A::kDirect, A::kBinomial});
  for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter})
    has(kind, {A::kDirect, A::kRing});
  for (const Kind kind : {Kind::kAllToAll, Kind::kGather, Kind::kScatter}) has(kind, {A::kDirect});
  for (const Kind kind : {Kind::kSend, Kind::kReceive}) has(kind, {});
}

TEST(Choice, OverridesHoldUnlessTheyWouldRoundTwice) {
  const Choice choose({0, 0, 1}, {}, "reduce_scatter=ring,all_reduce=one_shot");
  EXPECT_EQ(choose(Kind::kReduceScatter, 1 << 20), Algorithm::kRing);
  EXPECT_EQ(choose(Kind::kReduceScatter, 1 << 20, true), Algorithm::kDirect);
  EXPECT_EQ(choose(Kind::kAllReduce, 1 << 26, true), Algorithm::kOneShot);
  for (const char* wrong : {"all_reduce", "nothing=ring", "broadcast=ring", "all_reduce=ring,x"}) {
    try {
      Choice({0, 0}, {}, wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << wrong;
    }
  }
  EXPECT_THROW(Choice({}, {}), Error);
}

TEST(Choice, PrintsALineForEachKindAndSize) {
  const Choice choose({0, 0, 1}, {}, "broadcast=binomial");
  const std::string text = choose.print();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 8 * 14 + 1);
  EXPECT_TRUE(text.starts_with("3 ranks;"));
  EXPECT_NE(text.find("\nbroadcast               4  binomial "), std::string::npos) << text;
  EXPECT_NE(text.find("\nscatter         268435456  direct "), std::string::npos);
}

}  // namespace
}  // namespace shoal::collective::cost_model_test
