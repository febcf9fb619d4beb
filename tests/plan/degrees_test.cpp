// Ranks, their coordinates and groups, against an enumeration by nested loops.
#include "shoal/plan/degrees.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "shoal/base/error.h"
#include "tests/error_of.h"
#include "tests/error_text.h"

namespace shoal::plan::degrees_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Calls `body` for every product of degrees of at most `most` ranks.
template <typename Body>
void for_all_degrees(std::int64_t most, const Body& body) {
  for (std::int64_t pp = 1; pp <= most; ++pp) {
    for (std::int64_t r = 1; pp * r <= most; ++r) {
      for (std::int64_t s = 1; pp * r * s <= most; ++s) {
        for (std::int64_t c = 1; pp * r * s * c <= most; ++c) {
          for (std::int64_t t = 1; pp * r * s * c * t <= most; ++t) {
            for (std::int64_t e = 1; e <= r * s * c * t; ++e) {
              if (r * s * c * t % e != 0) continue;
              body({.pp = pp, .dp_replicate = r, .dp_shard = s, .cp = c, .tp = t, .ep = e});
            }
          }
        }
      }
    }
  }
}

/// The coordinates of every rank, in the order of ranks.
std::vector<std::map<Axis, std::int64_t>> enumerate(const Degrees& d) {
  std::vector<std::map<Axis, std::int64_t>> ranks;
  for (std::int64_t p = 0; p < d.pp; ++p) {
    std::int64_t in_stage = 0;
    for (std::int64_t r = 0; r < d.dp_replicate; ++r) {
      for (std::int64_t s = 0; s < d.dp_shard; ++s) {
        for (std::int64_t c = 0; c < d.cp; ++c) {
          for (std::int64_t t = 0; t < d.tp; ++t, ++in_stage) {
            ranks.push_back({{Axis::kPipeline, p},
                             {Axis::kReplicate, r},
                             {Axis::kShard, s},
                             {Axis::kContext, c},
                             {Axis::kTensor, t},
                             {Axis::kExpert, in_stage % d.ep},
                             {Axis::kExpertData, in_stage / d.ep}});
          }
        }
      }
    }
  }
  return ranks;
}

TEST(Degrees, CoordinatesAreThoseOfNestedLoops) {
  int checked = 0;
  for_all_degrees(64, [&](const Degrees& d) {
    const auto ranks = enumerate(d);
    ASSERT_EQ(d.ranks(), static_cast<std::int64_t>(ranks.size()));
    for (std::int64_t rank = 0; rank < d.ranks(); ++rank) {
      for (const Axis axis : kAllAxes)
        ASSERT_EQ(coordinate(d, axis, rank), ranks[rank].at(axis)) << rank << " " << name(axis);
    }
    ++checked;
  });
  EXPECT_GT(checked, 5000);
}

// Members of a group agree in every other coordinate of the stage and in the pipeline's.
TEST(Degrees, GroupsAreThoseThatDifferAlongTheirAxesOnly) {
  const std::vector<AxisSet> sets{
      Axis::kPipeline,
      Axis::kReplicate,
      Axis::kShard,
      Axis::kContext,
      Axis::kTensor,
      Axis::kShard | Axis::kContext,
      {Axis::kShard, Axis::kContext, Axis::kTensor},
      Axis::kReplicate | Axis::kTensor,
      kStageAxes,
      kStageAxes | Axis::kPipeline,
      AxisSet(),
  };
  const std::vector<Axis> dense{Axis::kPipeline, Axis::kReplicate, Axis::kShard, Axis::kContext,
                                Axis::kTensor};
  for_all_degrees(16, [&](const Degrees& d) {
    const auto ranks = enumerate(d);
    for (std::int64_t rank = 0; rank < d.ranks(); ++rank) {
      for (const AxisSet& set : sets) {
        std::vector<std::int64_t> expected;
        for (std::int64_t other = 0; other < d.ranks(); ++other) {
          const bool agrees = std::all_of(dense.begin(), dense.end(), [&](Axis axis) {
            return set.contains(axis) || ranks[other].at(axis) == ranks[rank].at(axis);
          });
          if (agrees) expected.push_back(other);
        }
        ASSERT_EQ(members(d, set, rank), expected) << set.text() << " of rank " << rank;
        ASSERT_EQ(static_cast<std::int64_t>(expected.size()), d.extent(set));
      }
      for (const Axis axis : {Axis::kExpert, Axis::kExpertData}) {
        const Axis fixed = axis == Axis::kExpert ? Axis::kExpertData : Axis::kExpert;
        std::vector<std::int64_t> expected;
        for (std::int64_t other = 0; other < d.ranks(); ++other) {
          if (ranks[other].at(fixed) == ranks[rank].at(fixed) &&
              ranks[other].at(Axis::kPipeline) == ranks[rank].at(Axis::kPipeline))
            expected.push_back(other);
        }
        ASSERT_EQ(members(d, axis, rank), expected) << name(axis) << " of rank " << rank;
      }
      ASSERT_EQ(members(d, Axis::kExpert | Axis::kExpertData, rank), members(d, kStageAxes, rank));
    }
  });
}

TEST(Degrees, ExpertsAndTheAxesTheyAreFoldedIntoDoNotMix) {
  EXPECT_THROW(members({}, Axis::kExpert | Axis::kTensor, 0), Error);
  EXPECT_THROW(members({}, kStageAxes | Axis::kExpertData, 0), Error);
}

TEST(Degrees, ShardOverTheRanksAskedFor) {
  Degrees d;
  d.cp = 2;
  d.shard_over(4, 8);
  EXPECT_EQ(d, (Degrees{.dp_replicate = 4, .dp_shard = 2, .cp = 2}));
  EXPECT_EQ(d.shard_ranks(), 4);
  EXPECT_EQ(d.dp(), 8);
  d.shard_over(16, 8);
  EXPECT_EQ(d.dp_replicate, 1);
  for (const std::int64_t ranks : {0, 3, 5, 32})
    EXPECT_THROW(d.shard_over(ranks, 8), Error) << ranks;
  Degrees plain;
  EXPECT_THAT(error_text([&] { plain.shard_over(3, 8); }),
              HasSubstr("shard = 3: must divide dp x cp = 8"));
  EXPECT_EQ(plain, Degrees()) << "a refused call changes nothing";
  // Three of six ranks would cut sequences in halves.
  EXPECT_THROW(d.shard_over(3, 3), Error);
  const Error error = error_of([&] { d.shard_over(12, 8); });
  EXPECT_THAT(error.message(), HasSubstr("divide dp x cp = 16 and be a multiple of cp = 2"));
  EXPECT_EQ(error.hint(), "use 4 or 8 times 2");
  EXPECT_EQ(error_of([&] { plain.shard_over(3, 8); }).hint(), "use 2 or 4");
}

TEST(Degrees, NearestDivisors) {
  EXPECT_EQ(nearest_divisors(12, 5), "4 or 6");
  EXPECT_EQ(nearest_divisors(12, 13), "12");
  EXPECT_EQ(nearest_divisors(7, 2), "1 or 7");
  EXPECT_EQ(nearest_divisors(1, 1), "1");
  EXPECT_EQ(nearest_divisors(12, 1), "2");
  EXPECT_EQ(nearest_divisors(12, 4), "3 or 6") << "others than the value itself";
  EXPECT_EQ(nearest_divisors(12, 12), "6");
}

TEST(AxisSets, AreSets) {
  const AxisSet both = Axis::kContext | Axis::kShard;
  EXPECT_EQ(both.text(), "dp_shard x cp");
  EXPECT_EQ(AxisSet().text(), "no axis");
  EXPECT_THAT(both.axes(), ElementsAre(Axis::kShard, Axis::kContext));
  EXPECT_TRUE(both.contains(Axis::kShard));
  EXPECT_FALSE(both.contains(Axis::kTensor));
  EXPECT_EQ(both.without(Axis::kShard), AxisSet(Axis::kContext));
  EXPECT_EQ(both & (Axis::kShard | Axis::kTensor), AxisSet(Axis::kShard));
  EXPECT_EQ(std::set<AxisSet>({both, Axis::kShard | Axis::kContext, Axis::kTensor}).size(), 2u);
}

TEST(RankTable, ShowsWhoIsWhere) {
  EXPECT_EQ(rank_table({.pp = 2, .dp_shard = 2, .tp = 2}, 4),
            "  rank    host            pp      dp_shard            tp\n"
            "     0       0             0             0             0\n"
            "     1       0             0             0             1\n"
            "     2       0             0             1             0\n"
            "     3       0             0             1             1\n"
            "     4       1             1             0             0\n"
            "     5       1             1             0             1\n"
            "     6       1             1             1             0\n"
            "     7       1             1             1             1\n");
  EXPECT_EQ(rank_table({.dp_shard = 2, .ep = 2}, 8),
            "  rank    host      dp_shard            ep\n"
            "     0       0             0             0\n"
            "     1       0             1             1\n");
  EXPECT_THAT(rank_table({.dp_shard = 4, .ep = 2}, 8),
              HasSubstr("     3       0             3             1             1\n"))
      << "the data ranks of an expert";
  EXPECT_EQ(rank_table({}, 1), "  rank    host\n     0       0\n");
}

}  // namespace
}  // namespace shoal::plan::degrees_test
