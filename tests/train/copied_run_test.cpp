#include "shoal/train/copied_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "shoal/base/philox.h"

namespace shoal::train::copied_run_test {
namespace {

std::int64_t longest_plain(const std::vector<std::uint32_t>& a,
                           const std::vector<std::uint32_t>& b) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      std::int64_t length = 0;
      while (i + length < a.size() && k + length < b.size() && a[i + length] == b[k + length])
        ++length;
      longest = std::max(longest, length);
    }
  }
  return longest;
}

std::vector<std::uint32_t> random(const char* name, int trial, int count, int symbols) {
  const Key key = Key(9).child(name).child(static_cast<std::uint64_t>(trial));
  std::vector<std::uint32_t> values(count);
  for (int i = 0; i < count; ++i) values[i] = static_cast<std::uint32_t>(key.below(i, symbols));
  return values;
}

TEST(CopiedRun, EqualsThePlainSearch) {
  for (int trial = 0; trial < 200; ++trial) {
    const int symbols = 2 + trial % 3;
    const auto sample = random("sample", trial, 1 + trial % 40, symbols);
    const auto text = random("text", trial, 150, symbols);
    CopiedRun run(sample);
    run.feed(std::span(text).first(70));
    run.feed(std::span(text).subspan(70));
    const auto length = longest_plain(sample, text);
    ASSERT_EQ(run.length(), length) << "trial " << trial;
    // What it points at is really there.
    const auto begin = sample.begin() + (run.end() - run.length());
    EXPECT_NE(std::search(text.begin(), text.end(), begin, begin + run.length()), text.end());
  }
}

TEST(CopiedRun, NothingShared) {
  CopiedRun run(std::vector<std::uint32_t>{1, 2, 3});
  run.feed(std::vector<std::uint32_t>{4, 5});
  EXPECT_EQ(run.length(), 0);
}

}  // namespace
}  // namespace shoal::train::copied_run_test
