#include "shoal/wire/stream_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace shoal::wire::stream_map_test {
namespace {

struct Entry {
  std::deque<int> values;
  int resets = 0;
  void reset() {
    values.clear();
    ++resets;
  }
};
using Map = StreamMap<Entry>;

std::vector<Stream> streams_of(Map& map) {
  std::vector<Stream> all;
  for (const auto& [stream, entry] : map) all.push_back(stream);
  return all;
}

TEST(StreamMap, AStreamHasTheSameEntryUntilItIsErased) {
  Map map;
  const auto [first, fresh] = map.try_emplace({1, 2});
  EXPECT_TRUE(fresh);
  first->second.values.push_back(7);
  const auto [again, fresh_again] = map.try_emplace({1, 2});
  EXPECT_FALSE(fresh_again);
  EXPECT_EQ(again->second.values, std::deque<int>{7});
  EXPECT_TRUE(map.contains({1, 2}));
  EXPECT_FALSE(map.contains({2, 1}));
  map.erase(again);
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.find({1, 2}), map.end());
}

TEST(StreamMap, AnErasedEntryIsTheNextOneAndLikeANewOne) {
  Map map;
  const auto first = map.try_emplace({1, 1}).first;
  first->second.values = {1, 2, 3};
  const Entry* const place = &first->second;
  map.erase(first);
  // Beside one that was there all the time, before and behind it.
  for (const std::uint64_t group : {3, 0, 9}) {
    const auto [next, fresh] = map.try_emplace({group, 0});
    EXPECT_TRUE(fresh);
    EXPECT_EQ(&next->second, place);
    EXPECT_TRUE(next->second.values.empty());
    EXPECT_EQ(next->first, (Stream{group, 0}));
    next->second.values.push_back(1);
    EXPECT_FALSE(map.try_emplace({group, 0}).second);
    map.erase(next);
  }
}

TEST(StreamMap, WhatIsThereIsFoundWhileOthersComeAndGo) {
  Map map;
  std::set<Stream> expected;
  std::mt19937 random(1);
  for (int i = 0; i < 4000; ++i) {
    const Stream stream{random() % 3, random() % 5};
    if (random() % 2 == 0) {
      const auto [entry, fresh] = map.try_emplace(stream);
      EXPECT_EQ(fresh, expected.insert(stream).second);
      EXPECT_EQ(entry->second.values.empty(), fresh);
      entry->second.values.push_back(i);
    } else if (const auto entry = map.find(stream); entry != map.end()) {
      map.erase(entry);
      EXPECT_EQ(expected.erase(stream), 1);
    } else {
      EXPECT_FALSE(expected.contains(stream));
    }
  }
  EXPECT_EQ(streams_of(map), std::vector<Stream>(expected.begin(), expected.end()));
}

TEST(StreamMap, OnlyAFewErasedEntriesAreKept) {
  Map map;
  for (std::uint64_t i = 0; i < 100; ++i) map.try_emplace({i, 0}).first->second.values.push_back(1);
  while (!map.empty()) map.erase(map.begin());
  int kept = 0;
  for (std::uint64_t i = 0; i < 100; ++i) kept += map.try_emplace({i, 0}).first->second.resets;
  EXPECT_GE(kept, 1);
  EXPECT_LE(kept, 4);
}

}  // namespace
}  // namespace shoal::wire::stream_map_test
