#include "shoal/base/element_type.h"

#include <gtest/gtest.h>

#include <string>

namespace shoal::element_type_test {
namespace {

struct Row {
  ElementType type;
  const char* name;
  std::size_t bytes;
  bool floating;
};

// The names of safetensors and PyTorch, and the bits in them.
constexpr Row kRows[] = {
    {ElementType::kBool, "bool", 1, false},     {ElementType::kU8, "u8", 1, false},
    {ElementType::kI8, "i8", 1, false},         {ElementType::kU16, "u16", 2, false},
    {ElementType::kI16, "i16", 2, false},       {ElementType::kU32, "u32", 4, false},
    {ElementType::kI32, "i32", 4, false},       {ElementType::kU64, "u64", 8, false},
    {ElementType::kI64, "i64", 8, false},       {ElementType::kF8E4M3, "f8_e4m3", 1, true},
    {ElementType::kF8E5M2, "f8_e5m2", 1, true}, {ElementType::kF16, "f16", 2, true},
    {ElementType::kBF16, "bf16", 2, true},      {ElementType::kF32, "f32", 4, true},
    {ElementType::kF64, "f64", 8, true},        {ElementType::kC64, "c64", 8, false},
    {ElementType::kC128, "c128", 16, false},
};

TEST(ElementType, HasItsNameAndSize) {
  for (const Row& row : kRows) {
    EXPECT_STREQ(name(row.type), row.name);
    EXPECT_EQ(size_of(row.type), row.bytes) << row.name;
    EXPECT_EQ(is_floating(row.type), row.floating) << row.name;
    EXPECT_EQ(element_type(row.name), row.type);
  }
  for (const char* other : {"", "f", "f322", "F32"}) EXPECT_EQ(element_type(other), std::nullopt);
}

TEST(ElementType, OfAPeerThatSendsNonsenseIsUnknown) {
  for (int value = static_cast<int>(std::size(kRows)); value < 256; ++value)
    EXPECT_STREQ(name(static_cast<ElementType>(value)), "unknown") << value;
}

}  // namespace
}  // namespace shoal::element_type_test
