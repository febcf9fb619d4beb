#include "shoal/base/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace shoal::nearest_test {
namespace {

/// The distance by its definition: each word loses its first letter, both do, or their first two
/// letters are swapped.
int plain_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return static_cast<int>(std::max(a.size(), b.size()));
  int least = std::min({plain_distance(a.substr(1), b) + 1, plain_distance(a, b.substr(1)) + 1,
                        plain_distance(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1)});
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0])
    least = std::min(least, plain_distance(a.substr(2), b.substr(2)) + 1);
  return least;
}

/// All words of at most four of three letters.
std::vector<std::string> short_words() {
  std::vector<std::string> words{""};
  for (std::size_t i = 0; words[i].size() < 4; ++i)
    for (const char letter : {'a', 'b', 'c'}) words.push_back(words[i] + letter);
  return words;
}

TEST(EditDistance, EqualsThePlainOne) {
  const auto words = short_words();
  ASSERT_EQ(words.size(), 1u + 3 + 9 + 27 + 81);
  for (const std::string& a : words) {
    for (const std::string& b : words)
      ASSERT_EQ(edit_distance(a, b), plain_distance(a, b)) << a << " and " << b;
  }
}

std::string nearest_of(const char* word, const std::vector<std::string>& candidates) {
  return nearest(word, candidates);
}

TEST(Nearest, IsTheOneOfFewestChanges) {
  EXPECT_EQ(nearest_of("mirco_batch", {"batch", "micro_batch", "macro_batch"}), "micro_batch");
  EXPECT_EQ(nearest_of("rat", {"cat", "bat"}), "cat") << "the first among equals";
  EXPECT_EQ(nearest_of("rat", {}), "");
}

// Swapped letters are the commoner mistake, but count for no more than as many other changes.
TEST(Nearest, OfTheSameLettersIsLikelierAmongEquals) {
  EXPECT_EQ(nearest_of("nrom", {"from", "norm"}), "norm");
  EXPECT_EQ(nearest_of("nrom", {"norm", "from"}), "norm");
  EXPECT_EQ(nearest_of("abcde", {"abcdx", "abdec"}), "abcdx");
  EXPECT_EQ(nearest_of("abcdef", {"badcfe"}), "") << "three changes of six letters";
}

// Two letters may be wrong, or a third of them; and one must be right.
TEST(Nearest, IsNoGuess) {
  EXPECT_EQ(nearest_of("abc", {"axy"}), "axy");
  EXPECT_EQ(nearest_of("abcde", {"abxyz"}), "");
  EXPECT_EQ(nearest_of("abcdefghi", {"abcdefxyz"}), "abcdefxyz");
  EXPECT_EQ(nearest_of("abcdefghi", {"abcdewxyz"}), "");
  EXPECT_EQ(nearest_of("ab", {"xy"}), "");
  EXPECT_EQ(nearest_of("ab", {"x"}), "");
}

}  // namespace
}  // namespace shoal::nearest_test
