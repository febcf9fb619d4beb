#include "shoal/collective/fold.h"

#include <cstdint>
#include <type_traits>

#include "shoal/collective/narrow_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/collective/fold.cpp"
#include <hwy/foreach_target.h>
// Highway's own headers come after foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::collective {
namespace HWY_NAMESPACE {

#include "shoal/collective/fold_kernel.h"

void fold_all(ElementType type, Reduction reduction, const void* const* source, int sources, void* const* target, int targets, std::size_t count,
              double scale) {
  switch (type) {
    case ElementType::kBool: {
      // One byte, 0 or 1: sum and maximum are "or", product and minimum "and".
      const bool either = reduction == Reduction::kSum || reduction == Reduction::kMax;
      const bool both = reduction == Reduction::kProduct || reduction == Reduction::kMin;
      return fold_reduction<std::uint8_t>(either ? Reduction::kBitOr
                                          : both ? Reduction::kBitAnd
                                                 : reduction,
                                          source, sources, target, targets, count, 1);
    }
    case ElementType::kU8:
      return fold_reduction<std::uint8_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI8:
      return fold_reduction<std::int8_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kU16:
      return fold_reduction<std::uint16_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI16:
      return fold_reduction<std::int16_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kU32:
      return fold_reduction<std::uint32_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI32:
      return fold_reduction<std::int32_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kU64:
      return fold_reduction<std::uint64_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kI64:
      return fold_reduction<std::int64_t>(reduction, source, sources, target, targets, count, 1);
    case ElementType::kF8E4M3:
      return fold_reduction<Float8E4M3>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF8E5M2:
      return fold_reduction<Float8E5M2>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF16:
      return fold_reduction<Float16>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kBF16:
      return fold_reduction<BFloat16>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF32:
      return fold_reduction<float>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kF64:
      return fold_reduction<double>(reduction, source, sources, target, targets, count, scale);
    case ElementType::kC64:
      return fold_reduction<float>(reduction, source, sources, target, targets, 2 * count, scale);
    case ElementType::kC128:
      return fold_reduction<double>(reduction, source, sources, target, targets, 2 * count, scale);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::collective
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::collective {

HWY_EXPORT(fold_all);

void fold(ElementType type, Reduction reduction, const void* const* source, int sources, void* const* target, int targets, std::size_t count,
          double scale) {
  HWY_DYNAMIC_DISPATCH(fold_all)(type, reduction, source, sources, target, targets, count, scale);
}

bool supports_fold(ElementType type, Reduction reduction) {
  const bool complex = type == ElementType::kC64 || type == ElementType::kC128, floating = is_floating(type);
  switch (reduction) {
    case Reduction::kSum:
      return true;
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kMax:
      return !complex;
    case Reduction::kAverage:
    case Reduction::kPremulSum:
      return floating || complex;
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      return !floating && !complex;
  }
  return false;
}

}  // namespace shoal::collective
#endif
