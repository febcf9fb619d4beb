#include "shoal/data/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "tests/data/folder.h"

namespace shoal::data::manifest_test {
namespace {

using nlohmann::json;

/// A manifest of which no two numbers are alike.
Manifest numbered() {
  Manifest m;
  m.fingerprint = 0xfedcba9876543210u;
  m.options = {{"seed", "3"}, {"tokenizer", "bpe"}};
  m.source = {11, 12, 13, 14, 15, 16, 17};
  m.tokenizer_name = "bpe";
  m.vocab_size = 18;
  m.tokenizer_crc32 = 0x89abcdefu;
  m.splits["train"] = {21, 22, 23, {{"a.tokens", 24, 25, 26, 0x0000beefu}}, {"x", "y"}};
  m.splits["validation"] = {31, 32, 33, {}, {}};
  return m;
}

TEST(DatasetManifest, ComesBackFieldByField) {
  const Manifest m = parse_manifest(to_json(numbered()), "manifest.json");
  EXPECT_EQ(m.fingerprint, 0xfedcba9876543210u);
  EXPECT_EQ(m.options, numbered().options);
  EXPECT_EQ(m.source, numbered().source);
  EXPECT_EQ(m.tokenizer_name, "bpe");
  EXPECT_EQ(m.vocab_size, 18u);
  EXPECT_EQ(m.tokenizer_crc32, 0x89abcdefu);
  ASSERT_EQ(m.splits.size(), 2u);
  const SplitEntry& train = m.splits.at("train");
  EXPECT_EQ(train.tokens, 21u);
  EXPECT_EQ(train.documents, 22u);
  EXPECT_EQ(train.bytes, 23u);
  EXPECT_EQ(train.files, (std::vector<std::string>{"x", "y"}));
  ASSERT_EQ(train.shards.size(), 1u);
  EXPECT_EQ(train.shards[0].file, "a.tokens");
  EXPECT_EQ(train.shards[0].tokens, 24u);
  EXPECT_EQ(train.shards[0].documents, 25u);
  EXPECT_EQ(train.shards[0].bytes, 26u);
  EXPECT_EQ(train.shards[0].crc32, 0x0000beefu);
  EXPECT_EQ(m.splits.at("validation").bytes, 33u);
}

TEST(DatasetManifest, CountsBinaryFilesWhereThereAreSome) {
  Manifest m = numbered();
  m.source.binary_files = 18;
  m.source.binary_bytes = 19;
  EXPECT_EQ(json::parse(to_json(m)).at("source").at("binary_files"), 18);
  EXPECT_EQ(parse_manifest(to_json(m), "here").source, m.source);
  EXPECT_EQ(parse_manifest(to_json(numbered()), "here").source, numbered().source);
}

// Other programs read it: the keys are a contract.
TEST(DatasetManifest, HasItsNumbersUnderTheirNames) {
  const json m = json::parse(to_json(numbered()));
  EXPECT_EQ(m.at("format"), "shoal-dataset");
  EXPECT_EQ(m.at("version"), 1);
  EXPECT_EQ(m.at("fingerprint"), "fedcba9876543210");
  const json source{{"files", 11},
                    {"bytes", 12},
                    {"empty_files", 13},
                    {"near_duplicate_files", 14},
                    {"near_duplicate_bytes", 15},
                    {"repeated_passages", 16},
                    {"repeated_passage_bytes", 17}};
  EXPECT_EQ(m.at("source"), source);
  const json tokenizer{
      {"file", "tokenizer.model"}, {"name", "bpe"}, {"vocab_size", 18}, {"crc32", "89abcdef"}};
  EXPECT_EQ(m.at("tokenizer"), tokenizer);
  const json shard{{"file", "a.tokens"},
                   {"tokens", 24},
                   {"documents", 25},
                   {"bytes", 26},
                   {"crc32", "0000beef"}};
  EXPECT_EQ(m.at("splits").at("train").at("shards"), json::array({shard}));
  EXPECT_EQ(m.at("splits").at("train").at("tokens"), 21);
  EXPECT_EQ(m.at("splits").at("train").at("documents"), 22);
  EXPECT_EQ(m.at("splits").at("train").at("bytes"), 23);
}

TEST(DatasetManifest, RefusesWhatItIsNot) {
  const auto refused = [](const std::string& key, const json& value) {
    json m = json::parse(to_json(numbered()));
    m[json::json_pointer(key)] = value;
    try {
      parse_manifest(m.dump(), "some/manifest.json");
      ADD_FAILURE() << "taken: " << key << " " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
      EXPECT_NE(std::string(error.what()).find("some/manifest.json"), std::string::npos);
    }
  };
  refused("/format", "another");
  refused("/version", 2);
  refused("/fingerprint", "12g4");
  refused("/fingerprint", "");
  refused("/fingerprint", "10112233445566778");
  refused("/source", 1);
  refused("/splits/train", 1);
  refused("/tokenizer/crc32", 5);
}

TEST(DatasetManifest, OneThatIsMissingSaysWhetherPreparingWasInterrupted) {
  const auto hint_of = [](const Folder& folder) {
    try {
      read_manifest(folder.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInputMissing);
      return error.hint();
    }
    return std::string("nothing was thrown");
  };
  const Folder empty;
  EXPECT_EQ(hint_of(empty), "make one with `shoal data prepare`");
  const Folder begun;
  begun.write("tokenizer.model", "x");
  EXPECT_EQ(hint_of(begun), "preparing it was interrupted; run `shoal data prepare` again");
}

}  // namespace
}  // namespace shoal::data::manifest_test
