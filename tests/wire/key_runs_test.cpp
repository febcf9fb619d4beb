#include "shoal/wire/key_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace shoal::wire::key_runs_test {
namespace {

std::size_t keys_of(const std::vector<KeyRun>& runs) {
  std::size_t keys = 0;
  for (const KeyRun& run : runs) keys += run.keys();
  return keys;
}

using testing::ElementsAre;

std::vector<std::string> keys_in(const std::vector<KeyRun>& runs) {
  std::vector<std::string> keys;
  for (const KeyRun& run : runs)
    for (std::size_t place = 0; place < run.keys(); ++place) keys.push_back(run.key(place));
  return keys;
}

TEST(KeyRuns, OfAllRanksAreOne) {
  std::vector<std::string> keys;
  for (int rank = 3; rank < 5000; ++rank) keys.push_back("peers/world/" + std::to_string(rank));
  const auto runs = runs_of(keys);
  EXPECT_THAT(runs, ElementsAre(KeyRun{"peers/world/", 3, 4997}));
  EXPECT_EQ(keys_of(runs), 4997u);
  EXPECT_EQ(keys_in(runs), keys);
}

TEST(KeyRuns, AreTheSameKeysInTheSameOrderWhateverTheyAre) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {},
           {""},
           {"a"},
           {"a", "a"},
           {"a1", "a2", "b3", "b4", "a5"},
           {"7", "8", "x"},
           {"a1", "a1", "a0"},
           {"a", "a0", "a1"},
           {"x007", "x008", "x010"},
           {"x00", "x01"},
           {"a9", "a10", "a011"},
           {"a4294967294", "a4294967295", "a4294967296", "a0"},
           {"a99999999999999999999"},
           {std::string("a\0001", 3), std::string("a\0002", 3)}}) {
    const auto runs = runs_of(keys);
    EXPECT_EQ(keys_in(runs), keys);
    EXPECT_EQ(keys_of(runs), keys.size());
    EXPECT_EQ(decode_runs(encode(runs), 100, 100), runs);
  }
}

TEST(KeyRuns, BytesThatMakeNoSenseAreRefused) {
  const std::string bytes = encode({{"peers/", 5, 10}, {"x", 0, 0}});
  EXPECT_TRUE(decode_runs(bytes, 6, 11));
  EXPECT_FALSE(decode_runs(bytes, 5, 11)) << "a prefix is too long";
  EXPECT_FALSE(decode_runs(bytes, 6, 10)) << "too many keys";
  EXPECT_TRUE(decode_runs("", 6, 0));
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    if (size == bytes.size() - 13) continue;  // the first run is whole
    EXPECT_FALSE(decode_runs(bytes.substr(0, size), 6, 11)) << size;
  }
  EXPECT_FALSE(decode_runs(encode({{"a", ~std::uint32_t{0}, 2}}), 6, 11)) << "no such numbers";
  EXPECT_FALSE(decode_runs(encode({{"a", 0, ~std::uint32_t{0}}}), 6, 11));
}

}  // namespace
}  // namespace shoal::wire::key_runs_test
