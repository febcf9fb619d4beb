#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "shoal/checkpoint/format/gguf/container.h"
#include "tests/error_text.h"

namespace shoal::checkpoint::format::gguf_container_test {
namespace {

using namespace gguf;
using gguf::Header;  // safetensors have one too
using ::testing::HasSubstr;

/// Bytes as the specification of the format has them, put together by hand.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
    return *this;
  }
  Bytes& u32(std::uint32_t value) { return number(value); }
  Bytes& u64(std::uint64_t value) { return number(value); }
  Bytes& text(const std::string& value) {
    u64(value.size());
    bytes_ += value;
    return *this;
  }
  Bytes& raw(const std::string& value) {
    bytes_ += value;
    return *this;
  }
  Bytes& pad(std::size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_ += '\0';
    return *this;
  }
  const std::string& get() const { return bytes_; }

 private:
  std::string bytes_;
};

Bytes beginning(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
  return Bytes().raw("GGUF").u32(version).u64(tensors).u64(keys);
}

Header parsed(const std::string& bytes) {
  return parse_header([&](void* data, std::int64_t offset,
                          std::size_t count) { std::memcpy(data, bytes.data() + offset, count); },
                      static_cast<std::int64_t>(bytes.size()), "it.gguf");
}

std::string refusal(const Bytes& bytes) {
  return error_text([&] { parsed(bytes.get()); });
}

TEST(GgufContainer, EveryTypeOfValueIsRead) {
  Bytes bytes = beginning(0, 16, 2);
  bytes.text("u8").u32(0).number<std::uint8_t>(200);
  bytes.text("i8").u32(1).number<std::int8_t>(-2);
  bytes.text("u16").u32(2).number<std::uint16_t>(60000);
  bytes.text("i16").u32(3).number<std::int16_t>(-300);
  bytes.text("u32").u32(4).u32(4000000000);
  bytes.text("i32").u32(5).number<std::int32_t>(-70000);
  bytes.text("f32").u32(6).u32(std::bit_cast<std::uint32_t>(1e-5f));
  bytes.text("bool").u32(7).number<std::uint8_t>(1);
  bytes.text("text").u32(8).text("Ġt");
  bytes.text("texts").u32(9).u32(8).u64(2).text("a").text("");
  bytes.text("i32s").u32(9).u32(5).u64(2).u32(1).number<std::int32_t>(-1);
  bytes.text("bools").u32(9).u32(7).u64(2).raw(std::string("\1\0", 2));
  bytes.text("f32s").u32(9).u32(6).u64(1).u32(std::bit_cast<std::uint32_t>(0.1f));
  bytes.text("u64").u32(10).u64(std::uint64_t{1} << 62);
  bytes.text("i64").u32(11).number<std::int64_t>(-5);
  bytes.text("f64").u32(12).u64(std::bit_cast<std::uint64_t>(0.3));
  const Header header = parsed(bytes.get());
  const Metadata& metadata = header.metadata;
  EXPECT_EQ(metadata.integer("u8"), 200);
  EXPECT_EQ(metadata.integer("i8"), -2);
  EXPECT_EQ(metadata.integer("u16"), 60000);
  EXPECT_EQ(metadata.integer("i16"), -300);
  EXPECT_EQ(metadata.integer("u32"), 4000000000);
  EXPECT_EQ(metadata.integer("i32"), -70000);
  EXPECT_EQ(metadata.real("f32"), 1e-5) << "the shortest decimal number";
  EXPECT_EQ(metadata.boolean("bool"), true);
  EXPECT_EQ(metadata.text("text"), "Ġt");
  EXPECT_EQ(*metadata.texts("texts"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(*metadata.integers("i32s"), (std::vector<std::int64_t>{1, -1}));
  EXPECT_EQ(*metadata.integers("bools"), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(std::get<std::vector<double>>(metadata.values().at("f32s")), std::vector<double>{0.1});
  EXPECT_EQ(metadata.integer("u64"), std::int64_t{1} << 62);
  EXPECT_EQ(metadata.integer("i64"), -5);
  EXPECT_EQ(metadata.real("f64"), 0.3);
  EXPECT_EQ(metadata.real("u8"), 200);
  EXPECT_FALSE(metadata.integer("absent") || metadata.real("absent") || metadata.text("absent"));
  EXPECT_THAT(error_text([&] { metadata.integer("text"); }),
              HasSubstr("'it.gguf': key 'text' is no whole number"));
  EXPECT_THAT(error_text([&] { metadata.texts("u8"); }), HasSubstr("is no list of texts"));
}

TEST(GgufContainer, TensorsLieBehindTheHeader) {
  Bytes bytes = beginning(2, 1);
  bytes.text("general.alignment").u32(4).u32(64);
  bytes.text("a").u32(2).u64(3).u64(2).u32(0).u64(0);  // 24 bytes
  bytes.text("b").u32(1).u64(32).u32(8).u64(64);       // 34 bytes
  const auto begin = static_cast<std::int64_t>(bytes.pad(64).get().size());
  bytes.raw(std::string(64 + 34, 'x'));
  const Header header = parsed(bytes.get());
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].shape, (Shape{2, 3})) << "ggml counts from the other end";
  EXPECT_EQ(header.tensors[0].offset, begin);
  EXPECT_EQ(header.tensors[1].offset, begin + 64);
  EXPECT_EQ(header.tensors[1].bytes(), 34);
  EXPECT_EQ(header.find("b")->type, BlockType::kQ8_0);
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_THAT(error_text([&] { parsed(bytes.get().substr(0, bytes.get().size() - 1)); }),
              HasSubstr("tensor 'b' ends at byte"));
}

TEST(GgufContainer, WhatIsWrongIsNamed) {
  const auto tensor = [](std::uint64_t columns, std::uint32_t type, std::uint64_t offset) {
    Bytes bytes = beginning(1, 0);
    bytes.text("w").u32(1).u64(columns).u32(type).u64(offset);
    return bytes.pad(32).raw(std::string(256, '\0'));
  };
  EXPECT_EQ(refusal(tensor(32, 8, 0)), "");
  EXPECT_THAT(refusal(tensor(33, 8, 0)), HasSubstr("'w' of [33] cannot be of type Q8_0"));
  EXPECT_THAT(refusal(tensor(256, 17, 0)), HasSubstr("'w' is IQ2_XS, which Shoal does not read"));
  EXPECT_THAT(refusal(tensor(128, 12, 0)), HasSubstr("'w' of [128] cannot be of type Q4_K"));
  EXPECT_THAT(refusal(tensor(32, 0, 32)), HasSubstr("a gap or an overlap"));
  EXPECT_THAT(refusal(tensor(std::uint64_t{1} << 62, 0, 0)), HasSubstr("cannot be of type F32"));
  EXPECT_THAT(refusal(tensor(std::uint64_t{1} << 63, 0, 0)), HasSubstr("has a dimension of"));
  EXPECT_THAT(refusal(tensor(4, 0, ~std::uint64_t{0})), HasSubstr("begins at byte"));
  EXPECT_THAT(refusal(beginning(1, 0).text("w").u32(5).raw(std::string(64, '\0'))),
              HasSubstr("has 5 dimensions"));
  EXPECT_THAT(refusal(Bytes().raw("GGML").u32(3).u64(0).u64(0)),
              HasSubstr("does not begin with GGUF"));
  EXPECT_THAT(refusal(beginning(0, 0, 1)), HasSubstr("version 1; 2 and 3 are read"));
  EXPECT_THAT(refusal(beginning(0, 0, 3u << 24)), HasSubstr("big-endian"));
  EXPECT_THAT(refusal(beginning(0, 1)), HasSubstr("1 keys do not fit"));
  EXPECT_THAT(refusal(beginning(std::uint64_t{1} << 60, 0)), HasSubstr("tensors do not fit"));
  EXPECT_THAT(refusal(beginning(0, 1).u64(100).raw("short text.....")),
              HasSubstr("100 bytes of a text do not fit"));
  EXPECT_THAT(refusal(beginning(0, 1).text("k").u32(9).u32(8).u64(9).raw(std::string(8, '\0'))),
              HasSubstr("9 elements of a list do not fit"));
  EXPECT_THAT(refusal(beginning(0, 1).text("k").u32(9).u32(9).u64(0)), HasSubstr("list of lists"));
  EXPECT_THAT(refusal(beginning(0, 1).text("k").u32(13).u64(0)), HasSubstr("unknown type 13"));
  EXPECT_THAT(refusal(beginning(0, 1).text("key").u32(7).number<std::uint8_t>(2)),
              HasSubstr("neither true nor false"));
  EXPECT_THAT(refusal(beginning(0, 1).text("k").u32(10).u64(~std::uint64_t{0})),
              HasSubstr("more than 2^63 - 1"));
  EXPECT_THAT(refusal(beginning(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1)),
              HasSubstr("key 'k' stands twice"));
  EXPECT_THAT(refusal(beginning(0, 1).text("general.alignment").u32(4).u32(24)),
              HasSubstr("no power of two"));
  Bytes twice = beginning(2, 0);
  for (int i = 0; i < 2; ++i) twice.text("w").u32(0).u32(0).u64(32 * i);
  EXPECT_THAT(refusal(twice.raw(std::string(128, '\0'))), HasSubstr("tensor 'w' stands twice"));
}

TEST(GgufContainer, AHeaderReadsAsItIsWritten) {
  Metadata metadata;
  metadata.add("count", std::int64_t{7});
  metadata.add("negative", std::int64_t{-7});
  metadata.add("real", 1e-5);
  metadata.add("yes", true);
  metadata.add("text", std::string("Größe"));
  metadata.add("texts", std::vector<std::string>{"a", "Ġ"});
  metadata.add("small", std::vector<std::int64_t>{1, -2});
  metadata.add("large", std::vector<std::int64_t>{1, std::int64_t{1} << 40});
  metadata.add("reals", std::vector<double>{0.25});
  std::vector<Tensor> tensors{{"a", BlockType::kF16, {2, 3}, 0},
                              {"b", BlockType::kQ8_0, {1, 32}, 0}};
  std::string bytes = render_header(metadata, tensors);
  EXPECT_EQ(tensors[0].offset, static_cast<std::int64_t>(bytes.size()));
  EXPECT_EQ(bytes.size() % kAlignment, 0u);
  bytes.resize(tensors[1].offset + tensors[1].bytes());
  const Header header = parsed(bytes);
  EXPECT_EQ(header.metadata.values(), metadata.values());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(header.tensors[i].name, tensors[i].name);
    EXPECT_EQ(header.tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(header.tensors[i].type, tensors[i].type);
    EXPECT_EQ(header.tensors[i].offset, tensors[i].offset);
  }
  tensors[1].name = "a";
  EXPECT_THAT(error_text([&] { render_header(metadata, tensors); }), HasSubstr("'a' is taken"));
  tensors[1] = {"b", BlockType::kQ8_0, {32, 1}, 0};
  EXPECT_THAT(error_text([&] { render_header(metadata, tensors); }),
              HasSubstr("cannot be of type"));
}

}  // namespace
}  // namespace shoal::checkpoint::format::gguf_container_test
