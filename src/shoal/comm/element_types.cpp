#include <c10/core/ScalarType.h>

#include "shoal/base/check.h"
#include "shoal/comm/group.h"

namespace shoal::comm {
namespace {

struct Pair {
  at::ScalarType scalar;
  ElementType element;
};
constexpr Pair kPairs[] = {
    {at::kBool, ElementType::kBool},
    {at::kByte, ElementType::kU8},
    {at::kChar, ElementType::kI8},
    {at::kUInt16, ElementType::kU16},
    {at::kShort, ElementType::kI16},
    {at::kUInt32, ElementType::kU32},
    {at::kInt, ElementType::kI32},
    {at::kUInt64, ElementType::kU64},
    {at::kLong, ElementType::kI64},
    {at::kFloat8_e4m3fn, ElementType::kF8E4M3},
    {at::kFloat8_e5m2, ElementType::kF8E5M2},
    {at::kHalf, ElementType::kF16},
    {at::kBFloat16, ElementType::kBF16},
    {at::kFloat, ElementType::kF32},
    {at::kDouble, ElementType::kF64},
    {at::kComplexFloat, ElementType::kC64},
    {at::kComplexDouble, ElementType::kC128},
};

}  // namespace

ElementType element_type(at::ScalarType type) {
  for (const Pair& pair : kPairs)
    if (pair.scalar == type) return pair.element;
  throw Error(ErrorKind::kUsage, "group",
              fmt::format("no collective carries {}", c10::toString(type)));
}

at::ScalarType scalar_type(ElementType type) {
  for (const Pair& pair : kPairs)
    if (pair.element == type) return pair.scalar;
  throw Error(ErrorKind::kInternal, "group", fmt::format("no tensor type for {}", name(type)));
}

}  // namespace shoal::comm
