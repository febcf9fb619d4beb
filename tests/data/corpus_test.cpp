#include "shoal/data/corpus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "shoal/base/error.h"
#include "shoal/data/file.h"
#include "shoal/data/headers.h"
#include "tests/data/folder.h"
#include "tests/error_text.h"

namespace shoal::data::corpus_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names(const std::vector<InputFile>& files) {
  std::vector<std::string> result;
  for (const InputFile& file : files) result.push_back(file.name);
  return result;
}

TEST(Corpus, FindsFilesByNameAndPassesOverHiddenOnes) {
  const Folder folder;
  folder.write("in/b.h", "123");
  folder.write("in/a.txt", "");
  folder.write("in/deep/er/c.h", "1");
  folder.write("in/.hidden.h", "1");
  folder.write("in/.git/d.h", "1");
  folder.write("alone.md", "12");
  const auto all = find_files({folder / "in", folder / "alone.md"}, {});
  EXPECT_EQ(names(all),
            (std::vector<std::string>{"alone.md", "in/a.txt", "in/b.h", "in/deep/er/c.h"}));
  EXPECT_EQ(all[0].bytes, 2u);
  EXPECT_EQ(all[2].bytes, 3u);
  EXPECT_EQ(fs::canonical(all[3].path), fs::canonical(folder / "in/deep/er/c.h"));
  // A file that is named outright counts whatever its suffix.
  EXPECT_EQ(names(find_files({folder / "in", folder / "alone.md"}, {".h"})),
            (std::vector<std::string>{"alone.md", "in/b.h", "in/deep/er/c.h"}));
  EXPECT_EQ(names(find_files({folder / "in"}, {".h", ".txt"})).size(), 3u);
  EXPECT_NE(error_text([&] {
              find_files({folder / "alone.md", folder / "alone.md"}, {});
            }).find("would both be called alone.md"),
            std::string::npos);
}

std::vector<Document> many(int count) {
  std::vector<Document> documents;
  for (int i = 0; i < count; ++i) documents.push_back({fmt::format("{:04}", i), "text"});
  return documents;
}

// A fraction of n documents has a standard deviation of sqrt(n f (1 - f)); five of them.
TEST(Corpus, TheValidationFractionIsThatOfTheDocuments) {
  for (const double fraction : {0.05, 0.3, 0.8}) {
    const Split split = split_documents(many(2000), fraction, 0);
    EXPECT_EQ(split.train.size() + split.validation.size(), 2000u);
    EXPECT_NEAR(static_cast<double>(split.validation.size()), 2000 * fraction,
                5 * std::sqrt(2000 * fraction * (1 - fraction)));
    for (const auto* part : {&split.train, &split.validation}) {
      for (std::size_t i = 1; i < part->size(); ++i)
        EXPECT_LT((*part)[i - 1].name, (*part)[i].name);
    }
  }
  EXPECT_TRUE(split_documents(many(20), 0, 0).validation.empty());
  EXPECT_THROW(split_documents(many(2), 1, 0), Error);
  EXPECT_THROW(split_documents(many(2), -0.1, 0), Error);
}

TEST(Corpus, ADocumentKeepsItsSideWhenOthersComeAndTheSeedMovesIt) {
  const Split few = split_documents(many(500), 0.3, 4);
  const Split more = split_documents(many(1000), 0.3, 4);
  std::size_t kept = 0;
  for (const Document& document : more.validation)
    if (kept < few.validation.size() && document.name == few.validation[kept].name) ++kept;
  EXPECT_EQ(kept, few.validation.size());
  const Split other = split_documents(many(500), 0.3, 5);
  std::size_t same = 0;
  for (const Document& document : other.validation)
    for (const Document& one : few.validation) same += document.name == one.name;
  EXPECT_LT(same, few.validation.size() / 2) << "0.3 of them are expected";
}

TEST(Corpus, OfTwoDocumentsOneIsForValidation) {
  for (const double fraction : {1e-9, 0.5, 0.999999}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const Split split = split_documents(many(2), fraction, seed);
      EXPECT_EQ(split.train.size(), 1u) << fraction;
      EXPECT_EQ(split.validation.size(), 1u) << fraction;
    }
  }
}

TEST(Corpus, OneDocumentIsCutBehindTheLineEndBeforeTheFraction) {
  const auto cut = [](const std::string& text, double fraction) {
    const Split split = split_documents({{"all", text}}, fraction, 0);
    const auto text_of = [](const std::vector<Document>& part) {
      return part.empty() ? std::string("none") : part[0].name + ":" + part[0].text;
    };
    return text_of(split.train) + " " + text_of(split.validation);
  };
  EXPECT_EQ(cut("aaa\nbbb\ncc", 0.2), "all:aaa\nbbb\n all:cc");
  EXPECT_EQ(cut("aaa\nbbb\ncc", 0.3), "all:aaa\nbbb\n all:cc") << "the line end itself is at 7";
  EXPECT_EQ(cut("aaa\nbbb\ncc", 0.4), "all:aaa\n all:bbb\ncc");
  EXPECT_EQ(cut("aaa\nbbb\ncc", 0.99), "none all:aaa\nbbb\ncc");
  EXPECT_EQ(cut("0123456789", 0.3), "all:0123456 all:789") << "there is no line end";
  EXPECT_EQ(cut("012345678\n", 0.05), "all:012345678\n none");
}

TEST(PinnedList, HasAChecksumASizeAndAPathALine) {
  const auto files =
      parse_pinned_list("# of nothing\n\n0000beef 12 a/b.h\nFFFFFFFF 0 name with blanks");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].crc32, 0xbeefu);
  EXPECT_EQ(files[0].bytes, 12u);
  EXPECT_EQ(files[0].path, "a/b.h");
  EXPECT_EQ(files[1].crc32, 0xffffffffu);
  EXPECT_EQ(files[1].path, "name with blanks");
  for (const std::string bad : {"xyz 1 a", "1 x a", "1 2", "1 2 ", "1", "100000000 1 a"}) {
    const std::string words = error_text([&] { parse_pinned_list("# one\n" + bad); });
    EXPECT_NE(words.find("line 2"), std::string::npos) << bad << ": " << words;
  }
}

TEST(PinnedList, WhatDiffersIsNamed) {
  const Folder folder;
  std::vector<PinnedFile> pinned;
  for (const std::string name : {"a", "b", "c"}) {
    folder.write(name, "text " + name);
    pinned.push_back({.path = name, .bytes = 6, .crc32 = crc32("text " + name)});
  }
  auto documents = read_documents(find_pinned(folder.path(), pinned), 2);
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[2].name, "c");
  EXPECT_EQ(documents[2].text, "text c");
  EXPECT_NO_THROW(check_pinned(documents, pinned));
  documents[1].text = documents[2].text = "other!";
  const std::string words = error_text([&] { check_pinned(documents, pinned); });
  EXPECT_NE(words.find("2 of 3 headers are not those of the pinned list, the first is b: CRC-32 "),
            std::string::npos)
      << words;
  folder.write("b", "longer than it was");
  EXPECT_NE(error_text([&] { find_pinned(folder.path(), pinned); }).find("has 18 bytes"),
            std::string::npos);
  fs::remove(folder / "b");
  EXPECT_NE(error_text([&] { find_pinned(folder.path(), pinned); }).find("b is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace shoal::data::corpus_test
