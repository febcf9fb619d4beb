#include "shoal/checkpoint/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "shoal/base/error.h"
#include "tests/checkpoint_format/scratch.h"

namespace shoal::checkpoint::format::safetensors_test {
namespace {

using ::testing::HasSubstr;

/// A file as the specification describes it, put together by hand.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, 'x');
}

Header parse(const std::string& bytes) {
  return parse_header(bytes, static_cast<std::int64_t>(bytes.size()), "model.safetensors");
}

/// What the parser says about a header that is followed by `data_bytes` bytes; empty when it takes
/// it.
std::string error_text(const std::string& bytes) {
  try {
    parse(bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(), HasSubstr("'model.safetensors'"));
    return error.what();
  }
}

TEST(Safetensors, ReadsAFileOfTheSpecification) {
  const Header header = parse(file_of(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[14,15]}}  )",
      15));
  ASSERT_EQ(header.entries.size(), 3);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].type, ElementType::kBF16);
  EXPECT_EQ(header.entries[1].offset, header.data_begin + 8);
  EXPECT_EQ(header.entries[2].shape, Shape{});
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.find("b"), &header.entries[1]);
  EXPECT_EQ(header.find("c"), nullptr);
}

TEST(Safetensors, SaysWhatIsWrong) {
  const auto one = [](const std::string& fields) { return file_of("{\"w\":{" + fields + "}}", 8); };
  const struct {
    std::string bytes, words;
  } cases[] = {
      {"", "too few"},
      {"1234567", "too few"},
      {std::string(8, '\xff') + "{}", "truncated, or not safetensors"},
      {file_of("{}", 0).substr(0, 9), "truncated, or not safetensors"},
      {file_of("[]", 0), "does not begin with '{'"},
      {file_of("{\"w\":", 0), "not JSON"},
      {file_of(std::string(200, '{'), 0), "not JSON"},
      {file_of("{\"w\":" + std::string(100, '[') + std::string(100, ']') + "}", 0),
       "nested more than"},
      {file_of("{\"w\":1}", 0), "an object with 'dtype' is expected"},
      {one(R"("shape":[2],"data_offsets":[0,8])"), "'dtype' is missing"},
      {one(R"("dtype":"F32","data_offsets":[0,8])"), "'shape' is missing"},
      {one(R"("dtype":"F32","shape":[2])"), "'data_offsets' is missing"},
      {one(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), "dtype 'f32' is not known"},
      {one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "dtype 'F31' is not known"},
      {one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "whole number"},
      {one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "whole number"},
      {one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "list of whole numbers"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "does not take the 8 bytes"},
      {one(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])"),
       "does not take the 8 bytes"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,9])"), "do not lie in the 8 bytes"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "do not lie in the 8 bytes"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "a gap or an overlap"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"),
       "8 bytes of data where the header describes 4"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1)"), "has keys beside"},
      {one(R"("dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8])"), "stands twice"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
               4),
       "a gap or an overlap"},
      {file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
               4),
       "stands twice"},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "a string is expected"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(error_text(c.bytes), HasSubstr(c.words)) << c.bytes.substr(0, 120);
}

TEST(Safetensors, WrittenHeadersReadBackAligned) {
  testing::Scratch scratch;
  std::vector<Entry> entries{
      {.name = "d", .type = ElementType::kF64, .shape = {3}},
      {.name = "scalar \"quoted\" \xc3\xa4", .type = ElementType::kI64, .shape = {}},
      {.name = "empty", .type = ElementType::kF32, .shape = {0, 4}},
      {.name = "h", .type = ElementType::kF16, .shape = {5, 1}},
      {.name = "flag", .type = ElementType::kBool, .shape = {3}}};
  const std::string head = render_header(entries, {{"format", "pt"}});
  EXPECT_EQ(head.size() % 64, 0);
  testing::spill(scratch / "f", head + std::string(24 + 8 + 0 + 10 + 3, '\1'));
  const Header header = read_header(File::open(scratch / "f"));
  ASSERT_EQ(header.entries.size(), entries.size());
  for (const Entry& entry : entries) {
    const Entry* found = header.find(entry.name);
    ASSERT_TRUE(found) << entry.name;
    EXPECT_EQ(found->offset, entry.offset);
    EXPECT_EQ(found->offset % size_of(found->type), 0);
    EXPECT_EQ(found->shape, entry.shape);
    EXPECT_EQ(found->type, entry.type);
  }
}

TEST(Safetensors, RefusesToWriteWhatNobodyCouldRead) {
  std::vector<Entry> twice{{.name = "a", .shape = {1}}, {.name = "a", .shape = {1}}};
  std::vector<Entry> reserved{{.name = "__metadata__", .shape = {1}}};
  std::vector<Entry> wide{{.name = "a", .type = ElementType::kC128, .shape = {1}}};
  for (auto* entries : {&twice, &reserved, &wide}) EXPECT_THROW(render_header(*entries, {}), Error);
}

TEST(Safetensors, NoMutationGetsPastTheParserWithAnExtentOutsideTheFile) {
  const std::string good = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"I64","shape":[1],"data_offsets":[24,32]}})",
      32);
  ASSERT_EQ(error_text(good), "");
  std::mt19937 random(5);
  int taken = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bad = good;
    for (int changes = 1 + random() % 4; changes > 0 && !bad.empty(); --changes) {
      const std::size_t at = random() % bad.size();
      switch (random() % 5) {
        case 0:
          bad[at] ^= 1 << random() % 8;
          break;
        case 1:
          bad[at] = "{}[]\",:0123456789-e\\"[random() % 20];
          break;
        case 2:
          bad.erase(at, 1 + random() % 9);
          break;
        case 3:
          bad.insert(at, good.substr(random() % good.size(), random() % 20));
          break;
        default:
          bad.resize(at + 1);
      }
    }
    try {
      const Header header = parse(bad);
      ++taken;
      std::int64_t at = header.data_begin;
      for (const Entry& entry : header.entries) {
        ASSERT_EQ(entry.offset, at);
        at += entry.bytes();
      }
      ASSERT_EQ(at, bad.size());
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kData);
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(taken, 0) << "the mutations are so coarse that they test one check only";
}

}  // namespace
}  // namespace shoal::checkpoint::format::safetensors_test
