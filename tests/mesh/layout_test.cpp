#include "shoal/mesh/layout.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::mesh {
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
  const Layout layout{
      {Placement::shard(1), Placement::replicate(), Placement::shard(0), Placement::shard(1)}};
  const std::vector<int> extent{2, 2, 3, 2};
  std::vector<int> owners(5 * 7, 0);
  for (int rank = 0; rank < 24; ++rank) {
    const Box box =
        local_box({5, 7}, layout, extent, {rank / 12, rank / 6 % 2, rank / 2 % 3, rank % 2});
    for (std::int64_t i = box.begin[0]; i < box.end[0]; ++i)
      for (std::int64_t j = box.begin[1]; j < box.end[1]; ++j) ++owners[i * 7 + j];
  }
  for (const int count : owners)
    EXPECT_EQ(count, 2);  // once for each coordinate of the replicated axis
}

TEST(Layout, BoxesOfARangeHoldItsElementsInOrder) {
  const Box box{{1, 2, 3}, {4, 4, 8}};  // 3 x 2 x 5
  for (std::int64_t begin = 0; begin <= box.count(); ++begin) {
    for (std::int64_t end = begin; end <= box.count(); ++end) {
      std::vector<std::int64_t> elements;
      const auto boxes = boxes_of(box, begin, end);
      EXPECT_LE(boxes.size(), 5u);
      for (const Box& part : boxes) {
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
  const Layout last{{Placement::shard(-1)}};
  EXPECT_EQ(local_box({5, 7}, last, {2}, {1}), (Box{{0, 4}, {5, 7}}));
  EXPECT_EQ(local_box({5, 7}, Layout{{Placement::shard(-2)}}, {2}, {0}), (Box{{0, 0}, {3, 7}}));
  for (const int dim : {-3, 2})
    EXPECT_THROW(local_box({5, 7}, Layout{{Placement::shard(dim)}}, {2}, {0}), Error) << dim;
}

// Partial and flat placements cut nothing here, and axes without a placement replicate.
TEST(Layout, OnlyShardsCut) {
  const Layout layout{{Placement::partial(), Placement::flat(2, 5), Placement::shard(0)}};
  EXPECT_EQ(local_box({4}, layout, {2, 2, 2, 3}, {1, 1, 1, 2}), (Box{{2}, {4}}));
  EXPECT_EQ(local_box({}, Layout(), {2}, {1}), Box());
  EXPECT_THROW(local_box({4}, layout, {2, 2}, {0, 0}), Error) << "more placements than axes";
  EXPECT_THROW(local_box({4}, Layout(), {2, 2}, {0}), Error);
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
  const Layout layout{
      {Placement::replicate(), Placement::shard(1), Placement::partial(), Placement::flat(4, 9)}};
  EXPECT_EQ(layout.text(), "(replicate, shard(1), partial(sum), flat(4, 9))");
  EXPECT_FALSE(layout.replicated());
  EXPECT_TRUE(Layout().replicated());
  EXPECT_THROW(local_box({3}, Layout{{Placement::shard(1)}}, {2}, {0}), Error);
}

}  // namespace
}  // namespace shoal::mesh
