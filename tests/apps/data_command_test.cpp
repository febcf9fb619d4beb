// `shoal data` as users and scripts call it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

namespace shoal::apps::testing::data_command_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kFiles = 20;
constexpr int kLength = 1500;

/// Words of letters that no two files share.
std::string words_of(std::uint32_t seed) {
  std::string text;
  for (std::uint32_t state = 7919 * seed + 1; text.size() < kLength;) {
    state = state * 1664525 + 1013904223;
    text += static_cast<char>(state >> 28 == 0 ? ' ' : 'a' + (state >> 16) % 26);
  }
  return text;
}

class DataCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t i = 0; i < kFiles; ++i)
      folder_.write(fmt::format("text/file-{:02}.txt", i), words_of(i));
    folder_.write("text/other.h", words_of(99));
  }
  Outcome shoal(std::vector<std::string> words) const {
    words.insert(words.begin(), {shoal_program(), "data"});
    return run(words, folder_.path());
  }
  Outcome prepare(const std::string& out, std::vector<std::string> more) const {
    if (std::find(more.begin(), more.end(), "--validation-fraction") == more.end())
      more.insert(more.end(), {"--validation-fraction", "0.3"});
    more.insert(more.begin(), {"prepare", "-o", out, "-i", "text", "--tokenizer", "byte"});
    return shoal(more);
  }
  nlohmann::json stats(const std::string& name, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"stats", name, "--json"});
    const Outcome outcome = shoal(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  static std::uint64_t both(const nlohmann::json& stats, const char* key) {
    return stats["train"][key].get<std::uint64_t>() + stats["validation"][key].get<std::uint64_t>();
  }

  Folder folder_;
};

TEST_F(DataCommand, NamesTheFilesThatAreNoText) {
  for (int i = 0; i < 7; ++i) folder_.write(fmt::format("text/x{}.bin", i), std::string(9, '\0'));
  const Outcome outcome = prepare("all", {});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("shoal: text/x0.bin looks binary (NUL bytes): left out; "
                                     "--binary keeps such files\n"));
  EXPECT_THAT(outcome.err, HasSubstr("shoal: and 2 more such files\n"));
  EXPECT_THAT(outcome.out, HasSubstr("7 files that are no text (63 bytes)\n"));
  EXPECT_THAT(prepare("kept", {"--binary"}).err, Not(HasSubstr("binary")));
  EXPECT_THAT(prepare("none", {"--suffix", ".xyz"}).err, HasSubstr("text: no file ends in .xyz"));
}

// A byte is a token, and each document has an end of its own.
TEST_F(DataCommand, StatsCountTheText) {
  ASSERT_EQ(prepare("all", {}).code, 0);
  const auto all = stats("all");
  EXPECT_EQ(all["vocab_size"], 257);
  EXPECT_EQ(both(all, "documents"), kFiles + 1u);
  EXPECT_EQ(both(all, "bytes"), (kFiles + 1u) * kLength);
  EXPECT_EQ(both(all, "tokens"), (kFiles + 1u) * (kLength + 1));
  for (const char* split : {"train", "validation"}) {
    EXPECT_DOUBLE_EQ(all[split]["bytes_per_token"].get<double>(),
                     static_cast<double>(kLength) / (kLength + 1))
        << split;
  }
  ASSERT_EQ(all["ngrams"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& one = all["ngrams"][i];
    EXPECT_EQ(one["n"], (std::vector{1, 2, 3, 5})[i]);
    EXPECT_NEAR(one["loss"].get<double>(),
                one["bits_per_byte"].get<double>() * std::log(2.0) * kLength / (kLength + 1), 1e-9);
  }
  EXPECT_EQ(stats("all", {"--orders", "2"})["ngrams"].size(), 1u);
  EXPECT_EQ(shoal({"stats", "all", "--orders", "0"}).code, 2);
  EXPECT_EQ(shoal({"stats", "all", "--orders", "9"}).code, 2);
  EXPECT_THAT(shoal({"stats", "all", "--orders", "1"}).out, HasSubstr("n  bits per byte"));
}

TEST_F(DataCommand, PrepareTakesItsOptions) {
  ASSERT_EQ(prepare("text-only", {"--suffix", ".txt"}).code, 0);
  EXPECT_EQ(both(stats("text-only"), "documents"), kFiles + 0u);
  ASSERT_EQ(prepare("none-held-out", {"--validation-fraction", "0"}).code, 0);
  folder_.write("text/twin.txt", words_of(0));
  ASSERT_EQ(prepare("unique", {}).code, 0);
  EXPECT_EQ(both(stats("unique"), "documents"), kFiles + 1u);
  ASSERT_EQ(prepare("kept", {"--keep-duplicates"}).code, 0);
  EXPECT_EQ(both(stats("kept"), "documents"), kFiles + 2u);
  EXPECT_THAT(prepare("kept", {"--keep-duplicates"}).out,
              HasSubstr("kept is already prepared: nothing to do"));
  for (const auto& wrong : std::vector<std::vector<std::string>>{{"--vocab", "300"},
                                                                 {"--tokenizer-bytes", "10"},
                                                                 {"--validation-fraction", "1"},
                                                                 {"--shard-tokens", "0"},
                                                                 {"--threads", "0"},
                                                                 {"--corpus", "headers"}})
    EXPECT_EQ(prepare("wrong", wrong).code, 2) << wrong[0];
  EXPECT_EQ(shoal({"prepare", "-o", "wrong"}).code, 2) << "nothing to prepare";
  EXPECT_EQ(shoal({"prepare", "-o", "wrong", "-i", "text", "--vocab", "257"}).code, 2);
}

TEST_F(DataCommand, PeekShowsWhatIsThere) {
  ASSERT_EQ(prepare("all", {}).code, 0);
  const auto headers = [](const std::string& text) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find("--- tokens ", at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  EXPECT_EQ(headers(shoal({"peek", "all"}).out), 3u);
  EXPECT_EQ(headers(shoal({"peek", "all", "-n", "5"}).out), 5u);
  EXPECT_EQ(shoal({"peek", "all", "-n", "0"}).out, "");
  const auto tokens = stats("all")["train"]["tokens"].get<std::uint64_t>();
  const std::string whole = shoal({"peek", "all", "-n", "1", "--tokens", "1000000"}).out;
  EXPECT_THAT(whole, StartsWith(fmt::format("--- tokens 0 to {0} of {0}, from ", tokens)));
  const auto validation = stats("all")["validation"]["tokens"].get<std::uint64_t>();
  EXPECT_THAT(shoal({"peek", "all", "-n", "1", "--tokens", "1000000", "--split", "validation"}).out,
              StartsWith(fmt::format("--- tokens 0 to {0} of {0}, from ", validation)));
  const std::string some = shoal({"peek", "all", "-n", "1", "--seed", "4"}).out;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  ASSERT_EQ(std::sscanf(some.c_str(), "--- tokens %lu to %lu of", &begin, &end), 2);
  EXPECT_EQ(end - begin, 128u);
  EXPECT_NE(shoal({"peek", "all", "-n", "1", "--seed", "5"}).out, some);
  // The text behind the first line is that of the file, if no document ends in it.
  const std::string named =
      some.substr(some.find(", from ") + 7, some.find(" on\n") - some.find(", from ") - 7);
  const std::string file = named.substr(named.rfind('/') + 1);
  const std::string text = folder_.read("text/" + file);
  const std::string shown = some.substr(some.find('\n') + 1);
  EXPECT_NE(text.find(shown.substr(0, std::min<std::size_t>(20, shown.find('\n')))),
            std::string::npos)
      << file;
  const std::string numbered = shoal({"peek", "all", "-n", "1", "--tokens", "1", "--ids"}).out;
  EXPECT_THAT(numbered.substr(numbered.find('\n') + 1), MatchesRegex("\\[[0-9]+\\].\n"));
}

TEST_F(DataCommand, VerifyReadsEveryByte) {
  ASSERT_EQ(prepare("all", {}).code, 0);
  const Outcome right = shoal({"verify", "all"});
  EXPECT_EQ(right.code, 0) << right.err;
  EXPECT_THAT(right.out, HasSubstr("every checksum is right\n"));
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path() / "all")) {
    if (entry.is_regular_file() &&
        (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)))
      largest = entry.path();
  }
  std::fstream file(largest, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(std::filesystem::file_size(largest) / 2));
  const int byte = file.peek();
  file.seekp(file.tellg());
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  EXPECT_EQ(shoal({"verify", "all"}).code, 65) << largest;
  EXPECT_EQ(shoal({"verify", "nothing"}).code, 66);
}

}  // namespace
}  // namespace shoal::apps::testing::data_command_test
