#include "shoal/data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/data/prepare.h"
#include "tests/data/folder.h"

namespace shoal::data::dataset_test {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::int64_t kEnd = 256;

/// Texts of 1 to 9 bytes in shards of 12 tokens or a little more.
PrepareOptions nine_texts(const Folder& folder, const std::string& out = "out") {
  for (int i = 1; i <= 9; ++i)
    folder.write(fmt::format("in/{}", i), std::string(static_cast<std::size_t>(i), '0' + i));
  PrepareOptions options;
  options.inputs = {folder / "in"};
  options.out = folder / out;
  options.tokenizer = TokenizerKind::kBytes;
  options.validation_fraction = 0;
  options.drop_duplicates = false;
  options.shard_tokens = 12;
  return options;
}

std::vector<std::int64_t> nine_texts_as_tokens() {
  std::vector<std::int64_t> tokens;
  for (int i = 1; i <= 9; ++i) {
    tokens.insert(tokens.end(), static_cast<std::size_t>(i), '0' + i);
    tokens.push_back(kEnd);
  }
  return tokens;
}

TEST(Dataset, ReadsAcrossItsShards) {
  const Folder folder;
  const auto manifest = prepare(nine_texts(folder)).manifest;
  EXPECT_GE(manifest.splits.at("train").shards.size(), 3u);
  const auto dataset = TokenDataset::open(folder / "out", "train");
  const auto expected = nine_texts_as_tokens();
  ASSERT_EQ(dataset.tokens(), expected.size());
  EXPECT_EQ(dataset.documents(), 9u);
  EXPECT_EQ(dataset.bytes(), 45u);
  EXPECT_EQ(dataset.vocab_size(), 257u);
  std::vector<std::uint64_t> begins{0};
  for (std::uint64_t i = 1; i <= 9; ++i) begins.push_back(begins.back() + i + 1);
  EXPECT_EQ(std::vector(dataset.document_begins().begin(), dataset.document_begins().end()),
            begins);
  for (std::uint64_t start = 0; start <= expected.size(); ++start) {
    for (std::uint64_t count = 0; start + count <= expected.size(); ++count) {
      std::vector<std::int64_t> wide(count);
      std::vector<std::uint32_t> narrow(count);
      dataset.copy(start, std::span(wide));
      dataset.copy(start, std::span(narrow));
      const auto from = expected.begin() + static_cast<std::ptrdiff_t>(start);
      ASSERT_EQ(wide, std::vector(from, from + static_cast<std::ptrdiff_t>(count))) << start;
      ASSERT_TRUE(std::equal(narrow.begin(), narrow.end(), from)) << start;
      std::uint64_t bytes = 0;
      for (const std::int64_t token : wide) bytes += token == kEnd ? 0 : 1;
      ASSERT_EQ(dataset.bytes_of(start, count), bytes) << start << " " << count;
    }
  }
  std::vector<std::int64_t> more(2);
  EXPECT_THROW(dataset.copy(expected.size() - 1, std::span(more)), Error);
  EXPECT_THROW(dataset.copy(expected.size() + 1, std::span(more).first(0)), Error);
}

TEST(Dataset, IsKnownByItsDataAndNotByItsFolder) {
  const Folder folder;
  const Folder elsewhere;
  PrepareOptions options = nine_texts(folder);
  options.validation_fraction = 0.3;
  prepare(options);
  std::filesystem::copy(folder / "out", elsewhere / "copy");
  const auto train = TokenDataset::open(folder / "out", "train");
  EXPECT_EQ(train.name(), folder.path() + "/out (train)");
  EXPECT_EQ(train.fingerprint(), TokenDataset::open(elsewhere / "copy", "train").fingerprint());
  EXPECT_NE(train.fingerprint(), TokenDataset::open(folder / "out", "validation").fingerprint());
  options.out = folder / "seeded";
  options.seed = 1;
  prepare(options);
  EXPECT_NE(train.fingerprint(), TokenDataset::open(folder / "seeded", "train").fingerprint());
}

void expect_refused(const Folder& folder, const std::string& split, const std::string& words) {
  try {
    TokenDataset::open(folder / "out", split);
    ADD_FAILURE() << "opened; expected: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Dataset, RefusesFilesThatDoNotBelongTogether) {
  const Folder folder;
  prepare(nine_texts(folder));
  const std::string path = folder / "out/manifest.json";
  const std::string good = content(path);
  expect_refused(folder, "test", "no split 'test'");
  expect_refused(folder, "validation", "is empty");
  const auto edited = [&](const std::function<void(Json&)>& edit, const std::string& words) {
    Json manifest = Json::parse(good);
    edit(manifest);
    folder.write("out/manifest.json", manifest.dump());
    expect_refused(folder, "train", words);
    folder.write("out/manifest.json", good);
  };
  const auto shard = [](Json& m) -> Json& { return m["splits"]["train"]["shards"][1]; };
  for (const char* key : {"tokens", "documents", "bytes"}) {
    edited([&](Json& m) { shard(m)[key] = shard(m)[key].get<int>() + 1; },
           "belongs to another dataset");
  }
  edited([&](Json& m) { shard(m)["crc32"] = "00000000"; }, "belongs to another dataset");
  edited([](Json& m) { m["fingerprint"] = "0000000000000001"; }, "belongs to another dataset");
  edited([](Json& m) { m["tokenizer"]["crc32"] = "00000000"; }, "is not the tokenizer of");
  edited([](Json& m) { m["splits"]["train"]["tokens"] = 1; }, "contradicts itself");
  edited([](Json& m) { m["splits"]["train"]["files"].erase(0); }, "contradicts itself");
  TokenDataset::open(folder / "out", "train");
}

TEST(Dataset, LooksAtEveryTokenUnlessToldNotTo) {
  const Folder folder;
  prepare(nine_texts(folder));
  std::string bytes = content(folder / "out/train-00001.tokens");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("out/train-00001.tokens", bytes);
  expect_refused(folder, "train", "the checksum of its tokens is wrong");
  EXPECT_NO_THROW(TokenDataset::open(folder / "out", "train", Check::kHeaders));
  folder.write("out/train-00001.tokens", bytes.substr(1));
  EXPECT_THROW(TokenDataset::open(folder / "out", "train", Check::kHeaders), Error);
}

}  // namespace
}  // namespace shoal::data::dataset_test
