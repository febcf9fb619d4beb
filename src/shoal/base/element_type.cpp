#include "shoal/base/element_type.h"

#include <array>

namespace shoal {
namespace {

struct Entry {
  ElementType type;
  const char* name;
  std::size_t size;
  bool floating;
};

// In the order of the enumerators, which index it. The names stand in checkpoints and cluster
// files.
constexpr std::array<Entry, 17> kEntries{{
    {ElementType::kBool, "bool", 1, false},
    {ElementType::kU8, "u8", 1, false},
    {ElementType::kI8, "i8", 1, false},
    {ElementType::kU16, "u16", 2, false},
    {ElementType::kI16, "i16", 2, false},
    {ElementType::kU32, "u32", 4, false},
    {ElementType::kI32, "i32", 4, false},
    {ElementType::kU64, "u64", 8, false},
    {ElementType::kI64, "i64", 8, false},
    {ElementType::kF8E4M3, "f8_e4m3", 1, true},
    {ElementType::kF8E5M2, "f8_e5m2", 1, true},
    {ElementType::kF16, "f16", 2, true},
    {ElementType::kBF16, "bf16", 2, true},
    {ElementType::kF32, "f32", 4, true},
    {ElementType::kF64, "f64", 8, true},
    {ElementType::kC64, "c64", 8, false},
    {ElementType::kC128, "c128", 16, false},
}};

const Entry& entry(ElementType type) { return kEntries[static_cast<std::size_t>(type)]; }

}  // namespace

std::size_t size_of(ElementType type) { return entry(type).size; }
const char* name(ElementType type) {
  return static_cast<std::size_t>(type) < kEntries.size() ? entry(type).name : "unknown";
}
bool is_floating(ElementType type) { return entry(type).floating; }

std::optional<ElementType> element_type(std::string_view name) {
  for (const Entry& e : kEntries)
    if (name == e.name) return e.type;
  return std::nullopt;
}

}  // namespace shoal
