#include "shoal/checkpoint/format/box.h"

#include <gtest/gtest.h>

#include <random>

namespace shoal::checkpoint::format::box_test {
namespace {

/// Row-major global indices of the elements of a box, by counting coordinates up one by one.
std::vector<std::int64_t> indices(const Box& box, const Shape& shape) {
  std::vector<std::int64_t> all;
  Shape at = box.begin;
  for (std::int64_t i = 0; i < box.count(); ++i) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    all.push_back(index);
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0 && ++at[d] == box.end[d]; --d)
      at[d] = box.begin[d];
  }
  return all;
}

Box random_box(const Shape& shape, std::mt19937& random) {
  Box box = whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::int64_t a = random() % (shape[d] + 1);
    std::int64_t b = random() % (shape[d] + 1);
    if (random() % 3 > 0) box.begin[d] = std::min(a, b), box.end[d] = std::max(a, b);
  }
  return box;
}

TEST(Box, RunsAreTheIndicesOfTheBoxInOrder) {
  std::mt19937 random(1);
  for (const Shape& shape :
       {Shape{}, Shape{7}, Shape{3, 5}, Shape{4, 1, 6}, Shape{2, 3, 4, 5}, Shape{5, 0}}) {
    for (int round = 0; round < 50; ++round) {
      const Box box = random_box(shape, random);
      const auto expected = indices(box, shape);
      const std::int64_t begin = expected.empty() ? 0 : random() % expected.size();
      const std::int64_t end = begin + (expected.size() - begin) * (round % 3) / 2;
      std::vector<std::int64_t> found;
      std::int64_t next = begin;
      for_each_run(box, shape, begin, end, [&](const format::Run& run) {
        EXPECT_EQ(run.local, next);
        next += run.count;
        for (std::int64_t i = 0; i < run.count; ++i) found.push_back(run.global + i);
      });
      EXPECT_EQ(found, std::vector(expected.begin() + begin, expected.begin() + end))
          << text(box) << " of " << text(shape);
    }
  }
}

TEST(Box, ContiguousBoxesAreOneRun) {
  int runs = 0;
  for_each_run({{2, 0, 0}, {5, 4, 6}}, {7, 4, 6}, 0, 3 * 4 * 6,
               [&](const format::Run&) { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(Box, IntersectionHoldsWhatBothHold) {
  std::mt19937 random(2);
  const Shape shape{4, 5, 3};
  for (int round = 0; round < 200; ++round) {
    const Box a = random_box(shape, random);
    const Box b = random_box(shape, random);
    const Box both = intersect(a, b);
    const auto in_a = indices(a, shape);
    const auto in_b = indices(b, shape);
    std::vector<std::int64_t> expected;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                          std::back_inserter(expected));
    EXPECT_EQ(both.count(), expected.size());
    if (!expected.empty()) {
      EXPECT_EQ(indices(both, shape), expected);
    }
  }
}

TEST(Box, FitsOnlyInsideTheShape) {
  EXPECT_TRUE(fits({{0, 1}, {2, 1}}, {2, 3}));
  EXPECT_TRUE(fits({}, {}));
  EXPECT_FALSE(fits({{0}, {2}}, {2, 3}));
  EXPECT_FALSE(fits({{0, 0}, {3, 3}}, {2, 3}));
  EXPECT_FALSE(fits({{-1, 0}, {1, 3}}, {2, 3}));
  EXPECT_FALSE(fits({{1, 0}, {0, 3}}, {2, 3}));
}

}  // namespace
}  // namespace shoal::checkpoint::format::box_test
