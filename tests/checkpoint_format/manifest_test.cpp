#include "shoal/checkpoint/format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/checkpoint/format/value_checksum.h"

namespace shoal::checkpoint::format::manifest_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

LogicalTensor tensor(const Shape& shape, const std::vector<Box>& boxes) {
  LogicalTensor made{.name = "w", .shape = shape};
  for (const Box& box : boxes) {
    made.pieces.push_back({.name = piece_name("w", box, shape),
                           .box = box,
                           .blocks = std::vector<std::uint64_t>(box.count() > 0, 1)});
  }
  return made;
}

TEST(Manifest, KnowsWhenATensorIsCoveredOnce) {
  EXPECT_EQ(coverage_fault(tensor({4, 4}, {{{0, 0}, {4, 2}}, {{0, 2}, {1, 4}}, {{1, 2}, {4, 4}}})),
            "");
  EXPECT_EQ(coverage_fault(tensor({}, {{}})), "");
  EXPECT_EQ(coverage_fault(tensor({0, 3}, {})), "");
  EXPECT_THAT(coverage_fault(tensor({4, 4}, {{{0, 0}, {4, 2}}, {{0, 2}, {1, 4}}})),
              HasSubstr("hold 10 of 16"));
  EXPECT_THAT(coverage_fault(tensor({4}, {{{0}, {3}}, {{2}, {3}}})), HasSubstr("overlap"));
  EXPECT_THAT(coverage_fault(tensor({4}, {{{0}, {4}}, {{0}, {4}}})), HasSubstr("overlap"));
  EXPECT_THAT(coverage_fault(tensor({}, {{}, {}})), HasSubstr("overlap"));
  EXPECT_THAT(coverage_fault(tensor({4}, {{{0}, {5}}})), HasSubstr("does not lie"));
  EXPECT_THAT(coverage_fault(tensor({}, {})), HasSubstr("hold 0 of 1"));
}

/// A manifest after `change`, with the checksum that then belongs to it: only what the checksum
/// cannot catch is left to find.
std::string changed(const std::function<void(json&)>& change) {
  Manifest manifest{
      .step = 5, .files = {{"f.safetensors", 100, 0}}, .tensors = {tensor({4}, {{{0}, {4}}})}};
  json root = json::parse(to_json(manifest));
  root.erase("checksum");
  change(root);
  root["checksum"] = hex(byte_checksum(root.dump()));
  return root.dump();
}

TEST(Manifest, SaysWhatDoesNotFit) {
  const struct {
    std::function<void(json&)> change;
    std::string words;
  } cases[] = {
      {[](json& m) { m["format"] = "other"; }, "not the manifest of a Shoal checkpoint"},
      {[](json& m) { m["version"] = 2; }, "version 2"},
      {[](json& m) { m["block_elements"] = 7; }, "block_elements"},
      {[](json& m) { m["step"] = -1; }, "step: a whole number"},
      {[](json& m) { m["files"] = 1; }, "files, tensors and metadata"},
      {[](json& m) { m["metadata"] = "text"; }, "files, tensors and metadata"},
      {[](json& m) { m["files"][0]["name"] = "../../etc/passwd"; }, "is not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = ".."; }, "is not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = "a/b"; }, "is not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = ""; }, "is not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = ".hidden"; }, "is not the name of a file"},
      {[](json& m) { m["files"][0]["name"] = std::string("a\0b", 3); }, "files: 'a"},
      {[](json& m) { m["files"][0]["header"] = "12"; }, "16 hexadecimal digits"},
      {[](json& m) { m["files"][0]["header"] = "00000000000000000"; }, "16 hexadecimal digits"},
      {[](json& m) { m["files"][0]["bytes"] = 1.5; }, "bytes: a whole number"},
      {[](json& m) { m["files"][0]["bytes"] = ~0ULL; }, "bytes: a whole number"},
      {[](json& m) { m["tensors"] = json::array(); }, "files, tensors and metadata"},
      {[](json& m) { m["tensors"]["w"] = 1; }, "an object with 'type' is expected"},
      {[](json& m) { m["tensors"]["w"]["type"] = "c128"; }, "type 'c128' is not known"},
      {[](json& m) { m["tensors"]["w"]["shape"] = 4; }, "shape: a list of whole numbers"},
      {[](json& m) { m["tensors"]["w"]["pieces"] = 1; }, "pieces: a list is expected"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["name"] = 1; }, "name: a string is expected"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["blocks"] = 1; },
       "blocks: a list of checksums"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["blocks"].push_back("0000000000000000"); },
       "2 block checksums for 4 elements"},
      {[](json& m) { m["files"][0].erase("bytes"); }, "'bytes' is missing"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["file"] = 1; }, "file 1 of 1"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["end"] = {5}; }, "does not lie in [4]"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["end"] = {3}; }, "hold 3 of 4"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["begin"] = json::array(); },
       "does not lie in [4]"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["blocks"] = json::array(); },
       "0 block checksums for 4 elements"},
      {[](json& m) { m["tensors"]["w"]["pieces"][0]["blocks"][0] = "xyz"; },
       "16 hexadecimal digits"},
      {[](json& m) { m["tensors"]["w"]["checksum"] = "0000000000000002"; },
       "not that of its blocks"},
      {[](json& m) { m["tensors"]["w"]["type"] = "f33"; }, "type 'f33' is not known"},
      {[](json& m) {
         m["tensors"]["w"]["shape"] = {1LL << 62, 4};
       },
       "too large"},
  };
  EXPECT_EQ(parse_manifest(changed([](json&) {}), "m").step, 5);
  for (const auto& c : cases) {
    try {
      parse_manifest(changed(c.change), "m.json");
      ADD_FAILURE() << "taken: " << c.words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("'m.json'"), HasSubstr(c.words)));
    }
  }
}

TEST(Manifest, RefusesToWriteWhatNobodyCouldRead) {
  const auto error_text = [](std::vector<LogicalTensor> tensors) -> std::string {
    Manifest manifest{.step = 1, .tensors = std::move(tensors)};
    try {
      to_json(manifest);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "";
  };
  const LogicalTensor whole_one = tensor({4}, {{{0}, {4}}});
  EXPECT_EQ(error_text({whole_one}), "");
  EXPECT_THAT(error_text({whole_one, whole_one}), HasSubstr("tensor 'w' stands twice"));
  EXPECT_THAT(error_text({tensor({4}, {{{0}, {3}}})}), HasSubstr("hold 3 of 4"));
}

TEST(Manifest, FindsTensorsByName) {
  Manifest manifest{.step = 1};
  for (const char* name : {"b", "a", "d"}) {
    manifest.tensors.push_back(tensor({4}, {{{0}, {4}}}));
    manifest.tensors.back().name = name;
  }
  const Manifest read = parse_manifest(
      [&] {
        manifest.files = {{"f.safetensors", 100, 0}};
        return to_json(manifest);
      }(),
      "m");
  for (const char* name : {"a", "b", "d"}) {
    ASSERT_NE(read.find(name), nullptr);
    EXPECT_EQ(read.find(name)->name, name);
  }
  for (const char* name : {"", "aa", "c", "e"}) EXPECT_EQ(read.find(name), nullptr) << name;
}

TEST(Manifest, RefusesMetadataThatIsNoObject) {
  for (const char* metadata : {"", "[]", "{", "7"}) {
    Manifest manifest{.step = 1, .metadata = metadata};
    EXPECT_THROW(to_json(manifest), Error) << metadata;
  }
}

}  // namespace
}  // namespace shoal::checkpoint::format::manifest_test
