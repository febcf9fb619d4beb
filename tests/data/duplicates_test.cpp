#include "shoal/data/duplicates.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "shoal/data/file.h"
#include "shoal/data/headers.h"

namespace shoal::data::duplicates_test {
namespace {

std::vector<std::string> words(int seed, int count) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.push_back(fmt::format("word{}", random() % 500));
  return result;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) text += words[i] + (i % 9 == 8 ? "\n" : " ");
  return text;
}

/// The Jaccard index of the sets of eight consecutive words, by the definition.
double jaccard(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto shingles = [](const std::vector<std::string>& words) {
    std::set<std::vector<std::string>> all;
    for (std::size_t i = 0; i + 8 <= words.size(); ++i)
      all.insert({words.begin() + static_cast<long>(i), words.begin() + static_cast<long>(i) + 8});
    return all;
  };
  const auto left = shingles(a);
  const auto right = shingles(b);
  std::size_t both = 0;
  for (const auto& shingle : left) both += right.count(shingle);
  return static_cast<double>(both) / static_cast<double>(left.size() + right.size() - both);
}

std::vector<std::string> names(const std::vector<Document>& documents) {
  std::vector<std::string> result;
  for (const Document& document : documents) result.push_back(document.name);
  return result;
}

// 256 hashes estimate an index J with a standard deviation of sqrt(J (1 - J) / 256) <= 0.031; four
// of them.
TEST(Duplicates, SimilarityIsTheJaccardIndex) {
  const auto a = words(1, 3000);
  for (const int changed : {0, 300, 1000, 2000, 3000}) {
    auto b = words(2, 3000);
    std::copy(a.begin() + changed, a.end(), b.begin() + changed);
    EXPECT_NEAR(similarity(sketch(joined(a)), sketch(joined(b))), jaccard(a, b), 0.125)
        << changed << " words of 3000 differ";
  }
  const auto few = words(3, 60);
  const auto fewer = std::vector<std::string>(few.begin(), few.begin() + 40);
  EXPECT_DOUBLE_EQ(similarity(sketch(joined(few)), sketch(joined(fewer))), jaccard(few, fewer))
      << "exact where all hashes fit";
}

TEST(Duplicates, NearCopiesGoAndOthersStay) {
  auto near = words(1, 2000);
  auto far = words(1, 2000);
  for (int i = 0; i < 100; ++i) near[static_cast<std::size_t>(i)] = "changed" + std::to_string(i);
  for (int i = 0; i < 1000; ++i) far[static_cast<std::size_t>(i)] = "changed" + std::to_string(i);
  ASSERT_GT(jaccard(words(1, 2000), near), kNearDuplicate + 0.15);
  ASSERT_LT(jaccard(words(1, 2000), far), kNearDuplicate - 0.15);
  const std::vector<Document> documents = {{"first", joined(words(1, 2000))},
                                           {"other", joined(words(2, 2000))},
                                           {"copy", joined(words(1, 2000))},
                                           {"near", joined(near)},
                                           {"half", joined(far)},
                                           {"again", joined(words(2, 2000))}};
  for (const int threads : {1, 3}) {
    auto kept = documents;
    const Removed removed = remove_near_duplicates(kept, threads);
    EXPECT_EQ(names(kept), (std::vector<std::string>{"first", "other", "half"}));
    EXPECT_EQ(removed.count, 3u);
    EXPECT_EQ(removed.bytes,
              documents[2].text.size() + documents[3].text.size() + documents[5].text.size());
  }
}

TEST(Duplicates, APassageThatStoodBeforeIsCut) {
  const std::string licence = "// " + joined(words(5, 30)) + "\n\n";
  const std::string indented = "    // " + joined(words(5, 30)) + "\n\n";
  const std::string code = joined(words(6, 40)) + "\n\n";
  const std::string brief = "int x = 0;\n\n";
  std::vector<Document> documents = {
      {"a", licence + code + brief}, {"b", brief + indented + brief}, {"c", code + licence}};
  const Removed removed = remove_repeated_passages(documents);
  EXPECT_EQ(documents[0].text, licence + code + brief);
  EXPECT_EQ(documents[1].text, brief + brief)
      << "indentation does not hide a copy; what is short stays";
  EXPECT_EQ(documents[2].text, "");
  EXPECT_EQ(removed.count, 3u);
  EXPECT_EQ(removed.bytes, indented.size() + code.size() + licence.size());
}

TEST(Headers, TheGuardOfThePackagingIsCut) {
  const std::string open = "#if !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)\n";
  const std::string close =
      "#else\n#error \"This file should not be included when either TORCH_STABLE_ONLY or "
      "TORCH_TARGET_VERSION is defined.\"\n"
      "#endif  // !defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)\n";
  EXPECT_EQ(without_packaging_guard(open + "int x;\n" + close), "int x;\n");
  EXPECT_EQ(without_packaging_guard(open + close), "");
  for (const std::string& other :
       {open + "int x;\n", "int x;\n" + close, std::string("int x;\n"), std::string()})
    EXPECT_EQ(without_packaging_guard(other), other);
}

// Losses on this corpus are compared between machines: what is left of it must be the same text
// everywhere.
TEST(Headers, WhatIsLeftOfTheCorpusIsPinned) {
  if (default_header_folder().empty())
    GTEST_SKIP() << "built without Torch, and so without its headers";
  const auto pinned = parse_pinned_list(pinned_header_list());
  auto documents = read_documents(find_pinned(default_header_folder(), pinned), 2);
  check_pinned(documents, pinned);
  for (Document& document : documents)
    document.text = std::string(without_packaging_guard(document.text));
  remove_near_duplicates(documents, 2);
  remove_repeated_passages(documents);
  std::string all;
  for (const Document& document : documents) all += document.name + "\n" + document.text;
  EXPECT_EQ(
      fmt::format("{} files, {} bytes, CRC-32 {:08x}", documents.size(), all.size(), crc32(all)),
      "2261 files, 16688600 bytes, CRC-32 e0d2c298");
}

}  // namespace
}  // namespace shoal::data::duplicates_test
