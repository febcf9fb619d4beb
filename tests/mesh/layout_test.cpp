#include "shoal/mesh/layout.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::mesh::layout_test {
namespace {

TEST(Layout, EvenPartsCoverAndEarlierAreNeverSmaller) {
  for (std::int64_t size = 0; size < 20; ++size) {
    for (std::int64_t parts = 1; parts < 9; ++parts) {
      std::int64_t at = 0;
      std::int64_t before = size;
      for (std::int64_t i = 0; i < parts; ++i) {
        const auto [begin, end] = even_part(size, parts, i);
        EXPECT_EQ(begin, at);
        EXPECT_LE(end - begin, before);
        EXPECT_LE(size / parts, end - begin);
        before = end - begin, at = end;
      }
      EXPECT_EQ(at, size);
    }
  }
  EXPECT_THROW(even_part(3, 2, 2), Error);
}

TEST(Layout, LocalBoxesOfAllCoordinatesTile) {
  using Cut = Placement::Cut;
  const plan::Degrees degrees{.pp = 2, .dp_replicate = 2, .cp = 3, .tp = 2};
  for (const Cut cut : {Cut::kEven, Cut::kZigzag}) {
    const Layout layout{{Axis::kPipeline, Placement::shard(1)},
                        {Axis::kContext, Placement::shard(0, cut)},
                        {Axis::kTensor, Placement::shard(1)}};
    std::vector<int> owners(5 * 7, 0);
    for (int rank = 0; rank < 24; ++rank) {
      const auto boxes = local_boxes({5, 7}, layout, degrees, rank);
      EXPECT_EQ(boxes.size(), cut == Cut::kZigzag ? 2u : 1u);
      for (const Box& box : boxes) {
        for (std::int64_t i = box.begin[0]; i < box.end[0]; ++i)
          for (std::int64_t j = box.begin[1]; j < box.end[1]; ++j) ++owners[i * 7 + j];
      }
    }
    for (const int count : owners)
      EXPECT_EQ(count, 2);  // once for each coordinate of the replicated axis
  }
}

// Two ranks: the first holds the first and the last quarter.
TEST(Layout, ZigzagPairsEarlyAndLateChunks) {
  const Layout layout{{Axis::kContext, Placement::shard(0, Placement::Cut::kZigzag)}};
  EXPECT_EQ(local_boxes({8}, layout, {.cp = 2}, 0), (std::vector<Box>{{{0}, {2}}, {{6}, {8}}}));
  EXPECT_EQ(local_boxes({8}, layout, {.cp = 2}, 1), (std::vector<Box>{{{2}, {4}}, {{4}, {6}}}));
}

// An axis that comes first divides the whole, a later one each part: 7 = 4 + 3 = (2 + 2) + (2 + 1).
TEST(Layout, TwoAxesMayCutOneDimension) {
  const Layout layout{{Axis::kTensor, Placement::shard(0)}, {Axis::kContext, Placement::shard(0)}};
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected{{0, 2}, {2, 4}, {4, 6}, {6, 7}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(local_boxes({7}, layout, {.cp = 2, .tp = 2}, rank),
              (std::vector<Box>{{{expected[rank].first}, {expected[rank].second}}}));
  }
}

TEST(Layout, BoxesOfARangeHoldItsElementsInOrder) {
  const Box box{{1, 2, 3}, {4, 4, 8}};  // 3 x 2 x 5
  for (std::int64_t begin = 0; begin <= box.count(); ++begin) {
    for (std::int64_t end = begin; end <= box.count(); ++end) {
      std::vector<std::int64_t> elements;
      const auto boxes = boxes_of(box, begin, end);
      EXPECT_LE(boxes.size(), 5u);
      for (const Box& part : boxes) {
        EXPECT_GT(part.count(), 0) << begin << " to " << end;
        for (std::int64_t i = part.begin[0]; i < part.end[0]; ++i) {
          for (std::int64_t j = part.begin[1]; j < part.end[1]; ++j) {
            for (std::int64_t k = part.begin[2]; k < part.end[2]; ++k)
              elements.push_back(((i - 1) * 2 + j - 2) * 5 + k - 3);
          }
        }
      }
      ASSERT_EQ(elements.size(), end - begin);
      for (std::int64_t i = begin; i < end; ++i) EXPECT_EQ(elements[i - begin], i);
    }
  }
}

TEST(Layout, DimensionsMayBeCountedFromTheEnd) {
  const auto cut = [](int dim, int rank) {
    return local_boxes({5, 7}, {{Axis::kTensor, Placement::shard(dim)}}, {.tp = 2}, rank).at(0);
  };
  EXPECT_EQ(cut(-1, 1), (Box{{0, 4}, {5, 7}}));
  EXPECT_EQ(cut(-2, 0), (Box{{0, 0}, {3, 7}}));
  for (const int dim : {-3, 2}) EXPECT_THROW(cut(dim, 0), Error) << dim;
}

// Partial placements and flat ranges cut no dimension, and axes without a placement replicate.
TEST(Layout, OnlyShardsCut) {
  Layout layout{{Axis::kReplicate, Placement::partial()}, {Axis::kTensor, Placement::shard(0)}};
  layout.set_flat(Axis::kShard);
  EXPECT_EQ(local_boxes({4}, layout, {.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 7),
            (std::vector<Box>{{{2}, {4}}}));
  EXPECT_EQ(local_boxes({}, Layout(), {.tp = 2}, 1), std::vector<Box>{Box()});
}

TEST(Layout, DualsAreThoseOfTheGradient) {
  EXPECT_EQ(dual(Placement::replicate()), Placement::partial());
  EXPECT_EQ(dual(Placement::partial()), Placement::replicate());
  for (const auto cut : {Placement::Cut::kEven, Placement::Cut::kZigzag})
    EXPECT_EQ(dual(Placement::shard(1, cut)), Placement::shard(1, cut));
  EXPECT_THROW(dual(Placement::partial(Reduction::kMax)), Error);
}

TEST(Layout, AScalarIsOneElement) {
  EXPECT_EQ(Box().count(), 1);
  EXPECT_EQ((Box{{0, 3}, {2, 3}}.count()), 0);
  EXPECT_EQ(boxes_of(Box(), 0, 1), std::vector<Box>{Box()});
  EXPECT_TRUE(boxes_of(Box(), 0, 0).empty());
  const Box box{{0}, {4}};
  EXPECT_THROW(boxes_of(box, -1, 2), Error);
  EXPECT_THROW(boxes_of(box, 0, 5), Error);
  EXPECT_THROW(boxes_of(box, 3, 2), Error);
}

TEST(Layout, PartsThatDoNotExistAreRefused) {
  EXPECT_THROW(even_part(-1, 2, 0), Error);
  EXPECT_THROW(even_part(3, 0, 0), Error);
  EXPECT_THROW(even_part(3, 2, -1), Error);
  EXPECT_EQ(even_part(0, 3, 2), (std::pair<std::int64_t, std::int64_t>{0, 0}));
}

TEST(Layout, SaysWhatItIs) {
  Layout layout{{Axis::kTensor, Placement::shard(1)},
                {Axis::kContext, Placement::shard(0, Placement::Cut::kZigzag)},
                {Axis::kReplicate, Placement::partial()}};
  layout.set_flat(Axis::kShard | Axis::kContext);
  EXPECT_EQ(layout.text(),
            "dp_replicate: partial(sum), cp: shard(0, zigzag), tp: shard(1), flat over dp_shard x "
            "cp");
  EXPECT_EQ(Layout().text(), "replicated");
  EXPECT_EQ(Layout().set_flat(Axis::kShard).text(), "flat over dp_shard");
  EXPECT_NE(layout, Layout());
}

}  // namespace
}  // namespace shoal::mesh::layout_test
