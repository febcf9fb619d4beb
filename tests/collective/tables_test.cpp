// Every algorithm's table is complete, free of deadlock, gives the same bits on all ranks and sends
// no more than promised, for every number of ranks from 1 to 64.
#include <gtest/gtest.h>

#include <bit>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/direct.h"
#include "shoal/collective/algorithm/hierarchical.h"
#include "shoal/collective/algorithm/ring.h"
#include "tests/support/check_table.h"

namespace shoal::collective::tables_test {
namespace {

constexpr Kind kTableKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast,
                                Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                                Kind::kGather,    Kind::kScatter,       Kind::kBarrier};

/// The hosts of `ranks` ranks: `each` on a host, the rest on the last one.
std::vector<int> on_hosts(int ranks, int each) {
  std::vector<int> hosts(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) hosts[rank] = rank / each;
  return hosts;
}

TEST(Tables, AColumnIsThatOfTheTable) {
  for (const int ranks : {1, 2, 3, 4, 7, 16}) {
    for (const Kind kind : kTableKinds) {
      for (const Algorithm algorithm : algorithms_for(kind)) {
        for (const std::size_t count : {0, 5, 67}) {
          const int root = ranks / 2;
          const auto hosts = on_hosts(ranks, 3);
          const auto table = make_table(algorithm, kind, count, root, hosts);
          for (int rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(make_column(algorithm, kind, count, root, hosts, rank), table[rank])
                << name(kind) << ' ' << name(algorithm) << " ranks=" << ranks << " rank=" << rank;
          }
        }
      }
    }
  }
}

// A table of all columns would have 4 p^2 steps, 1.6 GB of them.
TEST(Tables, AColumnOfManyRanksIsMadeAlone) {
  constexpr int kRanks = 4096;
  const std::vector<int> hosts(kRanks, 0);
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kOneShot}) {
    const auto steps = make_column(algorithm, Kind::kAllReduce, 1 << 20, 0, hosts, 1234);
    EXPECT_LE(steps.size(), 4u * kRanks);
    EXPECT_GE(steps.size(), 2u * (kRanks - 1));
  }
  EXPECT_EQ(make_column(Algorithm::kDirect, Kind::kAllToAll, 3, 0, hosts, 7).size(),
            2u * (kRanks - 1));
}

TEST(Tables, AreCorrectForEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const Kind kind : kTableKinds) {
      const bool wide = kind != Kind::kAllReduce && kind != Kind::kReduce &&
                        kind != Kind::kBroadcast && kind != Kind::kBarrier;
      const std::vector<std::size_t> counts =
          wide ? std::vector<std::size_t>{0, 1, 3} : std::vector<std::size_t>{0, 1, 7, 67};
      for (const Algorithm algorithm : algorithms_for(kind)) {
        for (const std::size_t count : counts) {
          const int root = ranks * 2 / 3;
          const auto table = make_table(algorithm, kind, count, root, on_hosts(ranks, 5));
          const auto check = check_table(table, kind, kind == Kind::kBarrier ? 1 : count, root);
          ASSERT_TRUE(check.correct()) << name(kind) << ' ' << name(algorithm) << " ranks=" << ranks
                                       << " count=" << count << ": " << check.problem;
        }
      }
    }
  }
}

// Parts may be shorter than there are segments, and differ by an element.
TEST(Tables, ADirectAllReduceInSegmentsIsCorrect) {
  for (const int ranks : {1, 2, 3, 4, 7, 16}) {
    for (const int segments : {1, 2, 3, 8}) {
      for (const std::size_t count : {0, 1, 7, 67, 200}) {
        StepTable table;
        for (int rank = 0; rank < ranks; ++rank)
          table.push_back(direct_all_reduce_column(ranks, count, rank, segments));
        const auto check = check_table(table, Kind::kAllReduce, count);
        EXPECT_TRUE(check.correct()) << "ranks=" << ranks << " segments=" << segments
                                     << " count=" << count << ": " << check.problem;
      }
    }
  }
}

// A rank that has the first segment of its part sends its sum before it has the second one: the
// link is busy with the rest meanwhile.
TEST(Tables, SumsOfSegmentsAreSentOneByOne) {
  const auto steps = direct_all_reduce_column(2, 8, 0, 2);
  const std::vector<Step> expected = {
      {Action::kSend, 1, {4, 6}},        {Action::kSend, 1, {6, 8}},
      {Action::kHold, 1, {0, 2}},        {Action::kFold, 0, {0, 2}},
      {Action::kSend, 1, {0, 2}},        {Action::kHold, 1, {2, 4}},
      {Action::kFold, 0, {2, 4}},        {Action::kSend, 1, {2, 4}},
      {Action::kReceiveCopy, 1, {4, 6}}, {Action::kReceiveCopy, 1, {6, 8}}};
  EXPECT_EQ(steps, expected);
}

TEST(Tables, HierarchyIsCorrectForUnevenHosts) {
  const std::vector<std::vector<int>> worlds = {
      {0, 0, 0, 1}, {2, 1, 2, 1, 7}, {0, 1, 2}, {3, 3, 3}, {0, 1, 0, 1, 0, 1, 0}};
  for (const auto& hosts : worlds) {
    for (const std::size_t count : {0, 1, 5, 100}) {
      const auto check =
          check_table(hierarchical_all_reduce(hosts, count), Kind::kAllReduce, count);
      EXPECT_TRUE(check.correct()) << check.problem;
    }
  }
}

// The bounds are those of the papers; a count that all divide makes them exact.
TEST(Tables, SendNoMoreThanPromised) {
  for (int ranks : {2, 3, 4, 7, 8, 16, 33, 64}) {
    const std::size_t p = ranks;
    const std::size_t count = p * 16;
    const auto sent = [&](Algorithm a, Kind kind = Kind::kAllReduce) {
      return check_table(make_table(a, kind, count, 0, on_hosts(ranks, 4)), kind, count)
          .most_sent();
    };
    const auto bits = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks)) - 1);
    const bool power = std::has_single_bit(p);
    EXPECT_EQ(sent(Algorithm::kRing), 2 * (p - 1) * count / p);
    EXPECT_EQ(sent(Algorithm::kDirect), 2 * (p - 1) * count / p);
    EXPECT_EQ(sent(Algorithm::kOneShot), (p - 1) * count);
    EXPECT_EQ(sent(Algorithm::kRecursiveDoubling), (bits + (power ? 0 : 1)) * count);
    if (power) {
      EXPECT_EQ(sent(Algorithm::kHalvingDoubling), 2 * (p - 1) * count / p);
    } else {
      EXPECT_LE(sent(Algorithm::kHalvingDoubling), 3 * count);
    }
    EXPECT_LE(
        sent(Algorithm::kDoubleBinaryTree),
        5 * count / 2);  // a leaf sends half up; inside the other tree half up and two halves down
    EXPECT_EQ(sent(Algorithm::kRing, Kind::kAllGather), (p - 1) * count);
    EXPECT_EQ(sent(Algorithm::kRing, Kind::kReduceScatter), (p - 1) * count);
  }
}

/// Counts the elements that leave a host, summed over all ranks.
std::size_t elements_between_hosts(const StepTable& table, std::span<const int> hosts) {
  std::size_t sent = 0;
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    for (const Step& step : table[rank]) {
      if (step.action == Action::kSend && hosts[rank] != hosts[step.peer])
        sent += step.range.size();
    }
  }
  return sent;
}

TEST(Tables, HierarchyCrossesBetweenHostsAsLittleAsPossible) {
  const auto hosts = on_hosts(16, 4);
  const std::size_t count = 1 << 9;
  EXPECT_EQ(elements_between_hosts(hierarchical_all_reduce(hosts, count), hosts),
            2 * 3 * count);  // h hosts: 2 (h - 1) * count in all
  EXPECT_GT(elements_between_hosts(direct_all_reduce(16, count), hosts), 4 * 2 * 3 * count - 1);
}

TEST(CheckTable, FindsWhatIsWrong) {
  const auto problem = [](StepTable table) {
    return check_table(table, Kind::kAllReduce, 8).problem;
  };
  const StepTable good = ring_all_reduce(4, 8);
  EXPECT_EQ(problem(good), "");
  for (int rank = 0; rank < 4; ++rank) {
    for (std::size_t i = 0; i < good[rank].size(); ++i) {
      auto missing = good;
      auto twice = good;
      auto shifted = good;
      auto swapped = good;
      missing[rank].erase(missing[rank].begin() + i);
      EXPECT_NE(problem(missing), "") << "without step " << i;
      twice[rank].insert(twice[rank].begin() + i, twice[rank][i]);
      EXPECT_NE(problem(twice), "") << "step " << i << " twice";
      shifted[rank][i].range = {0, 9};
      EXPECT_NE(problem(shifted), "");
      if (good[rank][i].action == Action::kReceiveReduce)
        swapped[rank][i].action = Action::kReceiveCopy;
      if (good[rank][i].action == Action::kReceiveCopy)
        swapped[rank][i].action = Action::kReceiveReduce;
      if (swapped[rank] != good[rank]) {
        EXPECT_NE(problem(swapped), "");
      }
    }
  }
  // Two ranks that each receive first wait for ever.
  const Step send{Action::kSend, 1, {0, 8}};
  const Step receive{Action::kReceiveReduce, 1, {0, 8}};
  StepTable stuck = {{receive, send}, {{receive.action, 0, {0, 8}}, {send.action, 0, {0, 8}}}};
  EXPECT_NE(problem(stuck).find("deadlock"), std::string::npos);
  EXPECT_NE(check_table(direct_broadcast(3, 4, 1), Kind::kBroadcast, 4, 0).problem,
            "");  // another root
}

// Equal sums in another order: a rank that adds (a + b) + c beside one that adds a + (b + c).
TEST(CheckTable, SeesAnotherOrderOfAdditions) {
  StepTable table(3);
  const Range all{0, 1};
  for (int rank = 0; rank < 3; ++rank) {
    for (int distance = 1; distance < 3; ++distance)
      table[rank].push_back({Action::kSend, (rank + distance) % 3, all});
  }
  table[0].push_back({Action::kReceiveReduce, 1, all}),
      table[0].push_back({Action::kReceiveReduce, 2, all});
  table[1].push_back({Action::kReceiveReduce, 2, all}),
      table[1].push_back({Action::kReceiveReduce, 0, all});
  table[2].push_back({Action::kReceiveReduce, 1, all}),
      table[2].push_back({Action::kReceiveReduce, 0, all});
  EXPECT_NE(check_table(table, Kind::kAllReduce, 1).problem.find("order"), std::string::npos);
}

// Closed forms: a ring of p takes 2 (p - 1) rounds of alpha + bytes * beta, recursive doubling log2
// p rounds of the whole.
TEST(CostModel, AgreesWithClosedForms) {
  const CostModel model{.inside = {1e-5, 1e-9}, .between = {1e-5, 1e-9}, .overhead = 0, .fold = 0};
  const double ring = predict_seconds(ring_all_reduce(8, 1 << 20), 4, model);
  EXPECT_NEAR(ring, 14 * (1e-5 + (4 << 20) / 8 * 1e-9), 1e-9);
  const double doubling = predict_seconds(
      make_table(Algorithm::kRecursiveDoubling, Kind::kAllReduce, 1000, 0, on_hosts(8, 8)), 4,
      model);
  EXPECT_NEAR(doubling, 3 * (1e-5 + 4000e-9), 1e-9);
  // A slow shared link between hosts: at least the bytes that must cross it.
  const CostModel slow{.inside = {0, 0}, .between = {0, 1e-8}, .overhead = 0, .fold = 0};
  const auto hosts = on_hosts(16, 4);
  const double least = 2 * 3. / 4 * (1 << 20) * 1e-8;
  const double predicted = predict_seconds(hierarchical_all_reduce(hosts, 1 << 20), 1, slow, hosts);
  EXPECT_GE(predicted, least * (1 - 1e-9));
  EXPECT_LE(predicted, 1.4 * least);  // the two halves of the exchange do not overlap perfectly
}

TEST(Choice, PrefersFewRoundsForFewBytesAndFewBytesForMany) {
  const Choice choose(on_hosts(16, 16), {});
  const auto small = choose(Kind::kAllReduce, 8);
  const auto large = choose(Kind::kAllReduce, 64 << 20);
  EXPECT_TRUE(small == Algorithm::kOneShot || small == Algorithm::kRecursiveDoubling)
      << name(small);
  EXPECT_TRUE(large == Algorithm::kRing || large == Algorithm::kDirect ||
              large == Algorithm::kHalvingDoubling)
      << name(large);
  EXPECT_TRUE(folds_once(choose(Kind::kAllReduce, 1 << 16, true)));
  const Choice far(on_hosts(16, 4), {.inside = {1e-6, 1e-11}, .between = {5e-5, 1e-9}});
  EXPECT_EQ(far(Kind::kAllReduce, 64 << 20), Algorithm::kHierarchical);
  EXPECT_NE(far.print().find("hierarchical"), std::string::npos);
}

TEST(Choice, ObeysOverridesAndRefusesUnknownWords) {
  const Choice choose(on_hosts(4, 4), {}, "all_reduce=double_binary_tree,broadcast=direct");
  for (const std::size_t bytes : {0, 4, 1 << 26}) {
    EXPECT_EQ(choose(Kind::kAllReduce, bytes), Algorithm::kDoubleBinaryTree);
    EXPECT_EQ(choose(Kind::kBroadcast, bytes), Algorithm::kDirect);
  }
  EXPECT_TRUE(folds_once(choose(Kind::kAllReduce, 4, true)));
  for (const char* wrong : {"all_reduce", "all_reduce=", "ring=all_reduce", "all_reduce=binomial",
                            "all_reduce=ring,,", "=ring"})
    EXPECT_THROW(Choice({0, 0}, {}, wrong), Error) << wrong;
}

}  // namespace
}  // namespace shoal::collective::tables_test
