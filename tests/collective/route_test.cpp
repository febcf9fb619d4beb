// What ranks make of a link matrix: where it is of use, the order of a ring, the algorithm, the
// predicted time, and the bits of a sum.
#include "shoal/collective/route/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/ring.h"
#include "shoal/collective/route/tour.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/tcp_ranks.h"
#include "tests/support/check_table.h"

namespace shoal::collective::route_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr LinkSpeed kFast{.kbit_s = 20'000, .us = 10'000};
constexpr LinkSpeed kSlow{.kbit_s = 2'000, .us = 10'000};

/// Fast links, but for the one between `a` and `b` in both directions.
LinkMatrix one_slow(int ranks, int a, int b) {
  LinkMatrix links(ranks, kFast);
  links.set(a, b, kSlow);
  links.set(b, a, kSlow);
  return links;
}

TEST(LinkMatrix, SaysWhatWasSetAndRefusesWhatIsNotThere) {
  LinkMatrix links(3, kFast);
  links.set(0, 2, {.kbit_s = 7, .us = 3});
  EXPECT_EQ(links.at(0, 2), (LinkSpeed{7, 3}));
  EXPECT_EQ(links.at(2, 0), kFast);
  EXPECT_EQ(links.slowest_kbit(), 7u);
  for (const auto& [from, to] : {std::pair{0, 0}, {-1, 0}, {0, 3}})
    EXPECT_THROW(links.at(from, to), Error) << from << ' ' << to;
  EXPECT_THROW(links.set(0, 1, {}), Error) << "a link that carries nothing";
  EXPECT_THROW(LinkMatrix(0, kFast), Error);
  EXPECT_EQ(LinkMatrix(1, kFast).slowest_kbit(), std::numeric_limits<std::uint32_t>::max());
}

TEST(LinkMatrix, AMessageTakesItsBitsAndItsWay) {
  LinkMatrix links(2, {.kbit_s = 8'000, .us = 250});
  // A kilobyte a millisecond.
  EXPECT_EQ(links.message_ns(0, 1, 3'000), 3'000'000 + 250'000);
  links.set(0, 1, {.kbit_s = 3, .us = 0});
  EXPECT_EQ(links.message_ns(0, 1, 1), 2'666'667) << "rounded up";
}

TEST(LinkMatrix, OfSomeRanksIsInTheirOrder) {
  LinkMatrix links(4, kFast);
  links.set(3, 1, kSlow);
  const LinkMatrix of = links.of(std::vector<int>{1, 0, 3});
  EXPECT_EQ(of.ranks(), 3);
  EXPECT_EQ(of.at(2, 0), kSlow);
  EXPECT_EQ(of.at(0, 2), kFast);
  EXPECT_THROW(links.of(std::vector<int>{1, 4}), Error);
}

TEST(LinkMatrix, IsPrintedInMegabits) {
  EXPECT_EQ(one_slow(2, 0, 1).text(), "   0:        -      2.0\n   1:      2.0        -\n");
}

TEST(Route, ThereIsNoneOverEvenLinks) {
  EXPECT_FALSE(route_over(LinkMatrix(6, kFast)));
  LinkMatrix nearly(6, kFast);
  nearly.set(2, 4, {.kbit_s = 12'000, .us = 10'000});
  EXPECT_FALSE(route_over(nearly)) << "less than twice as slow";
  EXPECT_FALSE(route_over(one_slow(2, 0, 1))) << "two ranks have no choice";
}

TEST(Route, GoesRoundTheSlowLinkWhereverItIs) {
  for (int a = 0; a < 6; ++a) {
    for (int b = 0; b < a; ++b) {
      const auto route = route_over(one_slow(6, a, b));
      ASSERT_TRUE(route);
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(route->links.at(route->order[i], route->order[(i + 1) % 6]), kFast)
            << a << ' ' << b;
      }
    }
  }
  // The first such order, in which as many ranks as can be follow their number.
  EXPECT_THAT(route_over(one_slow(6, 0, 1))->order, ElementsAre(0, 2, 1, 3, 4, 5));
  EXPECT_THAT(route_over(one_slow(6, 0, 3))->order, ElementsAre(0, 1, 2, 3, 4, 5));
}

// Another measurement of the same links differs a little everywhere.
TEST(Route, IsTheSameWhateverTheNoiseOfTheMeasurement) {
  std::mt19937 random(3);
  std::uniform_int_distribution<std::uint32_t> noise(0, 1'500);
  for (int round = 0; round < 50; ++round) {
    LinkMatrix links = one_slow(6, 0, 1);
    for (int from = 0; from < 6; ++from) {
      for (int to = 0; to < 6; ++to) {
        if (from == to) continue;
        const LinkSpeed exact = links.at(from, to);
        links.set(from, to, {exact.kbit_s - noise(random) * exact.kbit_s / 20'000, exact.us});
      }
    }
    const auto route = route_over(links);
    ASSERT_TRUE(route);
    EXPECT_THAT(route->order, ElementsAre(0, 2, 1, 3, 4, 5)) << links.text();
  }
}

TEST(Route, SaysWhichWayItGoes) {
  EXPECT_EQ(text_of(*route_over(one_slow(4, 0, 1))),
            "a ring goes 0 2 1 3, whose slowest link carries 20.0 Mbit/s (in the order of ranks: "
            "2.0)");
}

TEST(Route, OfARingTakesWhatItsSlowestLinkTakes) {
  const auto route = route_over(one_slow(6, 0, 1));
  ASSERT_TRUE(route);
  // Ten rounds of 600 kB: 0.24 s on the link and 0.01 s on the way.
  EXPECT_NEAR(predict_ring_seconds(*route, 3'600'000), 10 * 0.25, 1e-9);
  Route natural = *route;
  natural.order = {0, 1, 2, 3, 4, 5};
  // The slow link is never idle, and each time takes 2.4 s.
  EXPECT_NEAR(predict_ring_seconds(natural, 3'600'000), 10 * 2.4, 0.3);
}

TEST(Route, ChoosesTheRingWhereOthersUseTheSlowLink) {
  const std::vector<int> hosts{0, 1, 2, 3, 4, 5};
  const auto route = std::make_shared<const Route>(*route_over(one_slow(6, 0, 1)));
  const Choice choice(hosts, {}, "", route);
  EXPECT_EQ(choice(Kind::kAllReduce, 16 << 20), Algorithm::kRing);
  EXPECT_EQ(choice(Kind::kReduceScatter, 16 << 20), Algorithm::kRing);
  EXPECT_NE(choice(Kind::kAllReduce, 8), Algorithm::kRing) << "ten times 10 ms";
  EXPECT_TRUE(folds_once(choice(Kind::kAllReduce, 16 << 20, true)));
  EXPECT_THROW(Choice({0, 1}, {}, "", route), Error) << "of other ranks";
}

TEST(Route, AnyOrderMakesARingThatIsRight) {
  std::mt19937 random(5);
  for (const int ranks : {1, 2, 3, 6, 17}) {
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 4; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t count : {0, 1, 7, 67}) {
        const auto wrong = [&](const StepTable& table, Kind kind) {
          return check_table(table, kind, count).problem;
        };
        EXPECT_EQ(wrong(ring_all_reduce(ranks, count, order), Kind::kAllReduce), "");
        EXPECT_EQ(wrong(ring_reduce_scatter(ranks, count, order), Kind::kReduceScatter), "");
        EXPECT_EQ(wrong(ring_all_gather(ranks, count, order), Kind::kAllGather), "");
      }
    }
    for (int place = 0; place < ranks; ++place) {
      const auto rank = order[static_cast<std::size_t>(place)];
      for (const Step& step : ring_all_reduce_column(ranks, 100, rank, order)) {
        const int from_or_to = step.action == Action::kSend ? place + 1 : place + ranks - 1;
        EXPECT_EQ(step.peer, order[static_cast<std::size_t>(from_or_to % ranks)]);
      }
    }
  }
  EXPECT_THROW(ring_all_reduce(3, 5, std::vector<int>{0, 1}), Error);
  EXPECT_THROW(ring_all_reduce(3, 5, std::vector<int>{0, 1, 1}), Error);
}

TEST(Route, GroupsAndTheirPartsGoByTheirOwnLinks) {
  TcpCommunicator::Options options;
  options.links = std::make_shared<const LinkMatrix>(one_slow(5, 0, 1));
  options.hosts = {0, 1, 2, 3, 4};
  expect_none(on_tcp(
      5,
      [](TcpCommunicator& c) {
        EXPECT_THAT(c.choice().order(), ElementsAre(0, 2, 1, 3, 4));
        for (const Kind kind : kKinds)
          EXPECT_EQ(check<std::int32_t>(c, kind, ElementType::kI32, 40'003, 2), "");
        // Ranks 4, 1, 0 have the slow link between their second and third one, and no way round it.
        const auto part = c.split(c.rank() == 0 || c.rank() == 1 || c.rank() == 4, -c.rank());
        const auto& of_part = dynamic_cast<TcpCommunicator&>(*part).choice();
        EXPECT_EQ(of_part.route(), nullptr);
        EXPECT_EQ(check<std::int32_t>(*part, Kind::kAllReduce, ElementType::kI32, 4'001, 0), "");
      },
      options));
}

// The order of a route decides in which order a sum is taken. All ranks have the same bits, those
// of a plain loop in that order, whatever came when; another route has others.
TEST(Route, DecidesTheBitsOfASumWhichAreTheSameOnAllRanks) {
  constexpr int kRanks = 5;
  constexpr std::size_t kCount = 50'000;
  const auto value = [](int rank, std::size_t i) {
    return 1.0F / static_cast<float>(1 + (i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
  };
  const auto sum_by_ring = [&](const LinkMatrix& links) {
    TcpCommunicator::Options options;
    options.links = std::make_shared<const LinkMatrix>(links);
    options.hosts = {0, 1, 2, 3, 4};
    options.algorithms = "all_reduce=ring";
    std::vector<std::vector<float>> x(kRanks, std::vector<float>(kCount));
    expect_none(on_tcp(
        kRanks,
        [&](TcpCommunicator& c) {
          auto& own = x[static_cast<std::size_t>(c.rank())];
          for (std::size_t i = 0; i < kCount; ++i) own[i] = value(c.rank(), i);
          c.run({.kind = Kind::kAllReduce,
                 .type = ElementType::kF32,
                 .buffer = {own.data(), own.data(), kCount}},
                soon());
        },
        options));
    for (const auto& other : x) EXPECT_EQ(other, x[0]);
    return x[0];
  };
  const auto plain_sum = [&](const std::vector<int>& order) {
    std::vector<float> sum(kCount);
    for (std::size_t place = 0; place < order.size(); ++place) {
      // Part r begins at rank r and passes all ranks of the ring.
      const Range part = part_of(kCount, kRanks, order[place]);
      for (std::size_t i = part.begin; i < part.end; ++i) {
        sum[i] = value(order[place], i);
        for (std::size_t next = 1; next < order.size(); ++next)
          sum[i] += value(order[(place + next) % order.size()], i);
      }
    }
    return sum;
  };
  const auto around = sum_by_ring(one_slow(kRanks, 0, 1));
  EXPECT_EQ(around, plain_sum({0, 2, 1, 3, 4}));
  EXPECT_EQ(sum_by_ring(one_slow(kRanks, 0, 1)), around) << "the same matrix, the same bits";
  const auto by_rank = sum_by_ring(LinkMatrix(kRanks, kFast));
  EXPECT_EQ(by_rank, plain_sum({0, 1, 2, 3, 4}));
  EXPECT_NE(by_rank, around) << "these numbers do not show the order";
}

}  // namespace
}  // namespace shoal::collective::route_test
